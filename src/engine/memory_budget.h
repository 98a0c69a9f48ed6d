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

inline constexpr double kSnapshotFactor = 1.1;  // a state may grow by so much before it needs another window

// Bytes of the window for a first snapshot of `snapshot_bytes`: the option, else kSnapshotFactor times the snapshots of all saves that may
// be in flight, at most this rank's part of 40 % of the memory that is free. ResourceExhausted with the figure to set when not even one
// snapshot fits into that.
absl::StatusOr<int64_t> WindowBytes(env::Env& env, const Options& options, int64_t snapshot_bytes);

}  // namespace lamina::engine
