#include "tier/sweeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"
#include "format/catalog.h"
#include "format/version.h"
#include "tier/step_table.h"
#include "tier/takeover.h"

namespace lamina::tier {
namespace {

using format::AttemptId;
using format::LogRecord;
using format::StepEntry;
using format::StepState;

constexpr int64_t kLeftoverAgeNs = 24 * 3600 * base::kSecondNs;

std::string PrefixOf(std::string_view path) { return std::string(path.substr(0, path.rfind('/'))); }

bool IsOfAttempt(std::string_view name) {
  return name == format::kCatalogName || name == format::kPacksName || format::ParsePackName(name).has_value();
}

absl::StatusOr<bool> Lists(Tier& tier, const std::string& prefix, const std::string& name) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier.ListNames(prefix));
  return std::binary_search(names.begin(), names.end(), name);
}

absl::StatusOr<std::vector<std::string>> ReadPacks(Tier& tier, const LogRecord& newest, const StepEntry& step) {
  const std::string name = format::PacksPath(step.attempt);
  LAMINA_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(tier, name, format::kMetadataBytesMax));
  if (format::Checksum128(base::AsBytes(bytes)) != step.packs_digest) {
    return absl::DataLossError(absl::StrCat("'", name, "': digest ", format::ToString(format::Checksum128(base::AsBytes(bytes))),
                                            ", expected ", format::ToString(step.packs_digest)));
  }
  LAMINA_ASSIGN_OR_RETURN(const format::Packs packs, format::DecodePacks(base::AsBytes(bytes)));
  if (packs.store_id != newest.store_id || packs.attempt != step.attempt) {
    return absl::DataLossError(absl::StrCat("'", name, "' is of another attempt, ", format::AttemptPath(packs.attempt)));
  }
  std::vector<std::string> names;
  for (const format::ReachedPack& pack : packs.packs) names.push_back(format::PackPath(pack.attempt, pack.writer));
  return names;
}

}  // namespace

absl::StatusOr<int64_t> Sweeper::Sweep(const LogRecord& newest, const SweepOptions& options) {
  int64_t removed = 0;
  LAMINA_ASSIGN_OR_RETURN(const std::set<AttemptId> attempts, Candidates(newest, options));
  if (!attempts.empty()) {
    LAMINA_ASSIGN_OR_RETURN(const std::set<std::string> named, NamedPacks(newest));
    for (const AttemptId& attempt : attempts) LAMINA_RETURN_IF_ERROR(SweepAttempt(attempt, named, removed));
  }
  if (tidied_ != newest.incarnation) LAMINA_RETURN_IF_ERROR(Tidy(newest, removed));
  tidied_ = newest.incarnation;
  return removed;
}

absl::StatusOr<std::set<AttemptId>> Sweeper::Candidates(const LogRecord& newest, const SweepOptions& options) {
  std::set<AttemptId> attempts(newest.unswept.begin(), newest.unswept.end());
  if (tidied_ != newest.incarnation) LAMINA_RETURN_IF_ERROR(AddForgotten(newest, attempts));
  // No step of the table is touched but a dropped one, whatever else the record says of it.
  for (const StepEntry& step : newest.steps) attempts.erase(step.attempt);
  LAMINA_RETURN_IF_ERROR(AddDropped(newest, options, attempts));
  for (const AttemptId& attempt : swept_) attempts.erase(attempt);
  return attempts;
}

// Attempts of older incarnations that no record speaks of: their trainers died while they wrote.
absl::Status Sweeper::AddForgotten(const LogRecord& newest, std::set<AttemptId>& attempts) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> steps, tier_.ListNames(format::kStepsPrefix));
  for (const std::string& step : steps) {
    if (!step.ends_with('/')) continue;
    const std::string prefix = JoinName(format::kStepsPrefix, PrefixOf(step));
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(prefix));
    for (const std::string& name : names) {
      if (!name.ends_with('/')) continue;
      const std::optional<AttemptId> attempt = format::ParseAttemptPath(JoinName(prefix, PrefixOf(name)));
      if (attempt.has_value() && attempt->incarnation < newest.incarnation) attempts.insert(*attempt);
    }
  }
  return absl::OkStatus();
}

