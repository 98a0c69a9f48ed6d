#include "env/sim_scheduler.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lamina::env {
namespace {

// Unwinds a task of a dead process; nothing but SimScheduler::RunBody catches it. The text is for a test's assertion that does.
struct ProcessDied final : std::exception {
  const char* what() const noexcept override { return "the simulated process is dead: keep calls of Env out of CHECK and REQUIRE"; }
};

constexpr int64_t kClockReadNs = 100;

bool Dead(const SimTask& task) { return task.process != nullptr && task.process->dead; }
bool Paused(const SimTask& task) { return task.process != nullptr && task.process->paused && !task.process->dead; }

}  // namespace

SimScheduler::SimScheduler(const SimSchedulerOptions& options, SimThreads& threads)
    : options_(options), threads_(threads), random_(options.seed) {
  test_.name = "test";
  test_.baton = &test_baton_;
  live_.push_back(&test_);
}

SimScheduler::~SimScheduler() = default;

void SimScheduler::Kill(SimLife& process) {
  if (process.dead) return;
  for (SimTask* task : live_) {
    if (task->process != &process || task->torn_effect == nullptr) continue;
    (*std::exchange(task->torn_effect, nullptr))();
  }
  process.dead = true;
}

void SimScheduler::KillAll() {
  for (SimLife* process : processes_) Kill(*process);
}

SimTask& SimScheduler::Start(SimLife& process, std::string name, std::function<void()> body) {
  SimTask& task = tasks_.emplace_back();
  task.id = static_cast<int64_t>(tasks_.size());
  task.name = std::move(name);
  task.process = &process;
  task.body = std::move(body);
  task.baton = &threads_.Bind([this, &task] { return RunBody(task); });
  live_.push_back(&task);
  return task;
}

Baton* SimScheduler::RunBody(SimTask& task) {
  try {
    if (!Dead(task)) task.body();
    task.body = nullptr;
  } catch (const ProcessDied&) {
  } catch (...) {
    if (!exception_) exception_ = std::current_exception();
    KillAll();
  }
  task.body = nullptr;
  task.wait = SimTask::Wait::kDone;
  live_.erase(std::find(live_.begin(), live_.end(), &task));
  current_ = &PickNext();
  return current_->baton;
}

void SimScheduler::Join(const SimTask& task) {
  SwitchPoint();
  if (task.wait == SimTask::Wait::kDone) return;
  current_->wait = SimTask::Wait::kTask;
  current_->target = &task;
  Block();
}

absl::Status SimScheduler::RunUntilQuiet() {
  step_count_ = 0;
  current_->wait = SimTask::Wait::kQuiet;
  Block();
  if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
  if (!failure_.empty()) return absl::InternalError(std::exchange(failure_, {}));
  return absl::OkStatus();
}

void SimScheduler::SwitchPoint(double probability) {
  if (in_test()) return;
  if (++step_count_ >= options_.step_count_max) EndRunaway();
  if (Paused(*current_) || random_.Chance(probability)) Block();
}

void SimScheduler::EndRunaway() {
  Fail(absl::StrCat("no end after ", step_count_, " steps"));
  if (step_count_ < 2 * options_.step_count_max) return;
  std::fprintf(stderr, "lamina simulator: task '%s' of a dead process goes round for ever\n", current_->name.c_str());
  std::abort();
}

// A destructor that waits for a condition while its process unwinds: contrary to env.h, so it gets few tries.
bool SimScheduler::LetOthersUnwind() {
  step_count_ += options_.step_count_max / 1000;
  SwitchPoint(1.0);
  return false;
}

int64_t SimScheduler::ReadClock() {
  SwitchPoint(options_.lock_switch_probability);
  Tick(kClockReadNs);
  return now_ns_;
}

bool SimScheduler::CheckAlive(const SimLife& owner) {
  if (in_test()) {
    if (owner.dead) throw std::logic_error(absl::StrCat("the test calls the Env of the dead process '", owner.name, "'"));
    return true;
  }
  if (!Dead(*current_)) return true;
  if (std::uncaught_exceptions() == 0) throw ProcessDied();
  return false;
}

void SimScheduler::SleepUntil(int64_t time_ns) {
  current_->wait = SimTask::Wait::kTime;
  current_->deadline_ns = time_ns;
  Block();
}

void SimScheduler::Block() {
  SimTask& self = *current_;
  SimTask& next = PickNext();
  if (&next != &self) {
    current_ = &next;
    next.baton->Pass();
    self.baton->Await();
  }
  const bool forced = std::exchange(self.forced, false);
  self.wait = SimTask::Wait::kNothing;
  self.deadline_ns = kForeverNs;
  if (forced && self.process == nullptr) throw std::runtime_error(std::exchange(failure_, {}));
}

SimTask& SimScheduler::PickNext() {
  for (;;) {
    if (SimTask* task = PickRunnable()) return *task;
    if (SimTask* task = PickUnwinding()) return *task;
    if (AdvanceTime()) continue;
    if (test_.wait == SimTask::Wait::kQuiet && (live_.size() == 1 || AnyPaused())) return test_;
    Fail("deadlock");
    if (live_.size() > 1) continue;
    test_.forced = true;  // the test itself waits for what can never come
    return test_;
  }
}

