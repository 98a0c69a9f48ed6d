// Attempts of which no file is left: found by who sweeps, used by who publishes, since only then the log can forget them.
#pragma once

#include <functional>
#include <set>

#include "absl/base/thread_annotations.h"
#include "env/env.h"
#include "env/sync.h"
#include "format/paths.h"

namespace lamina::tier {

// Thread-safe: the logs of one process share it.
class Swept {
 public:
  explicit Swept(env::Env& env) : mutex_(env) {}

  void Add(const format::AttemptId& attempt) {
    env::MutexLock lock(mutex_);
    attempts_.insert(attempt);
  }
  std::set<format::AttemptId> attempts() {
    env::MutexLock lock(mutex_);
    return attempts_;
  }
  // Forgets those that the log has forgotten.
  void KeepIf(const std::function<bool(const format::AttemptId&)>& keep) {
    env::MutexLock lock(mutex_);
    std::erase_if(attempts_, [&](const format::AttemptId& attempt) { return !keep(attempt); });
  }

 private:
  env::Mutex mutex_;
  std::set<format::AttemptId> attempts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lamina::tier