absl::Status Sweeper::AddDropped(const LogRecord& newest, const SweepOptions& options, std::set<AttemptId>& attempts) {
  std::set<AttemptId> dropped;
  for (const StepEntry& step : newest.steps) {
    if (step.state == StepState::kDropped && !swept_.contains(step.attempt)) dropped.insert(step.attempt);
  }
  if (dropped.empty()) return absl::OkStatus();
  LAMINA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> readers, tier_.List(format::kReadersPrefix));
  LAMINA_ASSIGN_OR_RETURN(const int64_t now_ns, StoreNowNs(env_, tier_));
  std::set<std::string> present;
  for (const ObjectInfo& reader : readers) {
    if (now_ns - reader.modified_ns < options.reader_lease_ns) present.insert(reader.name);
  }
  for (const AttemptId& attempt : dropped) {
    Readers& before = readers_.try_emplace(attempt, Readers{env_.MonotonicNs(), present}).first->second;
    std::erase_if(before.names, [&](const std::string& name) { return !present.contains(name); });
    if (before.names.empty() && env_.MonotonicNs() - before.seen_ns >= options.reader_grace_ns) attempts.insert(attempt);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::set<std::string>> Sweeper::NamedPacks(const LogRecord& newest) {
  std::map<uint64_t, std::vector<std::string>> packs;
  std::set<std::string> named;
  for (const StepEntry& step : newest.steps) {
    if (step.state == StepState::kDropped) continue;
    const auto known = packs_.find(step.commit);
    absl::StatusOr<std::vector<std::string>> names = known != packs_.end() ? known->second : ReadPacks(tier_, newest, step);
    if (!names.ok())
      return base::Annotate(names.status(),
                            absl::StrCat("nothing is swept, since the packs of step ", step.attempt.step, " are not known"));
    named.insert(names->begin(), names->end());
    packs[step.commit] = *std::move(names);
  }
  packs_ = std::move(packs);
  return named;
}

// Whether its directory is one of ours: a link in its place is not listed, and so neither followed nor emptied.
absl::StatusOr<bool> Sweeper::LiesThere(const AttemptId& attempt) {
  const std::string path = format::AttemptPath(attempt);
  const std::string step = PrefixOf(path);
  LAMINA_ASSIGN_OR_RETURN(const bool step_lies, Lists(tier_, std::string(format::kStepsPrefix), step.substr(step.rfind('/') + 1) + "/"));
  if (!step_lies) return false;
  return Lists(tier_, step, path.substr(path.rfind('/') + 1) + "/");
}

absl::Status Sweeper::SweepAttempt(const AttemptId& attempt, const std::set<std::string>& named, int64_t& removed) {
  const std::string prefix = format::AttemptPath(attempt);
  LAMINA_ASSIGN_OR_RETURN(const bool lies_there, LiesThere(attempt));
  bool gone = true;
  if (lies_there) {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(prefix));
    for (const std::string& name : names) {
      if (!IsOfAttempt(name)) continue;
      const std::string path = JoinName(prefix, name);
      if (named.contains(path)) {
        gone = false;
        continue;
      }
      LAMINA_RETURN_IF_ERROR(tier_.Delete(path));
      ++removed;
    }
    if (gone) LAMINA_RETURN_IF_ERROR(tier_.RemovePrefix(prefix));
    if (gone) LAMINA_RETURN_IF_ERROR(tier_.RemovePrefix(PrefixOf(prefix)));
  }
  if (!gone) return absl::OkStatus();
  swept_.insert(attempt);
  readers_.erase(attempt);
  return absl::OkStatus();
}

absl::Status Sweeper::Tidy(const LogRecord& newest, int64_t& removed) {
  LAMINA_RETURN_IF_ERROR(RemoveOldLog(newest, removed));
  LAMINA_RETURN_IF_ERROR(RemoveOldLeases(newest, removed));
  LAMINA_RETURN_IF_ERROR(RemoveOldProbes(removed));
  for (const std::string_view prefix : {std::string_view(), format::kLogPrefix, format::kProbePrefix}) {
    LAMINA_ASSIGN_OR_RETURN(const int64_t leftovers, tier_.RemoveLeftovers(prefix, kLeftoverAgeNs));
    removed += leftovers;
  }
  return absl::OkStatus();
}

absl::Status Sweeper::RemoveOldLog(const LogRecord& newest, int64_t& removed) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(format::kLogPrefix));
  for (const std::string& name : names) {
    const std::optional<uint64_t> number = format::ParseLogName(name);
    if (!number || *number >= newest.floor || std::binary_search(newest.opens.begin(), newest.opens.end(), *number)) continue;
    LAMINA_RETURN_IF_ERROR(tier_.Delete(format::LogPath(*number)));
    ++removed;
  }
  return absl::OkStatus();
}

// Of processes that ended before they could remove them.
absl::Status Sweeper::RemoveOldProbes(int64_t& removed) {
  LAMINA_ASSIGN_OR_RETURN(std::vector<ObjectInfo> infos, tier_.List(format::kProbePrefix));
  std::erase_if(infos, [](const ObjectInfo& info) { return !format::IsProbeName(info.name.substr(format::kProbePrefix.size() + 1)); });
  if (infos.empty()) return absl::OkStatus();
  LAMINA_ASSIGN_OR_RETURN(const int64_t now_ns, StoreNowNs(env_, tier_));
  for (const ObjectInfo& info : infos) {
    if (now_ns - info.modified_ns < kLeftoverAgeNs) continue;
    LAMINA_RETURN_IF_ERROR(tier_.Delete(info.name));
    ++removed;
  }
  return absl::OkStatus();
}

absl::Status Sweeper::RemoveOldLeases(const LogRecord& newest, int64_t& removed) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(format::kWritersPrefix));
  for (const std::string& name : names) {
    const std::optional<uint64_t> incarnation = format::ParseWriterLeaseName(name);
    if (!incarnation || *incarnation >= newest.incarnation) continue;
    LAMINA_RETURN_IF_ERROR(tier_.Delete(format::WriterLeasePath(*incarnation)));
    ++removed;
  }
  return absl::OkStatus();
}

}  // namespace lamina::tier
