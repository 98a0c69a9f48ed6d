#include "hooks/dispatcher.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
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

Dispatcher::Dispatcher(env::Env& env, int64_t capacity, std::function<void(std::string)> report)
    : env_(env), capacity_(capacity), report_(std::move(report)), mutex_(env), posted_(env) {}

Dispatcher::~Dispatcher() { Stop(); }

void Dispatcher::AddHook(std::shared_ptr<Hook> hook) { hooks_.push_back(std::move(hook)); }

absl::Status Dispatcher::Start() {
  task_ = env_.Start("lamina-hooks", [this] { Deliver(); });
  return task_ == nullptr ? env::NoThread("hooks") : absl::OkStatus();
}

void Dispatcher::Post(Event event) {
  event.monotonic_ns = env_.MonotonicNs();
  event.wall_ns = env_.WallNs();
  {
    env::MutexLock lock(mutex_);
    const bool full = std::ssize(queue_) >= capacity_ && !MustBeDelivered(event.kind);
    if (full || stopping_) {
      ++dropped_count_;
      return;
    }
    queue_.push_back(std::move(event));
  }
  posted_.NotifyAll();
}

void Dispatcher::Stop() {
  {
    env::MutexLock lock(mutex_);
    stopping_ = true;
  }
  posted_.NotifyAll();
  if (task_ != nullptr) task_->Join();
}

int64_t Dispatcher::dropped_count() const {
  env::MutexLock lock(mutex_);
  return dropped_count_;
}

void Dispatcher::Deliver() {
  for (std::deque<Event> events = WaitForEvents(); !events.empty(); events = WaitForEvents()) {
    for (const Event& event : events) {
      for (std::shared_ptr<Hook>& hook : hooks_) DeliverTo(hook, event);
    }
  }
}

// Empty: stopped, and all was delivered.
std::deque<Event> Dispatcher::WaitForEvents() {
  env::MutexLock lock(mutex_);
  while (queue_.empty() && !stopping_) posted_.Wait(mutex_);
  return std::exchange(queue_, {});
}

void Dispatcher::DeliverTo(std::shared_ptr<Hook>& hook, const Event& event) {
  if (hook == nullptr) return;
  std::string cause;
  try {
    hook->OnEvent(event);
    return;
  } catch (const std::exception& error) {
    cause = error.what();
  } catch (...) {
    cause = "an exception of an unknown type";
  }
  // The simulator ends a dead process's tasks by an exception that is no hook's: in that case this call throws it again.
  env_.Operation("hooks.remove");
  hook.reset();
  report_(absl::StrCat("a hook failed at ", EventName(event.kind), " of step ", event.step, " and gets no further events: ", cause));
}

}  // namespace lamina::hooks
