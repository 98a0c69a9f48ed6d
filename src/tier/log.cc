#include "tier/log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"
#include "format/version.h"
#include "tier/step_table.h"
#include "tier/takeover.h"

namespace lamina::tier {
namespace {

using format::AttemptId;
using format::Digest;
using format::LogRecord;
using format::RecordKind;
using format::StepEntry;
using format::StepState;

constexpr size_t kReasonBytesMax = 4096;
constexpr int kRetries = 4;         // of what failed without a trace
constexpr int kRetriesUnseen = 40;  // of what the store says is there and does not show: network file systems remember absence for 30 s
constexpr int64_t kRetryNsMax = base::kSecondNs;

int64_t RetryNs(int retry) { return std::min(kRetryNsMax, (50 * base::kMillisecondNs) << std::min(retry, 10)); }

// How often a put is tried again that left nothing to be seen.
int RetriesAfter(const absl::Status& put) {
  if (absl::IsPermissionDenied(put) || absl::IsUnimplemented(put)) return 0;
  return absl::IsAlreadyExists(put) ? kRetriesUnseen : kRetries;
}

Digest RandomDigest(env::Env& env) { return {.low = env.RandomU64(), .high = env.RandomU64()}; }

absl::Status CheckFence(const LogRecord& newest, uint64_t incarnation) {
  if (newest.incarnation == incarnation) return absl::OkStatus();
  if (newest.incarnation < incarnation) {
    return absl::DataLossError(absl::StrCat("the log has lost incarnation ", incarnation, ": its newest is ", newest.incarnation));
  }
  return absl::AbortedError(absl::StrCat("incarnation ", incarnation, " was fenced by incarnation ", newest.incarnation, " (host ",
                                         newest.trainer.host, ", pid ", newest.trainer.pid, ")"));
}

std::string Shortened(std::string_view reason) { return std::string(reason.substr(0, kReasonBytesMax)); }

absl::Status Unknown(uint64_t number, const absl::Status& put) {
  const std::string context = absl::StrCat("log record ", number, " may or may not be published");
  if (absl::IsAlreadyExists(put)) return absl::UnavailableError(absl::StrCat(context, ": its name is taken and does not show"));
  // Codes by which callers know that nothing was published must not come from the store.
  const bool misleading = absl::IsInvalidArgument(put) || absl::IsFailedPrecondition(put) || absl::IsAborted(put) || absl::IsNotFound(put);
  return misleading ? absl::UnavailableError(absl::StrCat(context, ": ", put.message())) : base::Annotate(put, context);
}

}  // namespace

Log::Log(env::Env& env, Tier& tier, std::shared_ptr<Swept> swept, uint64_t records_kept)
    : env_(env),
      tier_(tier),
      records_kept_(records_kept),
      sweeper_(env, tier, swept != nullptr ? std::move(swept) : std::make_shared<Swept>(env)) {}

absl::StatusOr<format::StoreHeader> Log::CreateOrReadStore() {
  for (const std::string_view prefix :
       {format::kLogPrefix, format::kStepsPrefix, format::kWritersPrefix, format::kReadersPrefix, format::kProbePrefix}) {
    LAMINA_RETURN_IF_ERROR(tier_.Prepare(prefix));
  }
  // Looked at first: once a record is there, so is the file that it was made for.
  LAMINA_ASSIGN_OR_RETURN(const uint64_t newest, NewestNumber());
  absl::StatusOr<format::StoreHeader> store = ReadStore();
  if (store.ok() || !absl::IsNotFound(store.status())) return store;
  if (newest != 0) return absl::DataLossError(absl::StrCat(tier_.Describe(), " holds a log, but its file LAMINA is gone"));
  const format::StoreHeader made{.store_id = RandomDigest(env_), .fingerprint_seed = env_.RandomU64()};
  for (int retry = 0;; ++retry) {
    const absl::Status put = tier_.PutIfAbsent(format::kStorePath, format::EncodeStoreHeader(made));
    store = ReadStore();
    if (!absl::IsNotFound(store.status())) return store;
    if (retry >= RetriesAfter(put)) return put.ok() ? store.status() : put;
    env_.SleepNs(RetryNs(retry));
  }
}

absl::StatusOr<format::StoreHeader> Log::ReadStore() {
  const absl::StatusOr<std::string> bytes = ReadWhole(tier_, format::kStorePath, format::kMetadataBytesMax);
  if (absl::IsNotFound(bytes.status()))
    return absl::NotFoundError(absl::StrCat("no store at ", tier_.Describe(), ": it has no file LAMINA"));
  LAMINA_RETURN_IF_ERROR(bytes.status());
  LAMINA_ASSIGN_OR_RETURN(store_, format::DecodeStoreHeader(base::AsBytes(*bytes)));
  LAMINA_RETURN_IF_ERROR(tier_.SettleNames(""));
  return *store_;
}

absl::StatusOr<Digest> Log::StoreId() {
  if (!store_.has_value()) LAMINA_RETURN_IF_ERROR(ReadStore().status());
  return store_->store_id;
}

absl::StatusOr<uint64_t> Log::NewestNumber() {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, tier_.ListNames(format::kLogPrefix));
  uint64_t newest = newest_known_;
  for (const std::string& name : names) newest = std::max(newest, format::ParseLogName(name).value_or(0));
  return newest;
}

