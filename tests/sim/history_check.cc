#include "sim/history_check.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/store.h"
#include "env/sim_random.h"
#include "format/pack.h"
#include "format/paths.h"
#include "testing/direct_queue.h"
#include "tier/file_tier.h"
#include "tier/log.h"

namespace lamina::sim {
namespace {

using format::AttemptId;
using format::LogRecord;
using format::RecordKind;
using format::StepEntry;
using format::StepState;
using testing::Moment;

constexpr int64_t kRecordHeadBytes = 64;  // of a copy, which its checksum covers for certain
constexpr int64_t kWriterLeaseNs = 60 * base::kSecondNs;

absl::Status Broken(const std::string& what) { return absl::InternalError(what); }

// Codes by which every rank is told the same.
bool IsOfAll(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsResourceExhausted(status) ||
         absl::IsPermissionDenied(status);
}

// Its step was dropped while it was read, and is gone.
constexpr absl::string_view kLateText = "was dropped while reading: '";
bool IsLate(const absl::Status& status) { return absl::StrContains(status.message(), kLateText); }

}  // namespace

std::map<std::string, std::string> HistoryCheck::RootFiles() const {
  std::map<std::string, std::string> files;
  const std::string prefix = absl::StrCat(kRoot, "/");
  for (auto& [path, bytes] : world_.Files()) {
    if (absl::StartsWith(path, prefix)) files.emplace(path.substr(prefix.size()), bytes);
  }
  return files;
}

std::string HistoryCheck::AttemptOf(const std::string& name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string::npos || !format::ParseAttemptPath(name.substr(0, slash)).has_value()) return {};
  return name.substr(0, slash);
}

uint64_t HistoryCheck::RecordCount() const {
  uint64_t newest = 0;
  for (const std::string& name : world_.Names(absl::StrCat(kRoot, "/", std::string(format::kLogPrefix)))) {
    newest = std::max(newest, format::ParseLogName(name).value_or(0));
  }
  return newest;
}

std::vector<int64_t> HistoryCheck::KnownSteps() const {
  std::vector<int64_t> steps;
  if (log_.newest_number() == 0) return steps;
  for (const StepEntry& step : log_.Newest().steps) {
    if (step.state != StepState::kDropped) steps.push_back(step.attempt.step);
  }
  return steps;
}

int64_t HistoryCheck::commit_count() const {
  return std::count_if(log_.records().begin(), log_.records().end(),
                       [](const LogRecord& record) { return record.kind == RecordKind::kCommit; });
}

void HistoryCheck::CountDeletions(int64_t& drops, int64_t& deletions, int64_t& reads, int64_t& late_reads) const {
  const auto dropped = [](const LogRecord& record) {
    return std::count_if(record.steps.begin(), record.steps.end(), [](const StepEntry& step) { return step.state == StepState::kDropped; });
  };
  for (uint64_t number = 2; number <= log_.newest_number(); ++number) {
    if (log_.At(number).kind == RecordKind::kDrop) drops += dropped(log_.At(number)) - dropped(log_.At(number - 1));
  }
  deletions = watch_.deletion_count();
  for (const std::shared_ptr<Reading>& reading : readings_) {
    for (const StepRead& step : reading->steps) ++(step.status.ok() ? reads : late_reads);
  }
}

std::string HistoryCheck::Describe() const {
  constexpr const char* kKinds[] = {"?", "open", "commit", "abort", "rewind", "drop", "rewrite"};
  std::string text = "log:";
  for (const LogRecord& record : log_.records()) {
    absl::StrAppend(&text, " ", record.number, " ", kKinds[static_cast<size_t>(record.kind)]);
    if (record.kind == RecordKind::kOpen)
      absl::StrAppend(&text, " by job ", JobOf(record.number) == nullptr ? 0 : JobOf(record.number)->ordinal());
    if (record.kind == RecordKind::kCommit || record.kind == RecordKind::kAbort)
      absl::StrAppend(&text, " ", format::AttemptPath(record.subject));
    absl::StrAppend(&text, " (head ", record.head, ");");
  }
  for (const std::string& attempt : damaged_) absl::StrAppend(&text, " damaged: ", attempt, ";");
  return text;
}

