#include "hooks/dispatcher.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "env/no_thread.h"

namespace lamina::hooks {

bool MustBeDelivered(EventKind kind) {
  switch (kind) {
    case EventKind::kCommitted:
    case EventKind::kSaveFailed:
    case EventKind::kSaveSkipped:
    case EventKind::kRestoreDone:
    case EventKind::kFenced:
      return true;
    default:
      return false;
  }
}

Dispatcher::Dispatcher(env::Env& env, int64_t capacity, int64_t limit_ns)
    : capacity_(capacity), limit_ns_(limit_ns), state_(std::make_shared<State>(env)) {}

Dispatcher::~Dispatcher() {
  std::map<uint64_t, std::unique_ptr<env::Task>> tasks;
  {
    env::MutexLock lock(state_->mutex);
    state_->stopping = true;
    tasks.swap(tasks_);
    for (auto& [turn, task] : tasks) {
      // Joining a hook that never returns would hang whoever closes.
      if (turn != state_->turn && state_->running.contains(turn)) static_cast<void>(task.release());
    }
  }
  state_->changed.NotifyAll();
}

void Dispatcher::AddHook(std::shared_ptr<Hook> hook) {
  env::MutexLock lock(state_->mutex);
  state_->hooks.push_back(std::move(hook));
}

absl::Status Dispatcher::Start() {
  {
    env::MutexLock lock(state_->mutex);
    state_->running.insert(state_->turn);
  }
  return StartTask(0) ? absl::OkStatus() : env::NoThread("hooks");
}

bool Dispatcher::StartTask(uint64_t turn) {
  std::unique_ptr<env::Task> task = state_->env.Start("lamina-hooks", [state = state_, turn] { Deliver(*state, turn); });
  env::MutexLock lock(state_->mutex);
  if (task == nullptr) {
    state_->running.erase(turn);
    state_->changed.NotifyAll();
    return false;
  }
  tasks_[turn] = std::move(task);
  return true;
}

void Dispatcher::Post(Event event) {
  event.monotonic_ns = state_->env.MonotonicNs();
  event.wall_ns = state_->env.WallNs();
  const int64_t late_ns = event.monotonic_ns - limit_ns_;
  bool stalled = false;
  {
    env::MutexLock lock(state_->mutex);
    stalled = state_->begun_ns >= 0 && state_->begun_ns < late_ns;
    const bool full = std::ssize(state_->queue) >= capacity_ && !MustBeDelivered(event.kind);
    if (full || state_->stopping) {
      ++state_->dropped_count;
      ++state_->untold_count;
    } else {
      state_->queue.push_back(std::move(event));
    }
  }
  state_->changed.NotifyAll();
  if (stalled) LeaveBehind(late_ns);
}

// The hook whose call began before then gets no further events, and another task goes on with the next one. Where the system grants none,
// nothing more is delivered.
void Dispatcher::LeaveBehind(int64_t begun_before_ns) {
  uint64_t turn = 0;
  {
    env::MutexLock lock(state_->mutex);
    if (state_->begun_ns < 0 || state_->begun_ns >= begun_before_ns) return;
    Remove(*state_, absl::StrCat("has not returned within ", limit_ns_ / base::kMillisecondNs, " ms"));
    turn = ++state_->turn;
    state_->running.insert(turn);
  }
  StartTask(turn);
}

void Dispatcher::Stop() {
  std::map<uint64_t, std::unique_ptr<env::Task>> ended;
  while (true) {
    const int64_t now_ns = state_->env.MonotonicNs();
    const int64_t deadline_ns = limit_ns_ > env::kForeverNs - now_ns ? env::kForeverNs : now_ns + limit_ns_;
    {
      env::MutexLock lock(state_->mutex);
      state_->stopping = true;
      state_->changed.NotifyAll();
      while (state_->running.contains(state_->turn) && state_->changed.WaitUntil(state_->mutex, deadline_ns)) {
      }
      if (!state_->running.contains(state_->turn)) {
        for (auto& [turn, task] : tasks_) {
          if (!state_->running.contains(turn)) ended[turn] = std::move(task);
        }
        std::erase_if(tasks_, [](const auto& entry) { return entry.second == nullptr; });
        break;
      }
    }
    LeaveBehind(deadline_ns);
  }
  for (const auto& [turn, task] : ended) task->Join();
}

bool Dispatcher::LeavesBehind() const {
  env::MutexLock lock(state_->mutex);
  return std::ranges::any_of(state_->running, [turn = state_->turn](uint64_t each) { return each != turn; });
}

int64_t Dispatcher::dropped_count() const {
  env::MutexLock lock(state_->mutex);
  return state_->dropped_count;
}

void Dispatcher::Deliver(State& state, uint64_t turn) {
  while (const std::optional<Call> call = WaitForCall(state, turn)) {
    std::optional<std::string> failure;
    try {
      call->hook->OnEvent(call->event);
    } catch (const std::exception& error) {
      failure = error.what();
    } catch (...) {
      failure = "an exception of an unknown type";
    }
    // The simulator ends a dead process's tasks by an exception that is no hook's: in that case this call throws it again.
    if (failure.has_value()) state.env.Operation("hooks.remove");
    env::MutexLock lock(state.mutex);
    if (state.turn != turn) continue;
    if (failure.has_value()) {
      Remove(state, absl::StrCat("failed: ", *failure));
    } else {
      state.begun_ns = -1;
      ++state.next_hook;
    }
  }
}

// Nullopt: stopped and all delivered, or left behind.
std::optional<Dispatcher::Call> Dispatcher::WaitForCall(State& state, uint64_t turn) {
  env::MutexLock lock(state.mutex);
  while (state.turn == turn) {
    if (!state.event.has_value() && !TakeEvent(state)) {
      if (state.stopping) break;
      state.changed.Wait(state.mutex);
    } else if (state.next_hook == state.hooks.size()) {
      state.event.reset();
    } else if (state.hooks[state.next_hook] == nullptr) {
      ++state.next_hook;
    } else {
      state.begun_ns = state.env.MonotonicNs();
      return Call{state.hooks[state.next_hook], *state.event};
    }
  }
  state.running.erase(turn);
  state.changed.NotifyAll();
  return std::nullopt;
}

bool Dispatcher::TakeEvent(State& state) {
  if (state.queue.empty()) return false;
  state.next_hook = 0;
  if (const int64_t count = std::exchange(state.untold_count, 0); count > 0) {
    state.event =
        Fallback(state, state.queue.front(), absl::StrCat(count, " events were dropped: hooks do not take them as fast as they come"));
  } else {
    state.event = std::move(state.queue.front());
    state.queue.pop_front();
  }
  return true;
}

// The hook that is at an event. The others hear of it.
void Dispatcher::Remove(State& state, const std::string& why) {
  const Event& event = *state.event;
  state.queue.push_back(Fallback(
      state, event,
      absl::StrCat("a hook that was told ", EventName(event.kind), " of step ", event.step, " ", why, "; it gets no further events")));
  state.hooks[state.next_hook++].reset();
  state.begun_ns = -1;
}

Event Dispatcher::Fallback(State& state, const Event& like, std::string cause) {
  Event event;
  event.kind = EventKind::kFallback;
  event.monotonic_ns = state.env.MonotonicNs();
  event.wall_ns = state.env.WallNs();
  event.rank = like.rank;
  event.cause = std::move(cause);
  return event;
}

}  // namespace lamina::hooks