absl::StatusOr<LogRecord> Log::ReadRecord(uint64_t number) {
  const std::string name = format::LogPath(number);
  LAMINA_ASSIGN_OR_RETURN(const Digest store_id, StoreId());
  LAMINA_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(tier_, name, format::kMetadataBytesMax));
  absl::StatusOr<LogRecord> record = format::DecodeLogRecord(base::AsBytes(bytes), number, store_id);
  return record.ok() ? record : base::Annotate(record.status(), absl::StrCat("'", name, "' in ", tier_.Describe()));
}

Log::Top Log::NothingYet(const Digest& store_id) {
  Top top;
  top.record.store_id = store_id;
  return top;
}

absl::StatusOr<Log::Top> Log::FindTop(bool damage_ok) {
  for (int retry = 0;; ++retry) {
    LAMINA_ASSIGN_OR_RETURN(const uint64_t number, NewestNumber());
    if (number == 0) return NothingYet(store_->store_id);
    LAMINA_RETURN_IF_ERROR(tier_.SettleNames(format::kLogPrefix));
    absl::StatusOr<LogRecord> record = ReadRecord(number);
    if (record.ok()) {
      newest_known_ = number;
      return Top{number, *std::move(record)};
    }
    if (absl::IsDataLoss(record.status()) && damage_ok) return PassOver(number, record.status());
    const int retries = absl::IsNotFound(record.status()) ? kRetriesUnseen : absl::IsUnavailable(record.status()) ? kRetries : 0;
    if (retry >= retries) return record.status();
    env_.SleepNs(RetryNs(retry));
  }
}

// Numbers follow one another without a gap down to the floor, so the record before a damaged one has the number before.
absl::StatusOr<Log::Top> Log::PassOver(uint64_t damaged, const absl::Status& why) {
  for (uint64_t number = damaged - 1; number > 0; --number) {
    absl::StatusOr<LogRecord> record = ReadRecord(number);
    if (absl::IsDataLoss(record.status())) continue;
    if (absl::IsNotFound(record.status())) break;
    LAMINA_RETURN_IF_ERROR(record.status());
    record->damaged = damaged;
    return Top{damaged, *std::move(record)};
  }
  return base::Annotate(why, "no record of the log is sound, the newest");
}

absl::StatusOr<LogRecord> Log::Newest(bool damage_ok) {
  LAMINA_RETURN_IF_ERROR(StoreId().status());
  LAMINA_ASSIGN_OR_RETURN(Top top, FindTop(damage_ok));
  return std::move(top.record);
}

absl::StatusOr<std::optional<LogRecord>> Log::Publish(bool damage_ok, const Build& build) {
  LAMINA_RETURN_IF_ERROR(StoreId().status());
  const Digest nonce = RandomDigest(env_);
  for (;;) {
    LAMINA_ASSIGN_OR_RETURN(const Top top, FindTop(damage_ok));
    LAMINA_ASSIGN_OR_RETURN(std::optional<LogRecord> record, build(top.record, top.number + 1));
    if (!record.has_value()) return record;
    record->nonce = nonce;
    Prune(*record, sweeper_.swept()->attempts());
    LAMINA_RETURN_IF_ERROR(format::ValidateLogRecord(*record));
    LAMINA_ASSIGN_OR_RETURN(const bool put, Put(*record));
    if (!put) continue;
    LAMINA_ASSIGN_OR_RETURN(const bool counts, Counts(*record));
    if (counts) return record;
  }
}