void HistoryCheck::SetGraces(int64_t gc_grace_ns, int64_t abandoned_ns) {
  watch_.set_gc_grace_ns(gc_grace_ns);
  abandoned_ns_ = abandoned_ns;
}

Seen HistoryCheck::Look(const env::SimProcess& reader) { return {RecordCount(), world_.WallNs(), watch_.IsProtected(reader)}; }

void HistoryCheck::Reboot() {
  if (lost_.has_value()) {  // it may have gone as a whole, and its number be another's
    const auto bytes = world_.ReadFile(absl::StrCat(kRoot, "/", format::LogPath(lost_->number)));
    if (!bytes.ok() || format::DecodeLogRecord(base::AsBytes(*bytes), lost_->number).ok()) lost_.reset();
  }
  watch_.Reboot(lost_.has_value());
}

// What it dropped may have been swept, and counts again by the record before it.
void HistoryCheck::LoseNewest(env::SimRandom& random) {
  const auto read = [this](uint64_t number) -> absl::StatusOr<LogRecord> {
    LAMINA_ASSIGN_OR_RETURN(const std::string bytes, world_.ReadFile(absl::StrCat(kRoot, "/", format::LogPath(number))));
    return format::DecodeLogRecord(base::AsBytes(bytes), number);
  };
  const uint64_t number = RecordCount();
  if (lost_.has_value() || number < 2) return;
  const absl::StatusOr<LogRecord> record = read(number);
  const absl::StatusOr<LogRecord> before = read(number - 1);
  if (!record.ok() || !before.ok()) return;
  const std::string path = absl::StrCat(kRoot, "/", format::LogPath(number));
  const int64_t half = world_.Stat(path)->bytes / 2;
  for (const int64_t begin : {int64_t{0}, half}) world_.CorruptByte(path, begin + random.Below(kRecordHeadBytes)).IgnoreError();
  if (format::DecodeLogRecord(base::AsBytes(*world_.ReadFile(path)), number).ok()) return;
  lost_ = *record;
  rotten_.insert(number);
  watch_.Lose(*record);
  for (const StepEntry& step : record->steps) {
    if (step.state == StepState::kDropped) damaged_.insert(format::AttemptPath(step.attempt));
  }
}

void HistoryCheck::Rot(uint64_t seed) {
  env::SimRandom random(seed);
  if (random.Chance(0.2)) return LoseNewest(random);
  std::vector<std::pair<std::string, int64_t>> files;
  for (const auto& [name, bytes] : RootFiles()) {
    const bool record = name.starts_with("log/") && format::ParseLogName(name.substr(4)).has_value();
    if (!bytes.empty() && (record || !AttemptOf(name).empty())) files.emplace_back(name, std::ssize(bytes));
  }
  // Half of the time behind the header of one of the newest packs: what a restore reads last, and finds in the midst of its work.
  const bool is_late = random.Chance(0.5);
  if (is_late) {
    const std::string newest = files.empty() ? "" : AttemptOf(files.back().first);
    std::erase_if(files, [&](const auto& file) { return AttemptOf(file.first) != newest || file.second <= format::kPackHeaderBytes; });
  }
  if (files.empty()) return;
  const auto& [name, bytes] = files[static_cast<size_t>(random.Below(std::ssize(files)))];
  int64_t offset = is_late ? format::kPackHeaderBytes + random.Below(bytes - format::kPackHeaderBytes) : random.Below(bytes);
  const std::string attempt = AttemptOf(name);
  if (!attempt.empty()) {
    damaged_.insert(attempt);
  } else {
    // Always the same copy of a record, so that the other one stays.
    const uint64_t number = *format::ParseLogName(name.substr(4));
    if (lost_.has_value() && lost_->number == number) return;
    offset = offset % (bytes / 2) + (number % 2 == 0 ? 0 : bytes / 2);
    rotten_.insert(number);
  }
  world_.CorruptByte(absl::StrCat(kRoot, "/", name), offset).IgnoreError();  // the file is there
}

void HistoryCheck::NoteMisdirected() {
  const size_t root_bytes = std::string_view(kRoot).size() + 1;
  for (const std::string& path : world_.misdirected_files()) {
    if (path.size() <= root_bytes) continue;
    const std::string attempt = AttemptOf(path.substr(root_bytes));
    if (!attempt.empty()) damaged_.insert(attempt);
  }
}

