#include "tier/sweeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"
#include "format/catalog.h"
#include "format/version.h"
#include "tier/file_names.h"
#include "tier/step_table.h"
#include "tier/takeover.h"

namespace lamina::tier {
namespace {

using format::AttemptId;
using format::LogRecord;
using format::StepEntry;
using format::StepState;

std::string PrefixOf(std::string_view path) { return std::string(path.substr(0, path.rfind('/'))); }

bool IsOfAttempt(std::string_view name) {
  return name == format::kCatalogName || name == format::kPacksName || format::ParsePackName(name).has_value();
}

// Whether a path under readers/ or probe/ has a name that Lamina gives.
bool IsOurs(std::string_view path, std::string_view prefix) { return format::IsNonce(path.substr(prefix.size() + 1)); }

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

absl::StatusOr<SweepReport> Sweeper::Sweep(const LogRecord& newest, const SweepOptions& options, const DroppedFor& dropped_for,
                                           const std::function<absl::Status()>& check) {
  swept_->KeepIf([&](const AttemptId& attempt) { return IsUnswept(newest, attempt) || FindAttempt(newest, attempt) != nullptr; });
  SweepReport report;
  LAMINA_ASSIGN_OR_RETURN(const std::set<AttemptId> attempts, Candidates(newest, options, dropped_for, report));
  std::set<std::string> named;
  if (!attempts.empty() || (options.count_bytes && !report.waiting.empty())) {
    LAMINA_ASSIGN_OR_RETURN(named, NamedPacks(newest));
  }
  absl::Status failed;
  bool first = true;
  for (const AttemptId& attempt : attempts) {
    if (!std::exchange(first, false)) LAMINA_RETURN_IF_ERROR(check());
    const absl::Status swept = SweepAttempt(attempt, named, options, report);
    if (failed.ok()) failed = swept;
  }
  if (options.count_bytes) {
    for (WaitingStep& step : report.waiting) {
      LAMINA_ASSIGN_OR_RETURN(step.bytes, BytesOf(step.attempt, named));
    }
    std::erase_if(report.waiting, [](const WaitingStep& step) { return step.bytes == 0; });  // another process has swept it
  }
  LAMINA_RETURN_IF_ERROR(failed);
  if (options.may_go_on && !options.may_go_on()) return report;
  if (newest.floor > log_floor_) LAMINA_RETURN_IF_ERROR(RemoveOldLog(newest, options, report));
  if (!options.dry_run) log_floor_ = newest.floor;
  if (tidied_ != newest.incarnation) LAMINA_RETURN_IF_ERROR(Tidy(newest, options, report));
  if (!options.dry_run) tidied_ = newest.incarnation;
  return report;
}

absl::StatusOr<std::set<AttemptId>> Sweeper::Candidates(const LogRecord& newest, const SweepOptions& options, const DroppedFor& dropped_for,
                                                        SweepReport& report) {
  std::set<AttemptId> attempts(newest.unswept.begin(), newest.unswept.end());
  if (tidied_ != newest.incarnation) {
    // Those of older incarnations that no record speaks of: their trainers died while they wrote.
    LAMINA_ASSIGN_OR_RETURN(const std::set<AttemptId> there, AttemptsThere());
    for (const AttemptId& attempt : there) {
      if (attempt.incarnation < newest.incarnation) attempts.insert(attempt);
    }
  }
  // No step of the table is touched but a dropped one, whatever else the record says of it.
  for (const StepEntry& step : newest.steps) attempts.erase(step.attempt);
  LAMINA_RETURN_IF_ERROR(AddDropped(newest, options, dropped_for, attempts, report));
  for (const AttemptId& attempt : swept_->attempts()) attempts.erase(attempt);
  return attempts;
}

absl::StatusOr<std::set<AttemptId>> Sweeper::AttemptsThere() {
  std::set<AttemptId> attempts;
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> steps, tier_.ListNames(format::kStepsPrefix));
  for (const std::string& step : steps) {
    if (!step.ends_with('/')) continue;
    const std::string prefix = JoinName(format::kStepsPrefix, PrefixOf(step));
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(prefix));
    for (const std::string& name : names) {
      if (!name.ends_with('/')) continue;
      const std::optional<AttemptId> attempt = format::ParseAttemptPath(JoinName(prefix, PrefixOf(name)));
      if (attempt.has_value()) attempts.insert(*attempt);
    }
  }
  return attempts;
}

