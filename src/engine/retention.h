// Deletes beside training: a task of the leader, for which no save and no restore waits. docs/architecture.md, "Deleting".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "env/env.h"
#include "env/sync.h"
#include "lamina/options.h"
#include "tier/log.h"
#include "tier/tier.h"

namespace lamina::engine {

class Retention {
 public:
  // `tell` hears, on the task, what stands in the way of deleting; the same thing once. `hold` is let go when the task ends. `env`, `tier`
  // and `options` outlive it. The first sweep, of what dead trainers have left, begins at once.
  Retention(env::Env& env, tier::Tier& tier, const Options& options, uint64_t incarnation, std::shared_ptr<tier::Swept> swept,
            std::shared_ptr<void> hold, std::function<void(const std::string&)> tell);
  ~Retention();
  Retention(const Retention&) = delete;
  Retention& operator=(const Retention&) = delete;

  // Asks for a sweep; without `at_once` only when the last one was a minute ago.
  void SweepSoon(bool at_once);
  // Asks the task to end: a sweep that is under way or asked for may go on for two seconds, and the rest is a later sweep's or the next
  // incarnation's. Waits for that so long and no longer: storage may hang.
  void Stop();

 private:
  void Run();
  bool WaitForWork();
  void Sweep(tier::Log& log);
  absl::Status DropAbandoned(tier::Log& log);
  bool MayGoOn();

  env::Env& env_;
  tier::Tier& tier_;
  const Options& options_;
  const uint64_t incarnation_;
  const std::shared_ptr<tier::Swept> swept_;
  std::shared_ptr<void> hold_;
  const std::function<void(const std::string&)> tell_;

  env::Mutex mutex_;
  env::CondVar changed_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = true;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t stop_ns_ ABSL_GUARDED_BY(mutex_) = env::kForeverNs;  // from then on nothing more is deleted
  int64_t next_ns_ ABSL_GUARDED_BY(mutex_) = env::kForeverNs;  // when something that waits may be due
  int64_t next_idle_ns_ ABSL_GUARDED_BY(mutex_) = 0;           // before then a sweep must be wanted at once

  // Of the task alone.
  int64_t next_abandoned_ns_ = 0;
  bool fenced_ = false;
  std::string told_;

  std::unique_ptr<env::Task> task_;
};

}  // namespace lamina::engine