std::vector<uint64_t> HistoryCheck::OpensOf(const HistoryJob& job) const {
  std::vector<uint64_t> opens;
  for (const LogRecord& record : log_.records()) {
    if (record.kind == RecordKind::kOpen && record.trainer.pid == job.process(0).Self().pid) opens.push_back(record.number);
  }
  return opens;
}

// The last record before another job's claim. What came after it a fenced job need not see.
uint64_t HistoryCheck::FenceOf(const HistoryJob& job) const {
  const std::vector<uint64_t> opens = OpensOf(job);
  for (uint64_t number = opens.empty() ? 1 : opens.front(); number <= log_.newest_number(); ++number) {
    if (log_.At(number).kind == RecordKind::kOpen && JobOf(number) != &job) return number - 1;
  }
  return log_.newest_number();
}

const HistoryJob* HistoryCheck::JobOf(uint64_t incarnation) const {
  for (const std::unique_ptr<HistoryJob>& job : jobs_) {
    if (log_.At(incarnation).trainer.pid == job->process(0).Self().pid) return job.get();
  }
  return nullptr;
}

HistoryCheck::SaveOfJob HistoryCheck::SaveWithLife(int64_t life) const {
  for (const std::unique_ptr<HistoryJob>& job : jobs_) {
    uint32_t ordinal = 0;
    for (const Action& action : job->script().actions) {
      if (action.kind != Action::Kind::kSave) continue;
      if (action.life == life) return {job.get(), ordinal};
      ++ordinal;
    }
  }
  return {};
}

uint64_t HistoryCheck::CommitOf(const HistoryJob& job, int64_t step, uint32_t ordinal) const {
  for (const uint64_t incarnation : OpensOf(job)) {
    if (const uint64_t commit = log_.CommitOf({step, incarnation, ordinal}); commit != 0) return commit;
  }
  return 0;
}

absl::Status HistoryCheck::All() {
  LAMINA_RETURN_IF_ERROR(watch_.status());
  std::map<std::string, std::string> files = watch_.old_records();
  files.merge(RootFiles());
  LAMINA_ASSIGN_OR_RETURN(log_, LogAudit::Of(files, {.abandoned_ns = abandoned_ns_, .lost = lost_}));
  LAMINA_RETURN_IF_ERROR(CheckPublishers());
  LAMINA_RETURN_IF_ERROR(CheckClaims());
  restore_count_ = 0;
  for (const std::unique_ptr<HistoryJob>& job : jobs_) {
    const absl::Status told = CheckTold(*job);
    if (!told.ok()) return base::Annotate(told, absl::StrCat("job ", job->ordinal()));
  }
  LAMINA_RETURN_IF_ERROR(CheckBystanders());
  return CheckSteps();
}

absl::Status HistoryCheck::CheckTold(const HistoryJob& job) {
  for (int32_t rank = 0; rank < job.rank_count(); ++rank) {
    if (absl::IsInternal(job.status(rank))) return Broken(absl::StrCat("rank ", rank, ": ", job.status(rank).message()));
    uint64_t from = 0;  // the records that were there when this rank was last told something: a restore has seen them
    for (const Told& told : job.told(rank)) {
      if (absl::IsInternal(told.status)) return Broken(absl::StrCat("rank ", rank, ": ", told.status.message()));
      const bool saved = told.kind == Action::Kind::kSave;
      const absl::Status status = saved ? CheckSave(job, told) : CheckRestore(job, told, from);
      if (!status.ok()) return base::Annotate(status, absl::StrCat("rank ", rank));
      if (job.script().mode == Mode::kTrain && told.status.ok()) from = std::min(told.records, FenceOf(job));
    }
  }
  return CheckTogether(job);
}