// Whether the record is published under its number; false when the number is another's.
absl::StatusOr<bool> Log::Put(const LogRecord& record) {
  const std::string name = format::LogPath(record.number);
  const std::string bytes = format::EncodeLogRecord(record);
  if (bytes.empty()) return absl::ResourceExhaustedError(absl::StrCat("log record ", record.number, " would be too large"));
  for (int retry = 0;; ++retry) {
    const absl::Status put = tier_.PutIfAbsent(name, bytes);
    if (put.ok()) break;
    const absl::StatusOr<LogRecord> found = ReadRecord(record.number);
    if (found.ok() && found->nonce == record.nonce) {
      LAMINA_RETURN_IF_ERROR(tier_.SettleNames(format::kLogPrefix));
      break;
    }
    if (found.ok() || absl::IsDataLoss(found.status())) {
      newest_known_ = std::max(newest_known_, record.number);
      return false;
    }
    if (retry >= RetriesAfter(put)) return Unknown(record.number, put);
    env_.SleepNs(RetryNs(retry));
  }
  newest_known_ = std::max(newest_known_, record.number);
  return true;
}

// Whether a published record stands: one that a sleeper put below the floor of a record that came meanwhile does not.
absl::StatusOr<bool> Log::Counts(const LogRecord& record) {
  LAMINA_ASSIGN_OR_RETURN(const Top top, FindTop(/*damage_ok=*/true));
  if (top.number == record.number && top.record.nonce != record.nonce) {
    return absl::UnavailableError(absl::StrCat("log record ", record.number, " was published and does not read back"));
  }
  return top.record.floor <= record.number;
}

LogRecord Log::NextRecord(const LogRecord& newest, uint64_t number, RecordKind kind) const {
  LogRecord record = newest;
  record.number = number;
  record.kind = kind;
  record.written_ns = env_.WallNs();
  record.subject = {};
  record.reason.clear();
  // Whatever may help to repair a damaged record stays.
  if (record.damaged == 0 && number > records_kept_) record.floor = std::max(record.floor, number - records_kept_ + 1);
  return record;
}

LogRecord Log::OpenRecord(const LogRecord& newest, uint64_t number, const ClaimOptions& options) {
  LogRecord record = NextRecord(newest, number, RecordKind::kOpen);
  record.incarnation = number;
  record.opens.push_back(number);
  record.trainer = TrainerOf(env_.Self(), options.run_id);
  return record;
}

absl::StatusOr<LogRecord> Log::Claim(const ClaimOptions& options) {
  uint64_t asked = 0;
  const auto build = [&](const LogRecord& newest, uint64_t number) -> absl::StatusOr<std::optional<LogRecord>> {
    if (newest.incarnation != asked) LAMINA_RETURN_IF_ERROR(MayTakeOver(env_, tier_, newest, options));
    asked = newest.incarnation;
    return OpenRecord(newest, number, options);
  };
  LAMINA_ASSIGN_OR_RETURN(const std::optional<LogRecord> open, Publish(/*damage_ok=*/true, build));
  if (!open.has_value()) return absl::InternalError("an open was not published, though nothing can settle it");
  LAMINA_RETURN_IF_ERROR(RenewLease(open->number));
  return *open;
}

absl::StatusOr<LogRecord> Log::CommitRecord(const LogRecord& newest, uint64_t number, const CommitRequest& request) {
  LogRecord record = NextRecord(newest, number, RecordKind::kCommit);
  const AttemptId& attempt = request.attempt;
  record.subject = attempt;
  const uint64_t parent_commit = request.supersedes_parent_step ? newest.head : request.parent;
  const StepEntry* parent = FindCommit(newest, parent_commit);
  if (parent_commit != 0 && (parent == nullptr || parent->state == StepState::kDropped)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the parent of step ", attempt.step, ", commit ", parent_commit, ", has been dropped"));
  }
  StepEntry entry{.commit = number,
                  .parent = parent_commit,
                  .attempt = attempt,
                  .catalog_digest = request.catalog_digest,
                  .packs_digest = request.packs_digest,
                  .committed_ns = record.written_ns,
                  .state_bytes = request.state_bytes,
                  .stored_bytes = request.stored_bytes};
  if (request.supersedes_parent_step) {
    if (parent == nullptr || parent->attempt.step != attempt.step) {
      return absl::FailedPreconditionError(absl::StrCat("step ", attempt.step, " is to be superseded, but is not the newest of the line"));
    }
    entry.parent = parent->parent;
    // A pinned step stays, off the line.
    for (StepEntry& step : record.steps) {
      if (step.commit == parent_commit && step.state != StepState::kPinned) step.state = StepState::kDropped;
    }
  } else if (parent != nullptr && parent->attempt.step >= attempt.step) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", attempt.step, " is not above step ", parent->attempt.step, ", which it follows"));
  }
  record.steps.push_back(entry);
  MoveHead(record, number);
  return record;
}

