// A reader's registration: its file under readers/ holds up the deletion of whatever it may be reading.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "env/env.h"
#include "env/sync.h"
#include "tier/tier.h"

namespace lamina::tier {

class ReaderLease {
 public:
  // Puts the file; a task then touches it each 30 s. Must come before the look at the log by which the reader chooses what to read. A file
  // that cannot be put keeps nobody from reading (a full disk must not stop a restore): `status` tells why, and what protects the reader
  // then is the time of grace alone. `tell` hears, on the task, why the file could not be touched: the first time, and again only after a
  // touch that went well. `env` and `tier` outlive it.
  ReaderLease(env::Env& env, Tier& tier, std::function<void(const absl::Status&)> tell = {});
  ~ReaderLease() { End(); }
  ReaderLease(const ReaderLease&) = delete;
  ReaderLease& operator=(const ReaderLease&) = delete;

  // Ends the task, which removes the file. A second call does nothing.
  void End();
  // Why the file could not be put, or not be touched the last time. PermissionDenied on a root that this process may not write to, where
  // nothing at all is written. Thread-safe.
  absl::Status status() const;

 private:
  void Keep();

  env::Env& env_;
  Tier& tier_;
  const std::string name_;
  const std::function<void(const absl::Status&)> tell_;
  mutable env::Mutex mutex_;
  env::CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<env::Task> task_;
};

}  // namespace lamina::tier
