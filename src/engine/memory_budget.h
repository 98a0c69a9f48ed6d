// How much memory the engine may take beside the state.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "env/env.h"
#include "lamina/options.h"

namespace lamina::engine {

// What the machine has free, or this container, whichever is less; nullopt where neither tells.
std::optional<int64_t> FreeMemoryBytes(env::Env& env);

// Bytes of the window for a first snapshot of `snapshot_bytes`: the option, else 1.1 times the snapshot. ResourceExhausted with the figure
// to set when that is more than 40 % of the memory that is free.
absl::StatusOr<int64_t> WindowBytes(env::Env& env, const Options& options, int64_t snapshot_bytes);

}  // namespace lamina::engine
