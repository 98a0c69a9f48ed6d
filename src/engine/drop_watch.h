// Whether a step that is being read was dropped meanwhile: that tells a file which had to go from one that is lost.
#pragma once

#include <cstdint>
#include <vector>

#include "env/env.h"
#include "env/sync.h"
#include "format/log_record.h"
#include "tier/tier.h"

namespace lamina::engine {

// May be shared by the readers of many steps. Thread-safe.
class DropWatch {
 public:
  // `env` and `tier` outlive it. Nothing is read.
  DropWatch(env::Env& env, tier::Tier& tier) : env_(env), tier_(tier), mutex_(env) {}

  // As far as the log was seen to say so: the first times that anybody asks it is looked at, then at most once a second, however many files
  // of however many steps are not there.
  bool IsDropped(const format::StepEntry& entry);

 private:
  bool MayLook();
  bool IsKnown(const format::StepEntry& entry);
  void Look();

  env::Env& env_;
  tier::Tier& tier_;
  env::Mutex mutex_;
  int64_t look_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t looked_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t seen_ ABSL_GUARDED_BY(mutex_) = 0;           // number of the newest record that a look has shown
  std::vector<uint64_t> left_ ABSL_GUARDED_BY(mutex_);  // commits of its steps that are not dropped, ascending
};

}  // namespace lamina::engine
