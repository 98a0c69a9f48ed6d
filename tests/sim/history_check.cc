#include "sim/history_check.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/store.h"
#include "env/sim_random.h"
#include "format/paths.h"
#include "testing/direct_queue.h"
#include "tier/file_tier.h"

namespace lamina::sim {
namespace {

using format::AttemptId;
using format::LogRecord;
using format::RecordKind;
using format::StepEntry;
using format::StepState;
using testing::Moment;

constexpr double kReaderRetryS = 8;
constexpr int64_t kReaderNsMax = 500 * base::kSecondNs;  // within the grace that deleting leaves it

absl::Status Broken(const std::string& what) { return absl::InternalError(what); }

// Reads every step that is listed now.
absl::Status ReadAllSteps(env::Env& env) {
  testing::DirectQueue queue;
  tier::FileTier tier(env, kRoot, queue);
  const absl::StatusOr<std::unique_ptr<engine::Store>> store = engine::Store::Open(env, tier);
  LAMINA_RETURN_IF_ERROR(store.status());
  LAMINA_ASSIGN_OR_RETURN(const std::vector<engine::ListedStep> steps, (*store)->Steps(/*all=*/true));
  for (const engine::ListedStep& step : steps) {
    LAMINA_RETURN_IF_ERROR(testing::CheckListedStep(env, tier, **store, step.entry, kReaderRetryS).status());
  }
  return absl::OkStatus();
}

// Codes by which every rank is told the same.
bool IsOfAll(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsNotFound(status) || absl::IsResourceExhausted(status) ||
         absl::IsPermissionDenied(status);
}

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
  for (const StepEntry& step : log_.At(log_.newest_number()).steps) steps.push_back(step.attempt.step);
  return steps;
}

int64_t HistoryCheck::commit_count() const {
  return std::count_if(log_.records().begin(), log_.records().end(),
                       [](const LogRecord& record) { return record.kind == RecordKind::kCommit; });
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

void HistoryCheck::StartReader(const std::string& name, int64_t delay_ns) {
  const auto reading = std::make_shared<Reading>();
  readings_.push_back(reading);
  world_.Start(world_.NewProcess(name), [reading, delay_ns](env::Env& env) {
    env.SleepNs(delay_ns);
    const int64_t begun_ns = env.MonotonicNs();
    absl::Status status = ReadAllSteps(env);
    if (status.ok()) status = ReadAllSteps(env);
    reading->duration_ns = env.MonotonicNs() - begun_ns;
    reading->status = std::move(status);
  });
}

void HistoryCheck::Rot(uint64_t seed) {
  env::SimRandom random(seed);
  std::vector<std::pair<std::string, int64_t>> files;
  for (const auto& [name, bytes] : RootFiles()) {
    const bool record = name.starts_with("log/") && format::ParseLogName(name.substr(4)).has_value();
    if (!bytes.empty() && (record || !AttemptOf(name).empty())) files.emplace_back(name, std::ssize(bytes));
  }
  if (files.empty()) return;
  const auto& [name, bytes] = files[static_cast<size_t>(random.Below(std::ssize(files)))];
  int64_t offset = random.Below(bytes);
  const std::string attempt = AttemptOf(name);
  if (!attempt.empty()) {
    damaged_.insert(attempt);
  } else {
    // Always the same copy of a record, so that the other one stays.
    const uint64_t number = *format::ParseLogName(name.substr(4));
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
  LAMINA_ASSIGN_OR_RETURN(log_, LogAudit::Of(RootFiles()));
  restore_count_ = 0;
  for (const std::unique_ptr<HistoryJob>& job : jobs_) {
    const absl::Status told = CheckTold(*job);
    if (!told.ok()) return base::Annotate(told, absl::StrCat("job ", job->ordinal()));
  }
  LAMINA_RETURN_IF_ERROR(CheckReaders());
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
  const bool unknown = absl::StrContains(told.status.message(), "outcome unknown");
  if (commit != 0 && !unknown) {
    return Broken(absl::StrCat(what, " was told to have ", told.skipped ? "been skipped" : "failed", ", and record ", commit,
                               " commits it: ", told.status.ToString()));
  }
  if (told.skipped && job.script().layouts.size() < 2) return Broken(absl::StrCat(what, " was skipped, though no layout changed"));
  return absl::OkStatus();
}

// A restore that was told to be done stands at a step that was the head while it ran: the newest, or the one that was asked for and that
// the log was rewound to. Unasked, only damage moves it to an older one.
absl::Status HistoryCheck::CheckRestore(const HistoryJob& job, const Told& told, uint64_t from) {
  if (!told.status.ok()) return absl::OkStatus();
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
    if (log_.HeadAt(number) == commit) return absl::OkStatus();
    for (const uint64_t newer : log_.LineAt(number)) {
      if (newer == commit) return absl::OkStatus();
      if (!damaged_.contains(format::AttemptPath(log_.At(newer).subject))) break;
    }
  }
  return Broken(absl::StrCat(what, ", commit ", commit, ", which was not the head in records ", from, " to ", told.records, " (I9)"));
}

absl::Status HistoryCheck::RestoredDespiteDamage(const HistoryJob& job) const {
  const std::vector<uint64_t> opens = OpensOf(job);
  if (opens.empty()) return Broken("nothing disturbed this launch, and it did not claim the root");
  const std::vector<uint64_t> line = log_.LineAt(opens.front());
  const bool some_whole = std::any_of(line.begin(), line.end(),
                                      [this](uint64_t commit) { return !damaged_.contains(format::AttemptPath(log_.At(commit).subject)); });
  if (!some_whole) return absl::OkStatus();
  for (int32_t rank = 0; rank < job.rank_count(); ++rank) {
    if (job.told(rank).empty()) return Broken("nothing disturbed this launch, and a rank was told nothing");
    const Told& first = job.told(rank).front();
    if (!first.asked.has_value() && !first.status.ok())
      return Broken(absl::StrCat("a restore was to pass over damage, and failed: ", first.status.ToString()));
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

absl::Status HistoryCheck::CheckReaders() {
  for (const std::shared_ptr<Reading>& reading : readings_) {
    const absl::Status& status = reading->status;
    const bool lost = absl::IsDataLoss(status) && !damaged() && reading->duration_ns < kReaderNsMax;
    if (absl::IsInternal(status) || lost) return Broken(absl::StrCat("a reader (I5): ", status.ToString()));
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
  for (const StepEntry& step : log_.At(log_.newest_number()).steps) {
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
  std::set<std::string> live;
  for (const StepEntry& step : log_.At(log_.newest_number()).steps) {
    if (step.state != StepState::kDropped) live.insert(format::AttemptPath(step.attempt));
  }
  if (damaged()) return absl::OkStatus();  // what cannot be restored, or tells not what it needs, keeps a job from sweeping
  for (const auto& [name, bytes] : RootFiles()) {
    const std::string attempt = AttemptOf(name);
    const bool record = name.starts_with("log/") && format::ParseLogName(name.substr(4)).has_value();
    const bool needed = attempt.empty() ? name == format::kStorePath || record || name.starts_with("probe/") : live.contains(attempt);
    if (!needed) return Broken(absl::StrCat("'", name, "' is left, and nothing needs it (I5)"));
  }
  return absl::OkStatus();
}

}  // namespace lamina::sim
