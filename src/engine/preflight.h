// The checks behind lamina/preflight.h, and those cheap enough for every first save.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "env/env.h"
#include "lamina/options.h"
#include "lamina/preflight.h"
#include "tier/file_probe.h"
#include "tier/tier.h"

namespace lamina::engine {

std::vector<Finding> Preflight(env::Env& env, const Options& options, const StateSize& size);

// Whether the log can be kept there.
std::vector<Finding> JudgeProbe(const tier::FileProbe& probe, const std::string& root);
// Whether saves of this size find room. `steps_held` are in the root already, and count for what `keep` will need.
std::vector<Finding> JudgeRoom(const env::FileSystemInfo& room, const std::string& root, const Options& options, const StateSize& size,
                               int64_t steps_held = 0);
// Whether copies of this size find memory.
Finding JudgeMemory(env::Env& env, const Options& options, const StateSize& size);

// "put-if-absent: found; expected this; do that".
std::string ToText(const Finding& finding);
// The first failure as a status with that text; what is only a warning goes to `warn`.
absl::Status FirstFailure(const std::vector<Finding>& findings, const std::function<void(std::string)>& warn);

}  // namespace lamina::engine
