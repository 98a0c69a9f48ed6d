// What an engine stands on. All of it outlives the engine.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "coord/coordinator.h"
#include "device/device.h"
#include "env/env.h"
#include "hooks/dispatcher.h"
#include "hooks/verdicts.h"
#include "lamina/engine.h"
#include "tier/log.h"
#include "tier/tier.h"

namespace lamina::engine {

inline constexpr double kSaveDeadlineS = 600;  // that a save may take by default, when earlier ones were not slow

struct Runtime {
  env::Env& env;
  tier::Tier& tier;
  coord::Coordinator& coordinator;
  device::Device& device;
  hooks::Dispatcher* events = nullptr;  // nobody listens when null
  hooks::Verdicts* verdicts = nullptr;  // nobody is asked when null
  uint64_t log_records_kept = tier::kRecordsKept;
};

class CoreEngine : public Engine {
 public:
  // Whether a beat is still on its way to the coordinator, although closing gave it what time it had: freeing the engine waits for that.
  virtual bool BeatHangs() = 0;
};

// Starts the engine's threads; touches neither the root nor the coordinator. InvalidArgument for bad options.
absl::StatusOr<std::unique_ptr<CoreEngine>> NewEngine(const Options& options, const Runtime& runtime);

}  // namespace lamina::engine
