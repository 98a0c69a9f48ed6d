#include "format/log_record.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/flat.h"
#include "format/log_record_generated.h"

namespace lamina::format {
namespace {

using flatbuffers::FlatBufferBuilder;

flat::RecordFacts FactsOf(const LogRecord& r) {
  return {
      ToFlat(r.store_id),          ToFlat(r.nonce), r.number, r.incarnation, r.head, r.floor, r.damaged, r.written_ns, ToFlat(r.subject),
      static_cast<uint8_t>(r.kind)};
}

flat::Step ToFlat(const StepEntry& s) {
  return {s.commit,
          s.parent,
          format::ToFlat(s.attempt),
          format::ToFlat(s.catalog_digest),
          format::ToFlat(s.packs_digest),
          s.committed_ns,
          s.state_bytes,
          s.stored_bytes,
          static_cast<uint8_t>(s.state)};
}

StepEntry FromFlat(const flat::Step& s) {
  return {.commit = s.commit(),
          .parent = s.parent(),
          .attempt = format::FromFlat(s.attempt()),
          .catalog_digest = format::FromFlat(s.catalog_digest()),
          .packs_digest = format::FromFlat(s.packs_digest()),
          .committed_ns = s.committed_ns(),
          .state_bytes = s.state_bytes(),
          .stored_bytes = s.stored_bytes(),
          .state = static_cast<StepState>(s.state())};
}

uint64_t PayloadBytesMax(const LogRecord& r) {
  const Trainer& t = r.trainer;
  return 1024 + r.reason.size() + t.run_id.size() + t.host.size() + t.boot_id.size() + t.pid_namespace.size() +
         sizeof(uint64_t) * r.opens.size() + sizeof(flat::Step) * r.steps.size() + sizeof(flat::Attempt) * r.unswept.size();
}

flatbuffers::Offset<flat::Trainer> BuildTrainer(FlatBufferBuilder& builder, const Trainer& trainer) {
  const auto run_id = Text(builder, trainer.run_id);
  const auto host = Text(builder, trainer.host);
  const auto boot_id = Text(builder, trainer.boot_id);
  const auto pid_namespace = Text(builder, trainer.pid_namespace);
  const flat::Process process(trainer.pid, trainer.start_ticks);
  return flat::CreateTrainer(builder, &process, run_id, host, boot_id, pid_namespace);
}

void BuildRecord(FlatBufferBuilder& builder, const LogRecord& record) {
  const auto trainer = BuildTrainer(builder, record.trainer);
  const auto reason = Text(builder, record.reason);
  const auto opens = builder.CreateVector(record.opens);
  const auto steps =
      builder.CreateVectorOfStructs<flat::Step>(record.steps.size(), [&](size_t i, flat::Step* step) { *step = ToFlat(record.steps[i]); });
  const auto unswept = builder.CreateVectorOfStructs<flat::Attempt>(
      record.unswept.size(), [&](size_t i, flat::Attempt* attempt) { *attempt = format::ToFlat(record.unswept[i]); });
  const flat::RecordFacts facts = FactsOf(record);
  builder.Finish(flat::CreateLogRecord(builder, &facts, trainer, reason, opens, steps, unswept));
}

bool TakeTexts(Budget& budget, const flat::LogRecord& root, LogRecord& record) {
  const flat::Trainer& trainer = *root.trainer();
  return budget.Take(root.reason(), record.reason) && budget.Take(trainer.run_id(), record.trainer.run_id) &&
         budget.Take(trainer.host(), record.trainer.host) && budget.Take(trainer.boot_id(), record.trainer.boot_id) &&
         budget.Take(trainer.pid_namespace(), record.trainer.pid_namespace);
}

bool TakeTables(Budget& budget, const flat::LogRecord& root, LogRecord& record) {
  if (!budget.Take(root.opens(), record.opens)) return false;
  if (!budget.Reserve(root.steps(), record.steps) || !budget.Reserve(root.unswept(), record.unswept)) return false;
  ForEachStruct(root.steps(), [&](const flat::Step& step) { record.steps.push_back(FromFlat(step)); });
  ForEachStruct(root.unswept(), [&](const flat::Attempt& id) { record.unswept.push_back(format::FromFlat(id)); });
  return true;
}

LogRecord FromFacts(const flat::RecordFacts& facts) {
  LogRecord record;
  record.store_id = format::FromFlat(facts.store_id());
  record.nonce = format::FromFlat(facts.nonce());
  record.number = facts.number();
  record.incarnation = facts.incarnation();
  record.head = facts.head();
  record.floor = facts.floor();
  record.damaged = facts.damaged();
  record.written_ns = facts.written_ns();
  record.subject = format::FromFlat(facts.subject());
  record.kind = static_cast<RecordKind>(facts.kind());
  return record;
}

absl::StatusOr<LogRecord> DecodeCopy(std::span<const std::byte> bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::span<const std::byte> payload, Unframed(kLogFrame, bytes));
  LAMINA_ASSIGN_OR_RETURN(const auto flat, FlatPayload<flat::LogRecord>::Read(kLogFrame, payload));
  const flat::LogRecord& root = flat.root();
  LogRecord record = FromFacts(*root.facts());
  record.trainer.pid = root.trainer()->process()->pid();
  record.trainer.start_ticks = root.trainer()->process()->start_ticks();
  Budget budget(payload.size());
  if (!TakeTexts(budget, root, record) || !TakeTables(budget, root, record)) return OverBudget(kLogFrame);
  if (const absl::Status valid = ValidateLogRecord(record); !valid.ok()) return absl::DataLossError(valid.message());
  return record;
}

absl::Status Wrong(std::string_view what, std::string_view found, std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("log record: ", std::string(what), " is ", std::string(found), ", expected ", std::string(expected)));
}