absl::Status HistoryCheck::CheckSave(const HistoryJob& job, const Told& told) {
  const uint64_t commit = CommitOf(job, told.moment.step, told.save_ordinal);
  const std::string what = absl::StrCat("the save of ", testing::TreeText(told.moment));
  if (told.status.ok() && !told.skipped) {
    if (commit == 0) return Broken(absl::StrCat(what, " was told to be committed, and the log lacks it (I3)"));
    if (commit > told.records) return Broken(absl::StrCat(what, " was told to be committed before it was (I3)"));
    return absl::OkStatus();
  }
  if (lost_.has_value() && commit == lost_->number) return absl::OkStatus();  // it was published, and does not read back
  const bool unknown = absl::StrContains(told.status.message(), "outcome unknown");
  if (commit != 0 && !unknown) {
    return Broken(absl::StrCat(what, " was told to have ", told.skipped ? "been skipped" : "failed", ", and record ", commit,
                               " commits it: ", told.status.ToString()));
  }
  if (told.skipped && job.script().layouts.size() < 2) return Broken(absl::StrCat(what, " was skipped, though no layout changed"));
  return absl::OkStatus();
}

// A restore that was told to be done stands at a step that was the head while it ran: the newest, or the one that was asked for and that
// the log was rewound to. Unasked, only damage moves it to an older one, and it tells of each step that it passes over.
absl::Status HistoryCheck::CheckRestore(const HistoryJob& job, const Told& told, uint64_t from) {
  if (!told.status.ok()) return CheckDropped(told.status, {told.records, told.told_ns, told.is_protected}, /*may_write=*/true);
  const std::string what = absl::StrCat("the restore that gave ", testing::TreeText(told.moment));
  for (const uint64_t open : OpensOf(job)) {
    if (open <= told.records) from = std::max(from, open);
  }
  if (job.script().mode == Mode::kTrain && from == 0) return Broken(absl::StrCat(what, " came without a claim"));
  uint64_t commit = 0;
  if (told.moment.step >= 0) {
    ++restore_count_;
    const SaveOfJob save = SaveWithLife(told.moment.life);
    if (save.job != nullptr) commit = CommitOf(*save.job, told.moment.step, save.ordinal);
    if (commit == 0) return Broken(absl::StrCat(what, " is of a save that was never committed"));
  }
  if (told.asked.has_value() && told.moment.step != *told.asked) return Broken(absl::StrCat(what, " was to give step ", *told.asked));
  const bool may_rewind = told.asked.has_value() || job.script().mode == Mode::kRead;
  for (uint64_t number = from; number <= std::min(told.records, log_.newest_number()); ++number) {
    const bool rewinds = number > from && log_.At(number).kind == RecordKind::kRewind && JobOf(log_.At(number).incarnation) == &job;
    if (rewinds && !may_rewind) break;
    const bool lost = number > 0 && log_.At(number).damaged > log_.HeadAt(number);  // a record, and perhaps a step with it
    if (!told.asked.has_value() && lost != told.passed_over.contains(-1)) continue;
    if (log_.HeadAt(number) == commit) return absl::OkStatus();
    for (const uint64_t newer : log_.LineAt(number)) {
      if (newer == commit) return absl::OkStatus();
      const AttemptId& attempt = log_.At(newer).subject;
      if (!damaged_.contains(format::AttemptPath(attempt)) || !told.passed_over.contains(attempt.step)) break;
    }
  }
  return Broken(absl::StrCat(what, ", commit ", commit, ", which was not the head in records ", from, " to ", told.records,
                             ", or was come to in silence (I9)"));
}

absl::Status HistoryCheck::RestoredDespiteDamage(const HistoryJob& job) const {
  const std::vector<uint64_t> opens = OpensOf(job);
  if (opens.empty()) return Broken("nothing disturbed this launch, and it did not claim the root");
  const std::vector<uint64_t> line = log_.LineAt(opens.front());
  const auto is_whole = [this](uint64_t commit) { return !damaged_.contains(format::AttemptPath(log_.At(commit).subject)); };
  const auto whole = std::find_if(line.begin(), line.end(), is_whole);
  if (whole == line.end()) return absl::OkStatus();
  const bool was_dropped = IsDropped(log_.At(*whole).subject.step);  // perhaps while it was restored
  for (int32_t rank = 0; rank < job.rank_count(); ++rank) {
    if (job.told(rank).empty()) return Broken("nothing disturbed this launch, and a rank was told nothing");
    const Told& first = job.told(rank).front();
    // When it chose, damaged steps may have been all that was left.
    const std::vector<uint64_t> left = log_.LineAt(first.records);
    const bool none_left = absl::IsDataLoss(first.status) && std::none_of(left.begin(), left.end(), is_whole);
    const bool excused = none_left || (was_dropped && absl::IsNotFound(first.status) && !IsLate(first.status));
    if (!first.asked.has_value() && !first.status.ok() && !excused)
      return Broken(absl::StrCat("a restore was to pass over damage, and failed: ", first.status.ToString()));
    for (const Told& told : job.told(rank)) {
      if (told.kind == Action::Kind::kSave && !told.status.ok() && !job.script().abandons && !HeadWasDropped(job))
        return Broken(absl::StrCat("a save on a root with damage was to commit, and failed: ", told.status.ToString()));
    }
  }
  return absl::OkStatus();
}