// A step may go when its time of grace is over and the readers that were there at the first look from then on are gone. Whoever registered
// before the drop is among these: by then also a network file system shows its file.
absl::Status Sweeper::AddDropped(const LogRecord& newest, const SweepOptions& options, const DroppedFor& dropped_for,
                                 std::set<AttemptId>& attempts, SweepReport& report) {
  const std::set<AttemptId> swept = swept_->attempts();
  std::vector<StepEntry> dropped;
  for (const StepEntry& step : newest.steps) {
    if (step.state == StepState::kDropped && !swept.contains(step.attempt)) dropped.push_back(step);
  }
  if (dropped.empty()) return absl::OkStatus();
  // Before the list: what is made in a directory makes a network file system look at it anew.
  int64_t now_ns = env_.WallNs();
  if (!options.dry_run) {
    LAMINA_ASSIGN_OR_RETURN(now_ns, StoreNowNs(env_, tier_, format::kReadersPrefix));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> readers, tier_.List(format::kReadersPrefix));
  std::set<std::string> present;
  for (const ObjectInfo& reader : readers) {
    if (IsOurs(reader.name, format::kReadersPrefix) && now_ns - reader.modified_ns < options.reader_lease_ns) present.insert(reader.name);
  }
  for (const StepEntry& step : dropped) {
    auto before = readers_.find(step.attempt);
    if (before == readers_.end()) {
      LAMINA_ASSIGN_OR_RETURN(const int64_t age_ns, dropped_for(step, now_ns, options.reader_grace_ns));
      before = readers_.emplace(step.attempt, Readers{now_ns - age_ns, {}}).first;
    }
    const int64_t grace_left_ns = std::max<int64_t>(0, options.reader_grace_ns - (now_ns - before->second.dropped_ns));
    std::set<std::string>& names = before->second.names;
    if (!before->second.complete) names = present;
    before->second.complete = before->second.complete || grace_left_ns == 0;
    std::erase_if(names, [&](const std::string& name) { return !present.contains(name); });
    if (names.empty() && grace_left_ns == 0) {
      attempts.insert(step.attempt);
    } else {
      report.waiting.push_back({step.attempt, grace_left_ns, {names.begin(), names.end()}, 0});
    }
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

// What Lamina made in its directory, if that is there.
absl::StatusOr<std::vector<std::string>> Sweeper::NamesOf(const AttemptId& attempt) {
  std::vector<std::string> paths;
  LAMINA_ASSIGN_OR_RETURN(const bool lies_there, LiesThere(attempt));
  if (!lies_there) return paths;
  const std::string prefix = format::AttemptPath(attempt);
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(prefix));
  for (const std::string& name : names) {
    if (IsOfAttempt(name)) paths.push_back(JoinName(prefix, name));
  }
  return paths;
}

absl::StatusOr<Usage> Sweeper::Measure(const LogRecord& newest) {
  Usage usage;
  LAMINA_ASSIGN_OR_RETURN(const std::set<std::string> named, NamedPacks(newest));
  LAMINA_ASSIGN_OR_RETURN(const std::set<AttemptId> there, AttemptsThere());
  for (const AttemptId& attempt : there) {
    const StepEntry* step = FindAttempt(newest, attempt);
    const bool lives = step != nullptr && step->state != StepState::kDropped;
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, NamesOf(attempt));
    for (const std::string& path : paths) {
      const absl::StatusOr<ObjectInfo> info = tier_.Stat(path);
      if (absl::IsNotFound(info.status())) continue;  // deleted since it was listed
      LAMINA_RETURN_IF_ERROR(info.status());
      usage.disk_bytes += info->bytes;
      const bool is_needed =
          named.contains(path) || (lives && (path == format::CatalogPath(attempt) || path == format::PacksPath(attempt)));
      if (is_needed) usage.needed_bytes += info->bytes;
    }
  }
  return usage;
}

absl::StatusOr<int64_t> Sweeper::BytesOf(const AttemptId& attempt, const std::set<std::string>& named) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, NamesOf(attempt));
  int64_t bytes = 0;
  for (const std::string& path : paths) {
    if (named.contains(path)) continue;
    const absl::StatusOr<ObjectInfo> info = tier_.Stat(path);
    if (info.ok()) bytes += info->bytes;
  }
  return bytes;
}

