#include "tier/takeover.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::tier {
namespace {

constexpr int64_t kPollNs = base::kSecondNs;

// When the lease was last touched. A trainer that has not yet come to touch it counts from its `open`.
absl::StatusOr<int64_t> TouchedNs(Tier& tier, uint64_t incarnation) {
  absl::StatusOr<ObjectInfo> info = tier.Stat(format::WriterLeasePath(incarnation));
  if (absl::IsNotFound(info.status())) info = tier.Stat(format::LogPath(incarnation));
  LAMINA_RETURN_IF_ERROR(info.status());
  return info->modified_ns;
}

absl::Status Lives(Tier& tier, const format::LogRecord& newest, int64_t age_ns) {
  return absl::FailedPreconditionError(absl::StrCat(tier.Describe(), " is held by a live trainer: host ", newest.trainer.host, ", pid ",
                                                    newest.trainer.pid, ", incarnation ", newest.incarnation, ", last seen ",
                                                    age_ns / base::kSecondNs, " s ago; end it, or take the root over with takeover=True"));
}

absl::Status WatchLease(env::Env& env, Tier& tier, const format::LogRecord& newest, int64_t lease_ns) {
  LAMINA_ASSIGN_OR_RETURN(const int64_t touched_ns, TouchedNs(tier, newest.incarnation));
  LAMINA_ASSIGN_OR_RETURN(const int64_t now_ns, StoreNowNs(env, tier));
  const int64_t age_ns = now_ns - touched_ns;
  if (age_ns >= lease_ns) return absl::OkStatus();
  // A time in the future, from a clock that was set back, counts as the present.
  const int64_t deadline_ns = env.MonotonicNs() + lease_ns - std::max<int64_t>(age_ns, 0);
  for (int64_t left_ns = deadline_ns - env.MonotonicNs(); left_ns > 0; left_ns = deadline_ns - env.MonotonicNs()) {
    env.SleepNs(std::min(left_ns, kPollNs));
    LAMINA_ASSIGN_OR_RETURN(const int64_t touched_again_ns, TouchedNs(tier, newest.incarnation));
    if (touched_again_ns != touched_ns) return Lives(tier, newest, kPollNs);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> StoreNowNs(env::Env& env, Tier& tier, std::string_view prefix) {
  const std::string name = JoinName(prefix, env::RandomHex(env, format::kNonceDigits));
  LAMINA_RETURN_IF_ERROR(tier.Touch(name));
  const absl::StatusOr<ObjectInfo> info = tier.Stat(name);
  LAMINA_RETURN_IF_ERROR(tier.Delete(name));
  LAMINA_RETURN_IF_ERROR(info.status());
  return info->modified_ns;
}

absl::Status MayTakeOver(env::Env& env, Tier& tier, const format::LogRecord& newest, const ClaimOptions& options) {
  const format::Trainer& former = newest.trainer;
  if (options.takeover || (!options.run_id.empty() && options.run_id == former.run_id)) return absl::OkStatus();
  // A process that opens its root once more has closed it before, or is fenced against itself.
  const env::ProcessIdentity process = ProcessOf(former);
  if (process == env.Self() || env.LivenessOf(process) == env::Liveness::kDead) return absl::OkStatus();
  return WatchLease(env, tier, newest, options.lease_ns);
}

format::Trainer TrainerOf(const env::ProcessIdentity& self, const std::string& run_id) {
  return {.run_id = run_id,
          .host = self.host,
          .boot_id = self.boot_id,
          .pid_namespace = self.pid_namespace,
          .pid = self.pid,
          .start_ticks = self.start_ticks};
}

env::ProcessIdentity ProcessOf(const format::Trainer& trainer) {
  return {.host = trainer.host,
          .boot_id = trainer.boot_id,
          .pid_namespace = trainer.pid_namespace,
          .pid = trainer.pid,
          .start_ticks = trainer.start_ticks};
}

}  // namespace lamina::tier