absl::StatusOr<uint64_t> Log::Commit(const CommitRequest& request) {
  uint64_t committed = 0;
  const auto build = [&](const LogRecord& newest, uint64_t number) -> absl::StatusOr<std::optional<LogRecord>> {
    LAMINA_ASSIGN_OR_RETURN(const Settlement settled, SettlementIn(newest, request.attempt));
    committed = settled.verdict == Verdict::kCommitted ? settled.commit : number;
    if (settled.verdict == Verdict::kCommitted) return std::nullopt;
    LAMINA_RETURN_IF_ERROR(CheckFence(newest, request.attempt.incarnation));
    if (settled.verdict == Verdict::kAborted) {
      return absl::FailedPreconditionError(absl::StrCat("'", format::AttemptPath(request.attempt), "' was aborted"));
    }
    return CommitRecord(newest, number, request);
  };
  LAMINA_RETURN_IF_ERROR(Publish(/*damage_ok=*/false, build).status());
  return committed;
}

absl::StatusOr<Verdict> Log::Abort(const AttemptId& attempt, std::string_view reason) {
  Verdict verdict = Verdict::kAborted;
  const auto build = [&](const LogRecord& newest, uint64_t number) -> absl::StatusOr<std::optional<LogRecord>> {
    LAMINA_ASSIGN_OR_RETURN(const Settlement settled, SettlementIn(newest, attempt));
    verdict = settled.verdict == Verdict::kCommitted ? Verdict::kCommitted : Verdict::kAborted;
    if (verdict == Verdict::kCommitted) return std::nullopt;
    LAMINA_RETURN_IF_ERROR(CheckFence(newest, attempt.incarnation));
    if (settled.verdict == Verdict::kAborted) return std::nullopt;
    LogRecord record = NextRecord(newest, number, RecordKind::kAbort);
    record.subject = attempt;
    record.reason = Shortened(reason);
    record.unswept.push_back(attempt);
    return record;
  };
  LAMINA_RETURN_IF_ERROR(Publish(/*damage_ok=*/false, build).status());
  return verdict;
}

absl::Status Log::CheckNotFenced(uint64_t incarnation) {
  LAMINA_ASSIGN_OR_RETURN(const LogRecord newest, Newest(/*damage_ok=*/true));
  return CheckFence(newest, incarnation);
}

absl::StatusOr<Verdict> Log::VerdictOf(const AttemptId& attempt) {
  LAMINA_ASSIGN_OR_RETURN(const LogRecord newest, Newest());
  LAMINA_ASSIGN_OR_RETURN(const Settlement settled, SettlementIn(newest, attempt));
  return settled.verdict;
}

// The record of an incarnation's end, the next `open`, has all that the incarnation settled, and is kept for ever; within its own life
// nothing that can still be asked about leaves the table or the list of unswept attempts.
absl::StatusOr<Log::Settlement> Log::SettlementIn(const LogRecord& newest, const AttemptId& attempt) {
  if (const StepEntry* step = FindAttempt(newest, attempt)) return Settlement{Verdict::kCommitted, step->commit};
  if (IsUnswept(newest, attempt)) return Settlement{Verdict::kAborted};
  const auto next = std::upper_bound(newest.opens.begin(), newest.opens.end(), attempt.incarnation);
  if (next == newest.opens.end()) return Settlement{};
  const absl::StatusOr<LogRecord> end = *next == newest.number ? newest : ReadRecord(*next);
  if (!end.ok()) {
    return absl::UnavailableError(absl::StrCat("'", format::AttemptPath(attempt), "': outcome unknown: ", end.status().message()));
  }
  const StepEntry* step = FindAttempt(*end, attempt);
  return step != nullptr ? Settlement{Verdict::kCommitted, step->commit} : Settlement{Verdict::kAborted};
}