absl::Status Sweeper::SweepAttempt(const AttemptId& attempt, const std::set<std::string>& named, const SweepOptions& options,
                                   SweepReport& report) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, NamesOf(attempt));
  bool gone = true;
  for (const std::string& path : paths) {
    if (options.may_go_on && !options.may_go_on()) return absl::OkStatus();
    if (named.contains(path)) {
      gone = false;
    } else {
      LAMINA_RETURN_IF_ERROR(Remove(path, options, report));
    }
  }
  if (!gone || options.dry_run) return absl::OkStatus();
  const std::string prefix = format::AttemptPath(attempt);
  LAMINA_ASSIGN_OR_RETURN(const bool lies_there, LiesThere(attempt));
  if (lies_there) LAMINA_RETURN_IF_ERROR(tier_.RemovePrefix(prefix));
  if (lies_there) LAMINA_RETURN_IF_ERROR(tier_.RemovePrefix(PrefixOf(prefix)));
  swept_->Add(attempt);
  readers_.erase(attempt);
  return absl::OkStatus();
}

absl::Status Sweeper::Remove(const std::string& name, const SweepOptions& options, SweepReport& report) {
  ObjectInfo info{.name = name};
  if (options.count_bytes) {
    const absl::StatusOr<ObjectInfo> found = tier_.Stat(name);
    if (absl::IsNotFound(found.status())) return absl::OkStatus();
    LAMINA_RETURN_IF_ERROR(found.status());
    info = *found;
  }
  if (!options.dry_run) LAMINA_RETURN_IF_ERROR(tier_.Delete(name));
  report.removed.push_back(std::move(info));
  return absl::OkStatus();
}

absl::Status Sweeper::Tidy(const LogRecord& newest, const SweepOptions& options, SweepReport& report) {
  LAMINA_RETURN_IF_ERROR(RemoveOldLeases(newest, options, report));
  if (options.dry_run) return absl::OkStatus();
  for (const std::string_view prefix : {format::kReadersPrefix, format::kProbePrefix}) {
    LAMINA_RETURN_IF_ERROR(RemoveOldNonces(prefix, options, report));
  }
  for (const std::string_view prefix : {std::string_view(), format::kLogPrefix, format::kProbePrefix}) {
    LAMINA_RETURN_IF_ERROR(tier_.RemoveLeftovers(prefix, kLeftoverAgeNs).status());
  }
  return absl::OkStatus();
}

absl::Status Sweeper::RemoveOldLog(const LogRecord& newest, const SweepOptions& options, SweepReport& report) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(format::kLogPrefix));
  for (const std::string& name : names) {
    const std::optional<uint64_t> number = format::ParseLogName(name);
    if (!number || *number >= newest.floor || std::binary_search(newest.opens.begin(), newest.opens.end(), *number)) continue;
    LAMINA_RETURN_IF_ERROR(Remove(format::LogPath(*number), options, report));
  }
  return absl::OkStatus();
}

absl::Status Sweeper::RemoveOldLeases(const LogRecord& newest, const SweepOptions& options, SweepReport& report) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(format::kWritersPrefix));
  for (const std::string& name : names) {
    std::optional<uint64_t> incarnation = format::ParseWriterLeaseName(name);
    if (!incarnation) incarnation = format::ParseSignOfLifeName(name);
    if (!incarnation || *incarnation >= newest.incarnation) continue;
    LAMINA_RETURN_IF_ERROR(Remove(JoinName(format::kWritersPrefix, name), options, report));
  }
  return absl::OkStatus();
}

// Files of readers and probes that died a day ago.
absl::Status Sweeper::RemoveOldNonces(std::string_view prefix, const SweepOptions& options, SweepReport& report) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> infos, tier_.List(prefix));
  if (infos.empty()) return absl::OkStatus();
  LAMINA_ASSIGN_OR_RETURN(const int64_t now_ns, StoreNowNs(env_, tier_, prefix));
  for (const ObjectInfo& info : infos) {
    if (IsOurs(info.name, prefix) && now_ns - info.modified_ns >= kLeftoverAgeNs)
      LAMINA_RETURN_IF_ERROR(Remove(info.name, options, report));
  }
  return absl::OkStatus();
}

}  // namespace lamina::tier
