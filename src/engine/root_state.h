// How a root stands: who holds it, what its newest record says, who reads from it. For people who look into what went wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "env/env.h"
#include "format/log_record.h"
#include "format/store_header.h"
#include "tier/tier.h"

namespace lamina::engine {

struct SeenFile {
  std::string name;
  int64_t age_ns = 0;  // since it was last touched
};

struct RootState {
  format::StoreHeader header;
  format::LogRecord newest;  // the newest sound record; number 0: the log is empty
  env::Liveness holder = env::Liveness::kUnknown;
  std::optional<int64_t> lease_age_ns;  // nullopt: the holder has no lease, as after a clean end
  std::vector<SeenFile> readers;
  std::vector<SeenFile> leftovers;  // hidden files of publications that were cut off
};

// Ages go by the store's clock, or by this machine's where nothing may be written. NotFound when there is no store; DataLoss when its
// header is damaged.
absl::StatusOr<RootState> LookAtRoot(env::Env& env, tier::Tier& tier);

}  // namespace lamina::engine