// What every rank sees, a restore raises on all of them (I6).
absl::Status HistoryCheck::CheckTogether(const HistoryJob& job) {
  std::vector<std::vector<const Told*>> restores;
  for (int32_t rank = 0; rank < job.rank_count(); ++rank) {
    size_t ordinal = 0;
    for (const Told& told : job.told(rank)) {
      if (told.kind != Action::Kind::kRestore) continue;
      if (restores.size() <= ordinal) restores.emplace_back();
      restores[ordinal++].push_back(&told);
    }
  }
  for (const std::vector<const Told*>& restore : restores) {
    const Told* done = nullptr;
    const Told* failed = nullptr;
    for (const Told* told : restore) {
      if (told->status.ok()) {
        if (done != nullptr && done->moment != told->moment) return Broken("ranks restored different steps (I6)");
        done = told;
      } else if (IsOfAll(told->status)) {
        failed = told;
      }
    }
    if (done != nullptr && failed != nullptr)
      return Broken(absl::StrCat("a restore failed on some ranks only (I6): ", failed->status.ToString()));
  }
  return absl::OkStatus();
}

// What a step that is gone was told to be: dropped, which it truly is, and longer ago than the grace. To a reader that holds its lease
// nothing of the kind is told.
absl::Status HistoryCheck::CheckDropped(const absl::Status& told, const Seen& seen, bool may_write) {
  const absl::string_view message = told.message();
  if (!IsLate(told) || log_.is_damaged()) return absl::OkStatus();
  const size_t begin = message.find(kLateText) + kLateText.size();
  const std::string name(message.substr(begin, message.find('\'', begin) - begin));
  const std::optional<format::AttemptId> attempt = format::ParseAttemptPath(AttemptOf(name));
  if (!attempt.has_value()) return Broken(absl::StrCat("of which attempt is that: ", message));
  const std::optional<int64_t> dropped_ns = watch_.DroppedNs(*attempt);
  if (!dropped_ns.has_value()) return Broken(absl::StrCat("the log does not say so: ", message));
  if (seen.now_ns - *dropped_ns < watch_.gc_grace_ns()) return Broken(absl::StrCat("within the time of grace (I5): ", message));
  if (may_write && seen.is_protected) return Broken(absl::StrCat("told to who holds a lease (I5): ", message));
  return absl::OkStatus();
}

absl::Status HistoryCheck::CheckBystanders() {
  for (const std::shared_ptr<Reading>& reading : readings_) {
    const absl::Status& status = reading->status;
    const bool lost = absl::IsDataLoss(status) && !damaged();
    if (absl::IsInternal(status) || lost) return Broken(absl::StrCat("a reader (I5): ", status.ToString()));
    for (const StepRead& step : reading->steps) {
      const absl::Status dropped = CheckDropped(step.status, step.seen, reading->plan.may_write);
      if (!dropped.ok()) return base::Annotate(dropped, "a reader");
    }
  }
  for (const std::shared_ptr<Collecting>& collecting : collectings_) {
    const absl::Status& status = collecting->status;
    const bool lost = absl::IsDataLoss(status) && !damaged();
    if (absl::IsInternal(status) || absl::IsAborted(status) || lost) return Broken(absl::StrCat("gc: ", status.ToString()));
  }
  return absl::OkStatus();
}

