#include "sim/log_audit.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"

namespace lamina::sim {
namespace {

using format::LogRecord;
using format::RecordKind;
using format::StepEntry;
using format::StepState;
using Table = std::map<uint64_t, StepEntry>;

constexpr uint64_t kDroppedKept = 100;  // records for which a dropped step stays in the table

Table TableOf(const LogRecord& record) {
  Table table;
  for (const StepEntry& step : record.steps) table.emplace(step.commit, step);
  return table;
}

std::set<uint64_t> AncestryOf(const Table& table, uint64_t commit) {
  std::set<uint64_t> line;
  for (auto at = table.find(commit); at != table.end(); at = table.find(at->second.parent)) line.insert(at->first);
  return line;
}

void MoveHead(Table& table, uint64_t head) {
  const std::set<uint64_t> line = AncestryOf(table, head);
  for (auto& [commit, step] : table) {
    if (step.state == StepState::kPinned || step.state == StepState::kDropped) continue;
    step.state = line.contains(commit) ? StepState::kLive : StepState::kAbandoned;
  }
}

absl::Status Broken(const LogRecord& record, const std::string& what) {
  return absl::InternalError(absl::StrCat("log record ", record.number, ": ", what));
}

std::string Text(const StepEntry& step) {
  return absl::StrCat(format::AttemptPath(step.attempt), " (commit ", step.commit, ", parent ", step.parent, ", state ",
                      static_cast<int>(step.state), ")");
}

// What the record's kind makes of the table before it.
absl::Status Apply(const LogRecord& before, const LogRecord& record, Table& table, uint64_t& head) {
  switch (record.kind) {
    case RecordKind::kOpen:
      return absl::OkStatus();
    case RecordKind::kCommit: {
      if (record.subject.incarnation != before.incarnation) return Broken(record, "a fenced incarnation commits");
      for (const auto& [commit, step] : table) {
        if (step.attempt == record.subject) return Broken(record, "an attempt is committed twice");
      }
      if (std::count(before.unswept.begin(), before.unswept.end(), record.subject) > 0)
        return Broken(record, "an aborted attempt is committed");
      const auto found =
          std::find_if(record.steps.begin(), record.steps.end(), [&](const auto& step) { return step.commit == record.number; });
      if (found == record.steps.end()) return Broken(record, "the commit is not in its own table");
      StepEntry entry = *found;
      entry.attempt = record.subject;
      entry.state = StepState::kLive;
      entry.parent = head;
      const auto top = table.find(head);
      if (top != table.end() && top->second.attempt.step == record.subject.step) {
        entry.parent = top->second.parent;
        if (top->second.state != StepState::kPinned) top->second.state = StepState::kDropped;
      } else if (top != table.end() && top->second.attempt.step > record.subject.step) {
        return Broken(record, "a step follows a larger one");
      }
      table[record.number] = entry;
      head = record.number;
      MoveHead(table, head);
      return absl::OkStatus();
    }
    case RecordKind::kAbort:
      if (record.subject.incarnation != before.incarnation) return Broken(record, "a fenced incarnation aborts");
      for (const auto& [commit, step] : table) {
        if (step.attempt == record.subject) return Broken(record, "a committed attempt is aborted");
      }
      return std::count(before.unswept.begin(), before.unswept.end(), record.subject) == 0 ? absl::OkStatus()
                                                                                           : Broken(record, "an attempt is aborted twice");
    case RecordKind::kRewind: {
      const auto target = table.find(record.head);
      if (target == table.end() || target->second.state == StepState::kDropped) return Broken(record, "it rewinds to what is gone");
      head = record.head;
      MoveHead(table, head);
      return absl::OkStatus();
    }
    case RecordKind::kDrop: {
      for (const StepEntry& step : record.steps) {
        const auto known = table.find(step.commit);
        if (known == table.end() || step.state != StepState::kDropped || known->second.state == StepState::kDropped) continue;
        if (known->second.state == StepState::kPinned) return Broken(record, "a pinned step is dropped");
        known->second.state = StepState::kDropped;
      }
      while (table.contains(head) && table[head].state == StepState::kDropped) head = table[head].parent;
      MoveHead(table, head);
      return absl::OkStatus();
    }
    case RecordKind::kRewrite: {  // a step is pinned or let go
      int changes = 0;
      for (const StepEntry& step : record.steps) {
        const auto known = table.find(step.commit);
        const bool pins = known != table.end() && (known->second.state == StepState::kPinned) != (step.state == StepState::kPinned);
        if (!pins) continue;
        if (known->second.state == StepState::kDropped) return Broken(record, "a dropped step is pinned");
        known->second.state = step.state == StepState::kPinned ? StepState::kPinned : StepState::kLive;
        ++changes;
      }
      MoveHead(table, head);
      return changes == 1 ? absl::OkStatus() : Broken(record, absl::StrCat("it pins or lets go ", changes, " steps"));
    }
  }
  return Broken(record, "of a kind that nothing publishes");
}

// Long dropped and swept steps leave the table, and their children go to their parents.
absl::Status Forget(const LogRecord& record, Table& table) {
  const Table left = TableOf(record);
  for (auto at = table.rbegin(); at != table.rend();) {
    const StepEntry step = (at++)->second;
    if (left.contains(step.commit)) continue;
    if (step.state != StepState::kDropped || step.commit + kDroppedKept > record.number) {
      return Broken(record, absl::StrCat("lost from the table: ", Text(step)));
    }
    for (auto& [commit, child] : table) {
      if (child.parent == step.commit) child.parent = step.parent;
    }
    table.erase(step.commit);
    at = std::make_reverse_iterator(table.lower_bound(step.commit));
  }
  return absl::OkStatus();
}

absl::Status CheckUnswept(const LogRecord& before, const LogRecord& record) {
  std::vector<format::AttemptId> expected = before.unswept;
  if (record.kind == RecordKind::kAbort) expected.push_back(record.subject);
  std::erase_if(expected, [&](const format::AttemptId& attempt) {
    return attempt.incarnation < record.incarnation && std::count(record.unswept.begin(), record.unswept.end(), attempt) == 0;
  });
  return expected == record.unswept ? absl::OkStatus() : Broken(record, "its list of unswept attempts does not follow");
}

}  // namespace

int64_t LogAudit::AbandonedSinceNs(uint64_t commit) const {
  int64_t since_ns = INT64_MAX;
  for (uint64_t number = newest_number(); number > commit; --number) {
    const auto step =
        std::find_if(At(number).steps.begin(), At(number).steps.end(), [&](const StepEntry& each) { return each.commit == commit; });
    if (step == At(number).steps.end() || step->state != StepState::kAbandoned) break;
    since_ns = At(number).written_ns;
  }
  return since_ns;
}

absl::Status LogAudit::CheckDrop(const LogRecord& before, const LogRecord& record) const {
  if (before.damaged != 0) return Broken(record, "it drops while a record is damaged");
  const Table table = TableOf(before);
  std::set<uint64_t> dropped;
  for (const StepEntry& step : record.steps) {
    const auto known = table.find(step.commit);
    if (known != table.end() && step.state == StepState::kDropped && known->second.state != StepState::kDropped)
      dropped.insert(step.commit);
  }
  if (dropped.empty()) return Broken(record, "it drops nothing");
  const absl::string_view reason = record.reason;
  if (absl::StartsWith(reason, "gc of step ")) {
    return dropped.size() == 1 && reason == absl::StrCat("gc of step ", table.at(*dropped.begin()).attempt.step)
               ? absl::OkStatus()
               : Broken(record, absl::StrCat("it drops ", dropped.size(), " steps, its reason is '", reason, "'"));
  }
  // Retention: what `keep` does not hold of the line, never its head, and what has been off the line for long enough.
  int64_t keep = 0;
  const bool by_trainer = reason == "abandoned" || absl::StartsWith(reason, "keep=");
  if (!by_trainer && reason != "gc") return Broken(record, absl::StrCat("its reason is '", reason, "'"));
  if (absl::StartsWith(reason, "keep=") && !absl::SimpleAtoi(reason.substr(5), &keep)) return Broken(record, "its reason is no count");
  std::set<uint64_t> beyond;
  int64_t kept = 0;
  for (auto at = table.find(before.head); at != table.end(); at = table.find(at->second.parent)) {
    if (at->second.state == StepState::kLive && ++kept > keep) beyond.insert(at->first);
  }
  if (keep > 0 && dropped != beyond) return Broken(record, absl::StrCat("it drops ", dropped.size(), " steps, not ", beyond.size()));
  for (const uint64_t commit : dropped) {
    const StepEntry& step = table.at(commit);
    if (commit == before.head) return Broken(record, "retention drops the head");
    if (step.state == StepState::kLive && reason != "abandoned") continue;
    if (step.state == StepState::kLive) return Broken(record, absl::StrCat("it drops a step of the line as abandoned: ", Text(step)));
    if (record.written_ns - AbandonedSinceNs(commit) < options_.abandoned_ns)
      return Broken(record, absl::StrCat("it drops a step that was not off the line for long: ", Text(step)));
  }
  return absl::OkStatus();
}

absl::Status LogAudit::Add(LogRecord record) {
  LogRecord before;
  if (!records_.empty()) before = records_.back();
  uint64_t damaged = before.damaged;
  if (newest_is_lost() && record.damaged == before.number) {
    damaged = before.number;
    if (record.kind != RecordKind::kOpen) return Broken(record, "it passes over a damaged record, and claims nothing");
    before = Newest();
  }
  if (record.damaged != damaged) return Broken(record, absl::StrCat("its damaged record is ", record.damaged, ", not ", damaged));
  if (record.kind == RecordKind::kDrop) LAMINA_RETURN_IF_ERROR(CheckDrop(before, record));
  if (!records_.empty() && record.store_id != before.store_id) return Broken(record, "of another store");
  const bool opens = record.kind == RecordKind::kOpen;
  std::vector<uint64_t> expected_opens = before.opens;
  if (opens) expected_opens.push_back(record.number);
  if (record.opens != expected_opens || record.incarnation != (opens ? record.number : before.incarnation)) {
    return Broken(record, "its incarnations do not follow");
  }
  if (!opens && record.trainer != before.trainer) return Broken(record, "its trainer changes without an open");
  Table table = TableOf(before);
  uint64_t head = before.head;
  LAMINA_RETURN_IF_ERROR(Apply(before, record, table, head));
  LAMINA_RETURN_IF_ERROR(Forget(record, table));
  LAMINA_RETURN_IF_ERROR(CheckUnswept(before, record));
  if (record.head != head) return Broken(record, absl::StrCat("its head is ", record.head, ", not ", head));
  const Table found = TableOf(record);
  for (const auto& [commit, step] : table) {
    const auto other = found.find(commit);
    if (other == found.end() || other->second != step) {
      return Broken(record, absl::StrCat("expected ", Text(step), ", found ", other == found.end() ? "nothing" : Text(other->second)));
    }
  }
  if (found.size() != table.size()) return Broken(record, "steps that nobody committed");
  records_.push_back(std::move(record));
  return absl::OkStatus();
}

absl::StatusOr<LogAudit> LogAudit::Of(const std::map<std::string, std::string>& files, AuditOptions options) {
  LogAudit audit;
  audit.options_ = std::move(options);
  const std::optional<LogRecord>& lost = audit.options_.lost;
  const std::string prefix = absl::StrCat(std::string(format::kLogPrefix), "/");
  for (auto file = files.lower_bound(prefix); file != files.end() && absl::StartsWith(file->first, prefix); ++file) {
    const std::optional<uint64_t> number = format::ParseLogName(std::string_view(file->first).substr(prefix.size()));
    if (!number.has_value()) continue;
    if (*number != audit.records_.size() + 1) {
      return absl::InternalError(absl::StrCat("log record ", *number, " follows record ", audit.records_.size()));
    }
    absl::StatusOr<LogRecord> record = format::DecodeLogRecord(base::AsBytes(file->second), *number);
    if (lost.has_value() && lost->number == *number) record = *lost;
    if (!record.ok()) return absl::InternalError(absl::StrCat("log record ", *number, ": ", record.status().ToString()));
    LAMINA_RETURN_IF_ERROR(audit.Add(*record));
  }
  return audit;
}

uint64_t LogAudit::CommitOf(const format::AttemptId& attempt) const {
  for (const LogRecord& record : records_) {
    if (record.kind == RecordKind::kCommit && record.subject == attempt) return record.number;
  }
  return 0;
}

std::vector<uint64_t> LogAudit::LineAt(uint64_t number) const {
  std::vector<uint64_t> line;
  if (number == 0) return line;
  const Table table = TableOf(At(number));
  for (auto at = table.find(At(number).head); at != table.end(); at = table.find(at->second.parent)) {
    if (at->second.state != StepState::kDropped) line.push_back(at->first);
  }
  return line;
}

}  // namespace lamina::sim
