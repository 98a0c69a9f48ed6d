// One rank's engine with all that it stands on, made from its options: Engine::Open, on any Env.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "env/env.h"
#include "lamina/engine.h"

namespace lamina::engine {

// `env` outlives the engine, whose destruction waits for nothing: close it first.
absl::StatusOr<std::unique_ptr<Engine>> OpenOn(env::Env& env, const Options& options, std::vector<std::shared_ptr<Hook>> hooks,
                                               std::vector<std::shared_ptr<VerdictHook>> verdict_hooks = {});

}  // namespace lamina::engine