// A trainer that is fenced neither drops nor rewinds (I4): such records name only who is followed, not who wrote them.
absl::Status HistoryCheck::CheckPublishers() {
  for (const LogRecord& record : log_.records()) {
    const bool drops = record.kind == RecordKind::kDrop && !absl::StartsWith(record.reason, "gc");
    if (!drops && record.kind != RecordKind::kRewind) continue;
    const HistoryJob* job = JobOf(record.incarnation);
    const std::set<const env::SimProcess*>& publishers = watch_.PublishersOf(record.number);
    const bool own = job != nullptr && std::any_of(publishers.begin(), publishers.end(), [&](const env::SimProcess* publisher) {
                       return std::count(job->processes().begin(), job->processes().end(), publisher) > 0;
                     });
    if (!own && !publishers.empty()) {
      return Broken(absl::StrCat("record ", record.number, " of incarnation ", record.incarnation, " is by ", (*publishers.begin())->name(),
                                 ", which is fenced (I4)"));
    }
  }
  return absl::OkStatus();
}

// Who may not take the root over, nor can see that its trainer is dead, waits until that was silent for a minute (I4).
absl::Status HistoryCheck::CheckClaims() const {
  for (const LogRecord& record : log_.records()) {
    if (record.kind != RecordKind::kOpen || record.opens.size() < 2) continue;
    const LogRecord& former = log_.At(record.opens[record.opens.size() - 2]);
    const HistoryJob* job = JobOf(record.number);
    const bool may = job == nullptr || job->script().takeover || record.trainer.run_id == former.trainer.run_id ||
                     record.trainer.host == former.trainer.host;
    if (!may && record.written_ns - former.written_ns < kWriterLeaseNs)
      return Broken(
          absl::StrCat("record ", record.number, " takes the root from incarnation ", former.number, " while that is alive (I4)"));
  }
  return absl::OkStatus();
}

bool HistoryCheck::IsDropped(int64_t step) const {
  return log_.newest_number() > 0 && std::none_of(log_.Newest().steps.begin(), log_.Newest().steps.end(), [&](const StepEntry& each) {
           return each.attempt.step == step && each.state != StepState::kDropped;
         });
}

// Whether gc took the head from under the job: it may where it looked before the job was there.
bool HistoryCheck::HeadWasDropped(const HistoryJob& job) const {
  for (uint64_t number = 2; number <= log_.newest_number(); ++number) {
    const LogRecord& record = log_.At(number);
    if (record.kind != RecordKind::kDrop || record.head == log_.At(number - 1).head || JobOf(record.incarnation) != &job) continue;
    for (size_t i = launched_collectings_; i < collectings_.size(); ++i) {
      if (collectings_[i]->incarnation != record.incarnation) return true;
    }
  }
  return false;
}

absl::Status HistoryCheck::Undisturbed(const HistoryJob& job) {
  LAMINA_RETURN_IF_ERROR(BystandersUndisturbed());
  if (damaged()) return RestoredDespiteDamage(job);
  const auto excused = [this](const Told& told) {
    return told.asked.has_value() && absl::IsNotFound(told.status) && IsDropped(*told.asked) && !IsLate(told.status);
  };
  if (job.AllOk(excused) || HeadWasDropped(job)) return absl::OkStatus();
  return Broken("nothing disturbed this launch, and it failed");
}

absl::Status HistoryCheck::BystandersUndisturbed() const {
  for (size_t i = launched_readings_; i < readings_.size(); ++i) {
    const absl::Status& status = readings_[i]->status;
    if (!status.ok() && !absl::IsNotFound(status) && !damaged())
      return Broken(absl::StrCat("nothing disturbed a reader, and it failed: ", status.ToString()));
    for (const StepRead& step : readings_[i]->steps) {
      if (readings_[i]->plan.may_write && IsLate(step.status) && !damaged())
        return Broken(absl::StrCat("nothing disturbed a reader, and its step went (I5): ", step.status.ToString()));
    }
  }
  for (size_t i = launched_collectings_; i < collectings_.size(); ++i) {
    const absl::Status& status = collectings_[i]->status;
    if (!status.ok() && !absl::IsNotFound(status) && !absl::IsFailedPrecondition(status) && !damaged())
      return Broken(absl::StrCat("nothing disturbed gc, and it failed: ", status.ToString()));
  }
  return absl::OkStatus();
}