absl::Status CheckNumber(std::string_view what, uint64_t found, uint64_t least, uint64_t most) {
  if (found >= least && found <= most) return absl::OkStatus();
  return Wrong(what, absl::StrCat(found), absl::StrCat(least, " to ", most));
}

absl::Status CheckAttempt(const AttemptId& id) {
  if (id.step < 0) return Wrong("step", absl::StrCat(id.step), "0 or more");
  return id.incarnation > 0 ? absl::OkStatus() : Wrong("incarnation of an attempt", "0", "1 or more");
}

// What the record is about: of a commit and a rewind the attempt of the head, of an abort any.
absl::Status CheckSubject(const LogRecord& record) {
  if (record.kind == RecordKind::kAbort) return CheckAttempt(record.subject);
  AttemptId expected;
  if (record.kind == RecordKind::kCommit || record.kind == RecordKind::kRewind) {
    const auto head = std::find_if(record.steps.begin(), record.steps.end(), [&](const auto& step) { return step.commit == record.head; });
    if (head == record.steps.end()) return Wrong("head", absl::StrCat(record.head), "a step: the record is about it");
    if (record.kind == RecordKind::kCommit && record.head != record.number) {
      return Wrong("head of a commit", absl::StrCat(record.head), "the step that it commits");
    }
    expected = head->attempt;
  }
  if (record.subject == expected) return absl::OkStatus();
  return Wrong("subject", AttemptPath(record.subject), expected == AttemptId{} ? "none" : AttemptPath(expected));
}

// An attempt that stood in the table twice, once dropped, would lose its files while it is live.
absl::Status CheckAttemptsDiffer(const std::vector<StepEntry>& steps) {
  std::vector<AttemptId> attempts;
  attempts.reserve(steps.size());
  for (const StepEntry& step : steps) attempts.push_back(step.attempt);
  std::sort(attempts.begin(), attempts.end());
  const auto twice = std::adjacent_find(attempts.begin(), attempts.end());
  if (twice == attempts.end()) return absl::OkStatus();
  return Wrong("table of steps", absl::StrCat("one with '", AttemptPath(*twice), "' twice"), "each attempt once");
}

absl::Status CheckStep(const StepEntry& step, uint64_t least, uint64_t number) {
  LAMINA_RETURN_IF_ERROR(CheckNumber("commit of a step", step.commit, least, number));
  LAMINA_RETURN_IF_ERROR(CheckNumber("parent of a step", step.parent, 0, step.commit - 1));
  LAMINA_RETURN_IF_ERROR(CheckNumber("state's bytes of a step", step.state_bytes, 0, kOffsetMax));
  LAMINA_RETURN_IF_ERROR(CheckNumber("stored bytes of a step", step.stored_bytes, 0, kOffsetMax));
  LAMINA_RETURN_IF_ERROR(CheckNumber("state of a step", static_cast<uint64_t>(step.state), 1, 4));
  return CheckAttempt(step.attempt);
}

