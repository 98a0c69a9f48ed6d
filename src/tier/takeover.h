// Whether the trainer that holds a root is gone.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"
#include "format/log_record.h"
#include "tier/log.h"
#include "tier/tier.h"

namespace lamina::tier {

// The present by the store's clock: the time of an object, named by a nonce, that is touched under `prefix` for this and removed.
absl::StatusOr<int64_t> StoreNowNs(env::Env& env, Tier& tier, std::string_view prefix = format::kProbePrefix);

// OK when the trainer of `newest` (a record of a log that is not empty) is gone or is to be taken over. FailedPrecondition naming its host,
// pid and age when it lives. Watches a lease that has not run out, for up to options.lease_ns.
absl::Status MayTakeOver(env::Env& env, Tier& tier, const format::LogRecord& newest, const ClaimOptions& options);

format::Trainer TrainerOf(const env::ProcessIdentity& self, const std::string& run_id);
env::ProcessIdentity ProcessOf(const format::Trainer& trainer);

}  // namespace lamina::tier
