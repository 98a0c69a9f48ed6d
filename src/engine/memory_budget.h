// How much memory the engine may take beside the state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "env/env.h"
#include "lamina/options.h"

namespace lamina::engine {

// What the machine has free, or the control groups that this process is in, whichever is least; what caches files counts as free, since the
// kernel gives it up. Nullopt where nothing tells. `top` stands before /proc and /sys, for tests.
std::optional<int64_t> FreeMemoryBytes(env::Env& env, const std::string& top = "");

// Bytes of the window for a first snapshot of `snapshot_bytes`: the option, else 1.1 times the snapshot. ResourceExhausted with the figure
// to set when that is more than 40 % of the memory that is free.
absl::StatusOr<int64_t> WindowBytes(env::Env& env, const Options& options, int64_t snapshot_bytes);

}  // namespace lamina::engine
