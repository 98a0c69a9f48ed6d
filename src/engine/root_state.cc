#include "engine/root_state.h"

#include "base/status.h"
#include "format/paths.h"
#include "tier/file_names.h"
#include "tier/log.h"
#include "tier/takeover.h"

namespace lamina::engine {
namespace {

// The tier does not list hidden names; the Describe() of a tier that has such is a path.
absl::Status AddLeftovers(env::Env& env, const std::string& directory, int64_t now_ns, std::vector<SeenFile>& leftovers) {
  const absl::StatusOr<std::vector<env::DirectoryEntry>> entries = env.files().List(directory);
  if (absl::IsNotFound(entries.status())) return absl::OkStatus();
  LAMINA_RETURN_IF_ERROR(entries.status());
  for (const env::DirectoryEntry& entry : *entries) {
    if (!tier::IsTemporary(entry.name)) continue;
    const std::string path = tier::JoinName(directory, entry.name);
    if (const auto info = env.files().Stat(path); info.ok()) leftovers.push_back({path, now_ns - info->modified_ns});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RootState> LookAtRoot(env::Env& env, tier::Tier& tier) {
  tier::Log log(env, tier);
  RootState state;
  LAMINA_ASSIGN_OR_RETURN(state.header, log.ReadStore());
  const int64_t now_ns = tier::StoreNowNs(env, tier).value_or(env.WallNs());
  LAMINA_ASSIGN_OR_RETURN(state.newest, log.Newest(/*damage_ok=*/true));
  if (state.newest.incarnation > 0) {
    state.holder = env.LivenessOf(tier::ProcessOf(state.newest.trainer));
    const absl::StatusOr<tier::ObjectInfo> lease = tier.Stat(format::WriterLeasePath(state.newest.incarnation));
    if (lease.ok()) state.lease_age_ns = now_ns - lease->modified_ns;
    if (!lease.ok() && !absl::IsNotFound(lease.status())) return lease.status();
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<tier::ObjectInfo> readers, tier.List(format::kReadersPrefix));
  for (const tier::ObjectInfo& reader : readers) state.readers.push_back({reader.name, now_ns - reader.modified_ns});
  LAMINA_RETURN_IF_ERROR(AddLeftovers(env, tier.Describe(), now_ns, state.leftovers));
  LAMINA_RETURN_IF_ERROR(AddLeftovers(env, tier::JoinName(tier.Describe(), format::kLogPrefix), now_ns, state.leftovers));
  return state;
}

}  // namespace lamina::engine
