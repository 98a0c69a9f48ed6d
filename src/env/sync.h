// Mutex and condition variable that wait through Env.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "env/env.h"

namespace lamina::env {

class ABSL_LOCKABLE Mutex {
 public:
  explicit Mutex(Env& env) : impl_(env.NewMutex()) {}
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { impl_->Lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { impl_->Unlock(); }

 private:
  friend class CondVar;
  std::unique_ptr<MutexImpl> impl_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits may wake for no reason: call them in a loop over the condition.
class CondVar {
 public:
  explicit CondVar(Env& env) : impl_(env.NewCondVar()) {}
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { impl_->WaitUntil(*mutex.impl_, kForeverNs); }
  // False when `deadline_ns` (of Env::MonotonicNs) has passed.
  bool WaitUntil(Mutex& mutex, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return impl_->WaitUntil(*mutex.impl_, deadline_ns);
  }
  void NotifyAll() { impl_->NotifyAll(); }

 private:
  std::unique_ptr<CondVarImpl> impl_;
};

}  // namespace lamina::env