SimTask* SimScheduler::PickRunnable() {
  int64_t count = 0;
  for (const SimTask* task : live_) count += Runnable(*task) ? 1 : 0;
  if (count == 0) return nullptr;
  int64_t chosen = random_.Below(count);
  for (SimTask* task : live_) {
    if (Runnable(*task) && chosen-- == 0) return task;
  }
  return nullptr;
}

// The dead get locks that will never be free, so that they unwind; joins give way last.
SimTask* SimScheduler::PickUnwinding() {
  for (const SimTask::Wait wait : {SimTask::Wait::kMutex, SimTask::Wait::kTask}) {
    for (SimTask* task : live_) {
      if (!Dead(*task) || task->wait != wait) continue;
      task->forced = true;
      return task;
    }
  }
  return nullptr;
}

bool SimScheduler::AdvanceTime() {
  int64_t earliest_ns = kForeverNs;
  for (const SimTask* task : live_) {
    if (!Paused(*task)) earliest_ns = std::min(earliest_ns, task->deadline_ns);
  }
  if (earliest_ns == kForeverNs) return false;
  now_ns_ = std::max(now_ns_, earliest_ns);
  return true;
}

bool SimScheduler::Runnable(const SimTask& task) const {
  if (Paused(task)) return false;
  switch (task.wait) {
    case SimTask::Wait::kNothing:
      return true;
    case SimTask::Wait::kTime:
      return Dead(task) || now_ns_ >= task.deadline_ns;
    case SimTask::Wait::kCondVar:
      return Dead(task) || task.notified || now_ns_ >= task.deadline_ns;
    case SimTask::Wait::kMutex:
      return task.mutex->owner() == nullptr;
    case SimTask::Wait::kTask:
      return task.target->wait == SimTask::Wait::kDone;
    case SimTask::Wait::kQuiet:
    case SimTask::Wait::kDone:
      return false;
  }
  return false;
}

bool SimScheduler::AnyPaused() const {
  return std::any_of(live_.begin(), live_.end(), [](const SimTask* task) { return Paused(*task); });
}

void SimScheduler::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = absl::StrCat(what, Waiters());
  KillAll();
}

std::string SimScheduler::Waiters() const {
  std::string text;
  for (const SimTask* task : live_) {
    if (task == &test_ && test_.wait == SimTask::Wait::kQuiet) continue;
    absl::StrAppend(&text, "\n  '", task->name, "' of '", task->process != nullptr ? task->process->name : "the test", "' ");
    if (task->wait == SimTask::Wait::kMutex) {
      const SimTask* owner = task->mutex->owner();
      absl::StrAppend(&text, "waits for a mutex held by '", owner != nullptr ? owner->name : "nobody", "'");
    } else if (task->wait == SimTask::Wait::kCondVar) {
      absl::StrAppend(&text, "waits to be notified");
    } else if (task->wait == SimTask::Wait::kTask) {
      absl::StrAppend(&text, "waits for the end of '", task->target->name, "'");
    } else {
      absl::StrAppend(&text, Paused(*task) ? "is paused" : "runs or sleeps");
    }
  }
  return text;
}

void SimMutex::Lock() {
  scheduler_.SwitchPoint(scheduler_.options_.lock_switch_probability);
  Acquire();
}

void SimMutex::Acquire() {
  SimTask& self = scheduler_.current();
  if (owner_ != nullptr) {
    self.wait = SimTask::Wait::kMutex;
    self.mutex = this;
    scheduler_.Block();
  }
  if (owner_ == nullptr) owner_ = &self;
}

void SimMutex::Unlock() {
  // Somebody else's only when a dead task was let in without it.
  if (owner_ == &scheduler_.current()) owner_ = nullptr;
}

bool SimCondVar::WaitUntil(MutexImpl& mutex, int64_t deadline_ns) {
  SimMutex& lock = static_cast<SimMutex&>(mutex);
  const bool alive = scheduler_.CheckAlive(owner_);
  lock.Unlock();
  const bool notified = alive ? Wait(deadline_ns) : scheduler_.LetOthersUnwind();
  lock.Acquire();
  scheduler_.CheckAlive(owner_);
  return notified;
}

bool SimCondVar::Wait(int64_t deadline_ns) {
  if (scheduler_.random_.Chance(scheduler_.options_.spurious_wakeup_probability)) {
    scheduler_.SwitchPoint();
    return true;
  }
  SimTask& self = scheduler_.current();
  const int64_t time_ns = deadline_ns == kForeverNs ? kForeverNs : std::max<int64_t>(deadline_ns, 0) - origin_ns_;
  self.wait = SimTask::Wait::kCondVar;
  self.cond_var = this;
  self.notified = false;
  self.deadline_ns = time_ns;
  scheduler_.Block();
  return self.notified || scheduler_.now_ns() < time_ns;
}

void SimCondVar::NotifyAll() {
  for (SimTask* task : scheduler_.live_) {
    if (task->wait == SimTask::Wait::kCondVar && task->cond_var == this) task->notified = true;
  }
  scheduler_.SwitchPoint(scheduler_.options_.lock_switch_probability);
}

}  // namespace lamina::env