absl::Status Log::Rewind(uint64_t incarnation, uint64_t commit, std::string_view reason) {
  const auto build = [&](const LogRecord& newest, uint64_t number) -> absl::StatusOr<std::optional<LogRecord>> {
    LAMINA_RETURN_IF_ERROR(CheckFence(newest, incarnation));
    const StepEntry* step = FindCommit(newest, commit);
    if (step == nullptr || step->state == StepState::kDropped) {
      return absl::NotFoundError(absl::StrCat("commit ", commit, " has been dropped"));
    }
    if (newest.head == commit) return std::nullopt;
    LogRecord record = NextRecord(newest, number, RecordKind::kRewind);
    record.subject = step->attempt;
    record.reason = Shortened(reason);
    MoveHead(record, commit);
    return record;
  };
  return Publish(/*damage_ok=*/false, build).status();
}

absl::StatusOr<std::vector<StepEntry>> Log::DropSelected(const Select& select, std::string_view reason,
                                                         std::optional<uint64_t> incarnation) {
  std::vector<StepEntry> dropped;
  const auto build = [&](const LogRecord& newest, uint64_t number) -> absl::StatusOr<std::optional<LogRecord>> {
    dropped.clear();
    if (incarnation.has_value()) LAMINA_RETURN_IF_ERROR(CheckFence(newest, *incarnation));
    if (newest.damaged != 0)
      return absl::DataLossError(absl::StrCat("nothing is dropped while log record ", newest.damaged, " is damaged"));
    LAMINA_ASSIGN_OR_RETURN(const std::vector<uint64_t> commits, select(newest));
    LogRecord record = NextRecord(newest, number, RecordKind::kDrop);
    record.reason = Shortened(reason);
    for (const uint64_t commit : commits) LAMINA_RETURN_IF_ERROR(DropStep(record, commit));
    for (size_t i = 0; i < newest.steps.size(); ++i) {
      const bool is_new = record.steps[i].state == StepState::kDropped && newest.steps[i].state != StepState::kDropped;
      if (is_new) dropped.push_back(record.steps[i]);
    }
    if (dropped.empty()) return std::nullopt;
    return record;
  };
  LAMINA_RETURN_IF_ERROR(Publish(/*damage_ok=*/false, build).status());
  return dropped;
}

absl::Status Log::Drop(const std::vector<uint64_t>& commits, std::string_view reason, std::optional<uint64_t> incarnation,
                       const std::function<absl::Status(const LogRecord&)>& may_drop) {
  const auto select = [&](const LogRecord& newest) -> absl::StatusOr<std::vector<uint64_t>> {
    if (may_drop) LAMINA_RETURN_IF_ERROR(may_drop(newest));
    return commits;
  };
  return DropSelected(select, reason, incarnation).status();
}

absl::StatusOr<std::vector<uint64_t>> Log::Superfluous(const LogRecord& record, const RetentionPolicy& policy, bool dry_run) {
  std::vector<uint64_t> commits = BeyondKept(record, policy.keep);
  if (!policy.abandoned_ns.has_value()) return commits;
  std::optional<int64_t> now_ns;
  for (const StepEntry& step : record.steps) {
    if (step.state != StepState::kAbandoned) continue;
    if (!now_ns.has_value()) {
      LAMINA_ASSIGN_OR_RETURN(now_ns, NowNs(dry_run));
    }
    LAMINA_ASSIGN_OR_RETURN(const int64_t held_ns, HeldNs(record, step, *now_ns, *policy.abandoned_ns));
    if (held_ns >= *policy.abandoned_ns) commits.push_back(step.commit);
  }
  return commits;
}

absl::StatusOr<std::vector<StepEntry>> Log::Retain(const RetentionPolicy& policy, std::string_view reason,
                                                   std::optional<uint64_t> incarnation) {
  return DropSelected([&](const LogRecord& newest) { return Superfluous(newest, policy); }, reason, incarnation);
}

