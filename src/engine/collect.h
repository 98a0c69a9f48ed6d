// What `lamina gc` and `lamina pin` do. They never claim, so they fence nobody, and they delete by the rule that trainers delete by.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"
#include "tier/log.h"
#include "tier/tier.h"

namespace lamina::engine {

struct CollectRequest {
  std::optional<int64_t> step = std::nullopt;  // drops this one, and no other
  tier::RetentionPolicy policy = {};           // without `step`: drops what this says
  int64_t reader_grace_ns = 600'000'000'000;
  bool dry_run = false;  // says what would be done, and writes nothing
};

struct Collected {
  std::vector<format::StepEntry> dropped;
  tier::SweepReport sweep;
  tier::Usage usage;  // afterwards
};

// Not thread-safe. Remembers which readers it waits for, so that calls which follow one another see them go.
class Collector {
 public:
  // `env` and `tier` outlive it.
  Collector(env::Env& env, tier::Tier& tier) : log_(env, tier) {}

  // Drops and sweeps. NotFound: no store, or no such step. FailedPrecondition: the step is pinned, or a live trainer builds on it.
  // DataLoss: a damaged record of the log, or a step whose list of packs cannot be read, keeps everything from being deleted.
  absl::StatusOr<Collected> Collect(const CollectRequest& request);
  absl::Status Pin(int64_t step, bool pinned);

 private:
  absl::Status CheckNotFollowed(const format::LogRecord& newest, const format::StepEntry& entry, bool dry_run);

  tier::Log log_;
};

}  // namespace lamina::engine