absl::Status CheckSteps(const LogRecord& record) {
  uint64_t least = 1;
  bool head_found = record.head == 0;
  for (const StepEntry& step : record.steps) {
    LAMINA_RETURN_IF_ERROR(CheckStep(step, least, record.number));
    least = step.commit + 1;
    head_found = head_found || step.commit == record.head;
  }
  return head_found ? absl::OkStatus() : Wrong("head", absl::StrCat(record.head), "a commit of the table of steps");
}

absl::Status CheckOpens(const LogRecord& record) {
  uint64_t least = 1;
  for (const uint64_t open : record.opens) {
    LAMINA_RETURN_IF_ERROR(CheckNumber("number of an open", open, least, record.number));
    least = open + 1;
  }
  const uint64_t newest = record.opens.empty() ? 0 : record.opens.back();
  if (newest == 0 || record.incarnation != newest)
    return Wrong("incarnation", absl::StrCat(record.incarnation), absl::StrCat("the newest open, ", newest));
  const bool is_open = record.kind == RecordKind::kOpen;
  if (is_open != (record.incarnation == record.number))
    return Wrong("incarnation of an open", absl::StrCat(record.incarnation), "its own number");
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateLogRecord(const LogRecord& record) {
  constexpr uint64_t kNumberMax = uint64_t{1} << 62;
  LAMINA_RETURN_IF_ERROR(CheckNumber("number", record.number, 1, kNumberMax));
  LAMINA_RETURN_IF_ERROR(CheckNumber("kind", static_cast<uint64_t>(record.kind), 1, 6));
  LAMINA_RETURN_IF_ERROR(CheckNumber("floor", record.floor, 1, record.number));
  LAMINA_RETURN_IF_ERROR(CheckNumber("damaged", record.damaged, 0, record.number - 1));
  LAMINA_RETURN_IF_ERROR(CheckOpens(record));
  LAMINA_RETURN_IF_ERROR(CheckSteps(record));
  LAMINA_RETURN_IF_ERROR(CheckAttemptsDiffer(record.steps));
  LAMINA_RETURN_IF_ERROR(CheckSubject(record));
  for (const AttemptId& id : record.unswept) LAMINA_RETURN_IF_ERROR(CheckAttempt(id));
  return absl::OkStatus();
}

std::string EncodeLogRecord(const LogRecord& record) {
  if (!Fits(2 * PayloadBytesMax(record) + 2 * kLogCopyAlignment)) return {};
  FlatBufferBuilder builder;
  BuildRecord(builder, record);
  std::string copy = FramedFlat(kLogFrame, builder);
  copy.resize(static_cast<size_t>(base::AlignUp(static_cast<int64_t>(copy.size()), kLogCopyAlignment)));
  return copy + copy;
}

absl::StatusOr<LogRecord> DecodeLogRecordCopy(std::span<const std::byte> bytes, uint64_t number, const std::optional<Digest>& store_id) {
  LAMINA_ASSIGN_OR_RETURN(LogRecord record, DecodeCopy(bytes));
  if (store_id.has_value() && record.store_id != *store_id) {
    return Damaged(kLogFrame, "store", ToString(record.store_id), absl::StrCat(ToString(*store_id), ", that of LAMINA"));
  }
  if (record.number != number) return Damaged(kLogFrame, "number", absl::StrCat(record.number), absl::StrCat(number, ", that of its name"));
  return record;
}

absl::StatusOr<LogRecord> DecodeLogRecord(std::span<const std::byte> bytes, uint64_t number, const std::optional<Digest>& store_id) {
  const size_t half = bytes.size() / 2;  // that no copy reaches beyond, however long it says that it is
  absl::StatusOr<LogRecord> first = DecodeLogRecordCopy(bytes.first(half), number, store_id);
  if (first.ok() || !absl::IsDataLoss(first.status())) return first;
  absl::StatusOr<LogRecord> second = DecodeLogRecordCopy(bytes.subspan(half), number, store_id);
  if (second.ok() || !absl::IsDataLoss(second.status())) return second;
  return base::Annotate(first.status(), "both copies are bad, the first");
}

}  // namespace lamina::format