// How long a step has been in its state without a break: from the oldest record of an unbroken row that has it so, at most `enough_ns`.
// Records below the floor are gone but for each `open`, so that a very long time may show as a shorter one.
absl::StatusOr<int64_t> Log::HeldNs(const LogRecord& newest, const StepEntry& step, int64_t now_ns, int64_t enough_ns) {
  std::erase_if(held_, [&](const auto& each) { return FindCommit(newest, each.first) == nullptr; });
  const auto known = held_.find(step.commit);
  int64_t held_ns = 0;
  for (uint64_t number = newest.number; number > step.commit && held_ns < enough_ns;) {
    if (known != held_.end() && known->second.state == step.state && number <= known->second.through) {
      held_ns = std::max(held_ns, now_ns - known->second.since_ns);
      break;
    }
    const absl::StatusOr<LogRecord> record = number == newest.number ? newest : ReadRecord(number);
    if (absl::IsNotFound(record.status())) break;
    if (!record.ok() && !absl::IsDataLoss(record.status())) return record.status();
    if (record.ok()) {
      const StepEntry* then = FindCommit(*record, step.commit);
      if (then == nullptr || then->state != step.state) break;
      const absl::StatusOr<ObjectInfo> info = tier_.Stat(format::LogPath(number));
      if (absl::IsNotFound(info.status())) break;
      LAMINA_RETURN_IF_ERROR(info.status());
      held_ns = std::max(held_ns, now_ns - info->modified_ns);
    }
    if (--number >= newest.floor) continue;
    const auto open = std::upper_bound(newest.opens.begin(), newest.opens.end(), number);
    if (open == newest.opens.begin()) break;
    number = *std::prev(open);
  }
  held_.insert_or_assign(step.commit, Held{step.state, now_ns - held_ns, newest.number});
  return std::min(held_ns, enough_ns);
}

absl::Status Log::Pin(uint64_t commit, bool pinned) {
  const auto build = [&](const LogRecord& newest, uint64_t number) -> absl::StatusOr<std::optional<LogRecord>> {
    const StepEntry* step = FindCommit(newest, commit);
    if (step == nullptr || step->state == StepState::kDropped) {
      return absl::NotFoundError(absl::StrCat("commit ", commit, " has been dropped"));
    }
    if ((step->state == StepState::kPinned) == pinned) return std::nullopt;
    LogRecord record = NextRecord(newest, number, RecordKind::kRewrite);
    record.reason = absl::StrCat("step ", step->attempt.step, pinned ? " pinned" : " let go");
    PinStep(record, commit, pinned);
    return record;
  };
  return Publish(/*damage_ok=*/false, build).status();
}

absl::StatusOr<SweepReport> Log::Sweep(std::optional<uint64_t> incarnation, const SweepOptions& options, const LogRecord* planned) {
  const auto look = [&]() -> absl::StatusOr<LogRecord> {
    LAMINA_ASSIGN_OR_RETURN(LogRecord newest, Newest());
    if (incarnation.has_value()) LAMINA_RETURN_IF_ERROR(CheckFence(newest, *incarnation));
    if (newest.damaged == 0) return newest;
    return absl::DataLossError(absl::StrCat("nothing is swept while log record ", newest.damaged, " is damaged"));
  };
  LAMINA_ASSIGN_OR_RETURN(const LogRecord newest, look());
  const auto dropped_for = [&](const StepEntry& step, int64_t now_ns, int64_t enough_ns) {
    return HeldNs(newest, step, now_ns, enough_ns);
  };
  return sweeper_.Sweep(options.dry_run && planned != nullptr ? *planned : newest, options, dropped_for, [&] { return look().status(); });
}

absl::StatusOr<Usage> Log::MeasureUsage() {
  LAMINA_ASSIGN_OR_RETURN(const LogRecord newest, Newest());
  return sweeper_.Measure(newest);
}

absl::StatusOr<int64_t> Log::NowNs(bool dry_run) { return dry_run ? env_.WallNs() : StoreNowNs(env_, tier_); }

absl::StatusOr<bool> Log::IsHeld(bool dry_run) {
  LAMINA_ASSIGN_OR_RETURN(const LogRecord newest, Newest());
  if (newest.incarnation == 0) return false;
  const absl::StatusOr<ObjectInfo> lease = tier_.Stat(format::WriterLeasePath(newest.incarnation));
  if (absl::IsNotFound(lease.status())) return false;
  LAMINA_RETURN_IF_ERROR(lease.status());
  LAMINA_ASSIGN_OR_RETURN(const int64_t now_ns, NowNs(dry_run));
  return now_ns - lease->modified_ns < ClaimOptions().lease_ns;
}

absl::Status Log::CheckIsNewest(uint64_t incarnation) {
  LAMINA_ASSIGN_OR_RETURN(const LogRecord newest, Newest());
  return CheckFence(newest, incarnation);
}

absl::Status Log::RenewLease(uint64_t incarnation) { return tier_.Touch(format::WriterLeasePath(incarnation)); }

}  // namespace lamina::tier