absl::Status HistoryCheck::CheckSteps() {
  if (log_.newest_number() == 0) return absl::OkStatus();
  env::SimProcess& looker = world_.NewProcess("looker");
  looker.SleepNs(world_.stale_ns());
  testing::DirectQueue queue;
  tier::FileTier tier(looker, kRoot, queue);
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Store> store, engine::Store::Open(looker, tier));
  LAMINA_ASSIGN_OR_RETURN(const engine::Verification verification, store->Verify(std::nullopt, /*full=*/true));
  std::set<std::string> reported;
  for (const engine::Problem& problem : verification.problems) {
    const std::string attempt = AttemptOf(problem.file);
    reported.insert(attempt);
    const bool rotten = problem.file.starts_with("log/") && rotten_.contains(format::ParseLogName(problem.file.substr(4)).value_or(0));
    if (!rotten && !damaged_.contains(attempt)) return Broken(absl::StrCat("verify finds damage that nothing did (I1): ", problem.message));
  }
  for (const StepEntry& step : log_.Newest().steps) {
    if (step.state == StepState::kDropped) continue;
    const std::string path = format::AttemptPath(step.attempt);
    const absl::StatusOr<Moment> moment = testing::CheckListedStep(looker, tier, *store, step);
    if (!moment.ok()) {
      if (!IsDamaged(step) || absl::IsInternal(moment.status())) {
        return Broken(absl::StrCat("step ", path, " does not read back (I1, I5): ", moment.status().ToString()));
      }
      if (!reported.contains(path)) return Broken(absl::StrCat("step ", path, " is damaged, and verify says nothing (I1)"));
      continue;
    }
    const SaveOfJob save = SaveWithLife(moment->life);
    const bool own = save.job != nullptr && JobOf(step.attempt.incarnation) == save.job && save.ordinal == step.attempt.attempt;
    if (!own || moment->step != step.attempt.step) {
      return Broken(absl::StrCat("step ", path, " holds the values of ", testing::TreeText(*moment), " (I2)"));
    }
  }
  return absl::OkStatus();
}

absl::Status HistoryCheck::NothingLeft() {
  if (world_.open_file_count() != 0) return Broken(absl::StrCat(world_.open_file_count(), " files are left open"));
  if (damaged()) return absl::OkStatus();  // what cannot be restored, or tells not what it needs, keeps a job from sweeping
  std::set<std::string> live;
  for (const StepEntry& step : log_.Newest().steps) {
    if (step.state != StepState::kDropped) live.insert(format::AttemptPath(step.attempt));
  }
  for (const auto& [name, bytes] : RootFiles()) {
    const std::string attempt = AttemptOf(name);
    const bool record = name.starts_with("log/") && format::ParseLogName(name.substr(4)).has_value();
    const bool needed = attempt.empty() ? name == format::kStorePath || record : live.contains(attempt);
    if (!needed) return Broken(absl::StrCat("'", name, "' is left, and nothing needs it (I5)"));
  }
  env::SimProcess& gc = world_.NewProcess("gc");
  gc.SleepNs(world_.stale_ns());
  testing::DirectQueue queue;
  tier::FileTier tier(gc, kRoot, queue);
  tier::Log log(gc, tier);
  LAMINA_ASSIGN_OR_RETURN(const tier::SweepReport swept, log.Sweep(std::nullopt, {.reader_grace_ns = 0}));
  const auto removed = std::count_if(swept.removed.begin(), swept.removed.end(), [](const tier::ObjectInfo& info) {
    return !info.name.starts_with("log/");  // old records go when a trainer sweeps the next time
  });
  if (removed > 0 || !swept.waiting.empty()) {
    return Broken(absl::StrCat("gc removes ", removed, " files, and ", swept.waiting.size(), " steps wait (I5)"));
  }
  LAMINA_ASSIGN_OR_RETURN(const tier::Usage usage, log.MeasureUsage());
  if (usage.disk_bytes > 2 * usage.needed_bytes || usage.needed_bytes == 0) {
    return Broken(absl::StrCat("steps take ", usage.disk_bytes, " bytes, and need ", usage.needed_bytes, " (I5)"));
  }
  return absl::OkStatus();
}

}  // namespace lamina::sim
