#include "sim/deletion_watch.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/units.h"
#include "sim/history_job.h"

namespace lamina::sim {
namespace {

using format::AttemptId;
using format::LogRecord;
using format::StepEntry;
using format::StepState;

constexpr int64_t kLeaseNs = 120 * base::kSecondNs;
constexpr std::string_view kSweepTask = "lamina-retention";
constexpr std::string_view kSaveTask = "lamina-save";

// The part of a path behind "<root>/<prefix>/"; empty: it is not there.
std::string_view Below(std::string_view path, std::string_view prefix) {
  const std::string_view root = kRoot;
  const bool below = path.size() > root.size() + prefix.size() + 2 && path.starts_with(root) && path[root.size()] == '/' &&
                     path.substr(root.size() + 1).starts_with(prefix) && path[root.size() + 1 + prefix.size()] == '/';
  return below ? path.substr(root.size() + prefix.size() + 2) : std::string_view();
}

std::string PathOf(std::string_view name) { return absl::StrCat(kRoot, "/", std::string(name)); }

}  // namespace

void DeletionWatch::OnOp(const env::SimOp& op) {
  if (!being_put_.empty()) NotePut(op);
  if ((op.what == "touch" || op.what == "unlink") && !Below(op.path, format::kReadersPrefix).empty()) NoteReader(op);
  // Its look at the directory, after which it may not come to put its file.
  if (op.what == "stat" && op.task != kSweepTask && op.path == PathOf(format::kReadersPrefix)) reads_under_[&op.process].clear();
  if (op.what == "link" && !Below(op.path, format::kLogPrefix).empty()) NoteRecord(op);
  if (lost_.has_value() && op.what == "list" && op.path == PathOf(format::kLogPrefix)) aware_.insert({&op.process, std::string(op.task)});
  if (op.what == "unlink" && status_.ok()) status_ = MayGoRecord(op);
  if (op.what != "unlink" || Below(op.path, format::kStepsPrefix).empty()) return;
  ++deletion_count_;
  if (status_.ok()) status_ = MayGo(op);
}

// The hook comes before the effect, which may come long after it: a lease counts from the touch before the last one.
void DeletionWatch::NoteReader(const env::SimOp& op) {
  const std::string path(op.path);
  const int64_t now_ns = world_.WallNs();
  const auto info = world_.Stat(path);
  const auto known = leases_.find(path);
  if (known != leases_.end()) {
    known->second.lost = known->second.lost || now_ns - known->second.held_ns >= kLeaseNs;
    if (info.ok()) known->second.held_ns = info->modified_ns;
    return;
  }
  if (op.what != "touch" || op.task == kSweepTask) return;  // which asks for the time there
  leases_[path] = {.held_ns = now_ns};
  reads_under_[&op.process] = path;
  being_put_[{&op.process, std::string(op.task)}] = path;
}

void DeletionWatch::NotePut(const env::SimOp& op) {
  const auto found = being_put_.find({&op.process, std::string(op.task)});
  if (found == being_put_.end()) return;
  Lease& lease = leases_[found->second];
  const auto info = world_.Stat(found->second);
  lease.put = info.ok();
  if (info.ok()) lease.held_ns = info->modified_ns;  // it may have slept on its way
  being_put_.erase(found);
}

void DeletionWatch::NoteRecord(const env::SimOp& op) {
  const std::optional<uint64_t> number = format::ParseLogName(Below(op.path, format::kLogPrefix));
  if (!number.has_value() || world_.Stat(std::string(op.path)).ok()) return;
  publishers_[*number].insert(&op.process);
  const auto [before, added] = readers_before_.try_emplace(*number);
  if (!added) return;
  for (const std::string& name : world_.Names(PathOf(format::kReadersPrefix))) before->second.insert(name);
}

bool DeletionWatch::Holds(const std::string& path) {
  const auto info = world_.Stat(path);
  const int64_t now_ns = world_.WallNs();
  if (!info.ok() || now_ns - info->modified_ns >= kLeaseNs) return false;
  const auto known = leases_.find(path);
  return known != leases_.end() && known->second.put && !known->second.lost && now_ns - known->second.held_ns < kLeaseNs;
}

bool DeletionWatch::IsProtected(const env::SimProcess& process) {
  const auto reads = reads_under_.find(&process);
  if (reads == reads_under_.end()) return true;
  if (reads->second.empty()) return false;
  const Lease& lease = leases_[reads->second];
  const auto info = world_.Stat(reads->second);
  if (info.ok() && world_.WallNs() - info->modified_ns >= kLeaseNs) return false;
  return lease.put && !lease.lost;
}

void DeletionWatch::Reboot(bool still_lost) {
  records_.clear();
  if (!still_lost) lost_.reset();
  const auto beyond = [newest = NewestNumber()](const auto& item) { return item.first > newest; };
  std::erase_if(readers_before_, beyond);
  std::erase_if(publishers_, beyond);
}

void DeletionWatch::Lose(LogRecord record) {
  records_.erase(record.number);
  lost_ = std::move(record);
}

uint64_t DeletionWatch::NewestNumber() {
  uint64_t newest = 0;
  for (const std::string& name : world_.Names(PathOf(format::kLogPrefix))) {
    newest = std::max(newest, format::ParseLogName(name).value_or(0));
  }
  return newest;
}

const LogRecord* DeletionWatch::Record(uint64_t number) {
  const auto known = records_.find(number);
  if (known != records_.end()) return &known->second;
  const std::string name = format::LogPath(number);
  absl::StatusOr<std::string> bytes = world_.ReadFile(PathOf(name));
  if (const auto old = old_records_.find(name); old != old_records_.end()) bytes = old->second;  // one in its place is void
  if (!bytes.ok()) return nullptr;
  absl::StatusOr<LogRecord> record = format::DecodeLogRecord(base::AsBytes(*bytes), number);
  return record.ok() ? &records_.emplace(number, *std::move(record)).first->second : nullptr;
}

// The first of the unbroken row of records that have it dropped. The newest ones may have forgotten it.
std::optional<DeletionWatch::Drop> DeletionWatch::DropOf(const AttemptId& attempt) {
  std::optional<Drop> drop;
  for (uint64_t number = NewestNumber(); number > 0; --number) {
    const LogRecord* record = Record(number);
    if (record == nullptr) continue;
    const auto step =
        std::find_if(record->steps.begin(), record->steps.end(), [&](const StepEntry& each) { return each.attempt == attempt; });
    if (step == record->steps.end() && !drop.has_value()) continue;
    if (step == record->steps.end() || step->state != StepState::kDropped) break;
    drop = {number, record->written_ns};
  }
  return drop;
}

std::optional<int64_t> DeletionWatch::DroppedNs(const AttemptId& attempt) {
  const std::optional<Drop> drop = DropOf(attempt);
  return drop.has_value() ? std::optional(drop->written_ns) : std::nullopt;
}

absl::Status DeletionWatch::MayGoDropped(const AttemptId& attempt) {
  const std::optional<Drop> drop = DropOf(attempt);
  if (!drop.has_value()) return absl::OkStatus();
  if (const int64_t left_ns = gc_grace_ns_ - (world_.WallNs() - drop->written_ns); left_ns > 0) {
    return absl::InternalError(absl::StrCat(left_ns / base::kMillisecondNs, " ms of the grace of record ", drop->number, " are left (I5)"));
  }
  for (const std::string& name : readers_before_[drop->number]) {
    if (Holds(absl::StrCat(PathOf(format::kReadersPrefix), "/", name)))
      return absl::InternalError(absl::StrCat("reader ", name, " registered before record ", drop->number, " dropped it, and reads (I5)"));
  }
  return absl::OkStatus();
}

// An old record goes when a newer one says that it counts no more, and no `open` ever does.
absl::Status DeletionWatch::MayGoRecord(const env::SimOp& op) {
  const std::optional<uint64_t> number = format::ParseLogName(Below(op.path, format::kLogPrefix));
  const absl::StatusOr<std::string> bytes = world_.ReadFile(std::string(op.path));
  if (!number.has_value() || !bytes.ok()) return absl::OkStatus();
  const LogRecord* newest = Record(NewestNumber());
  const bool counts = newest == nullptr || *number >= newest->floor;
  if (counts || newest->damaged != 0 || std::binary_search(newest->opens.begin(), newest->opens.end(), *number)) {
    return absl::InternalError(absl::StrCat("at operation ", op.number, " ", op.process.name(), " deletes record ", *number,
                                            ", which is to stay by record ", NewestNumber()));
  }
  old_records_.try_emplace(format::LogPath(*number), *bytes);
  return absl::OkStatus();
}

absl::Status DeletionWatch::MayGo(const env::SimOp& op) {
  const std::string_view name = Below(op.path, format::kStepsPrefix);
  const std::optional<AttemptId> attempt =
      format::ParseAttemptPath(absl::StrCat(std::string(format::kStepsPrefix), "/", std::string(name.substr(0, name.rfind('/')))));
  if (!attempt.has_value()) return absl::OkStatus();
  const auto broken = [&](const std::string& why) {
    return absl::InternalError(
        absl::StrCat("at operation ", op.number, " ", op.process.name(), " deletes ", std::string(op.path), ": ", why));
  };
  const bool unaware = lost_.has_value() && !aware_.contains({&op.process, std::string(op.task)});
  uint64_t number = unaware ? lost_->number : NewestNumber();
  const LogRecord* newest = unaware ? &*lost_ : Record(number);
  const bool damaged = newest == nullptr || newest->damaged != 0;
  while (newest == nullptr && number > 1) newest = Record(--number);
  if (newest == nullptr) return broken("there is no log (I5)");
  const auto step =
      std::find_if(newest->steps.begin(), newest->steps.end(), [&](const StepEntry& each) { return each.attempt == *attempt; });
  if (step != newest->steps.end() && step->state != StepState::kDropped) {
    return broken(absl::StrCat("record ", number, " has that step (I5)"));
  }
  if (op.task == kSaveTask) return absl::OkStatus();  // a rank gives its own pack up
  if (damaged) return broken("a record of the log is damaged (I5)");
  const absl::Status dropped = MayGoDropped(*attempt);
  if (!dropped.ok()) return broken(std::string(dropped.message()));
  if (step != newest->steps.end()) return absl::OkStatus();
  const bool aborted = std::count(newest->unswept.begin(), newest->unswept.end(), *attempt) > 0;
  if (aborted || attempt->incarnation < newest->incarnation) return absl::OkStatus();
  return broken(absl::StrCat("it is of the newest incarnation, and record ", number, " does not say how it ended (I4, I5)"));
}

}  // namespace lamina::sim
