// Runs simulated tasks one at a time: a baton goes from thread to thread as a seeded generator says, and time moves only when nothing
// can run. Nothing here is locked, because only the holder of the baton touches it.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "env/env.h"
#include "env/sim_random.h"
#include "env/sim_threads.h"

namespace lamina::env {

class SimMutex;
class SimCondVar;

// What the scheduler knows of a process.
struct SimLife {
  std::string name;
  bool dead = false;    // its tasks unwind
  bool paused = false;  // its tasks are not chosen; death wins
};

struct SimTask {
  enum class Wait { kNothing, kTime, kMutex, kCondVar, kTask, kQuiet, kDone };

  int64_t id = 0;
  std::string name;
  SimLife* process = nullptr;  // null: the test's own thread
  std::function<void()> body;
  Baton* baton = nullptr;

  Wait wait = Wait::kNothing;
  int64_t deadline_ns = kForeverNs;
  const SimMutex* mutex = nullptr;
  const SimCondVar* cond_var = nullptr;
  const SimTask* target = nullptr;
  bool notified = false;
  bool forced = false;  // goes on although what it waits for never came

  // What a write that death interrupts leaves behind; null outside of one.
  const std::function<void()>* torn_effect = nullptr;
};

struct SimSchedulerOptions {
  uint64_t seed = 1;
  double switch_probability = 0.1;
  double lock_switch_probability = 0.02;
  double spurious_wakeup_probability = 0.01;
  int64_t step_count_max = 5'000'000;  // switch points of a run
};

class SimScheduler {
 public:
  SimScheduler(const SimSchedulerOptions& options, SimThreads& threads);
  ~SimScheduler();  // everything has unwound before: KillAll, RunUntilQuiet
  SimScheduler(const SimScheduler&) = delete;
  SimScheduler& operator=(const SimScheduler&) = delete;

  void AddProcess(SimLife& process) { processes_.push_back(&process); }
  void Kill(SimLife& process);
  void KillAll();

  SimTask& Start(SimLife& process, std::string name, std::function<void()> body);
  void Join(const SimTask& task);  // never throws
  // Runs until every task is done, or those left are paused or wait for paused ones. Internal on a deadlock or a run without end, with
  // a list of who waits for what; then everything has been killed. An exception that left a task is thrown here.
  absl::Status RunUntilQuiet();

  // A place where another task may go on. Never throws.
  void SwitchPoint() { SwitchPoint(options_.switch_probability); }
  void SwitchPoint(double probability);
  // False or, where nothing unwinds already, an exception that only the root of a task catches: the calling process is dead. For the
  // test's own thread the process is `owner`, and a dead one is a std::logic_error.
  bool CheckAlive(const SimLife& owner);
  void SleepUntil(int64_t time_ns);
  void Tick(int64_t duration_ns) { now_ns_ += duration_ns; }

  int64_t ReadClock();  // a switch point; takes a little time, so that a loop over the clock ends
  int64_t now_ns() const { return now_ns_; }
  SimTask& current() { return *current_; }
  bool in_test() const { return current_ == &test_; }

 private:
  friend class SimMutex;
  friend class SimCondVar;

  Baton* RunBody(SimTask& task);
  void Block();  // gives the baton away until the current task's wait is over
  SimTask& PickNext();
  SimTask* PickRunnable();
  SimTask* PickUnwinding();
  bool AdvanceTime();
  void Fail(const std::string& what);
  void EndRunaway();
  bool LetOthersUnwind();
  bool Runnable(const SimTask& task) const;
  bool AnyPaused() const;
  std::string Waiters() const;

  const SimSchedulerOptions options_;
  SimThreads& threads_;
  SimRandom random_;
  int64_t now_ns_ = 0;
  int64_t step_count_ = 0;
  std::vector<SimLife*> processes_;
  std::deque<SimTask> tasks_;
  std::vector<SimTask*> live_;  // by id; the test's own thread first
  Baton test_baton_;
  SimTask test_;
  SimTask* current_ = &test_;
  std::string failure_;
  std::exception_ptr exception_;
};

class SimMutex final : public MutexImpl {
 public:
  explicit SimMutex(SimScheduler& scheduler) : scheduler_(scheduler) {}
  void Lock() override;
  void Unlock() override;
  const SimTask* owner() const { return owner_; }

 private:
  friend class SimCondVar;
  void Acquire();

  SimScheduler& scheduler_;
  const SimTask* owner_ = nullptr;
};

class SimCondVar final : public CondVarImpl {
 public:
  // `origin_ns`: what the process adds to the scheduler's time.
  SimCondVar(SimScheduler& scheduler, const SimLife& owner, int64_t origin_ns)
      : scheduler_(scheduler), owner_(owner), origin_ns_(origin_ns) {}
  bool WaitUntil(MutexImpl& mutex, int64_t deadline_ns) override;
  void NotifyAll() override;

 private:
  bool Wait(int64_t deadline_ns);

  SimScheduler& scheduler_;
  const SimLife& owner_;
  const int64_t origin_ns_;
};

}  // namespace lamina::env
