#include "tier/step_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tier/log.h"

namespace lamina::tier {
namespace {

using format::LogRecord;
using format::StepEntry;
using format::StepState;

// A dropped step stays in the table for as many records: a rank that is that far behind has missed votes, so no save of its own is among
// them.
constexpr uint64_t kDroppedKept = 100;

auto PositionOf(const LogRecord& record, uint64_t commit) {
  const auto found = std::lower_bound(record.steps.begin(), record.steps.end(), commit,
                                      [](const StepEntry& step, uint64_t number) { return step.commit < number; });
  return found != record.steps.end() && found->commit == commit ? found : record.steps.end();
}

StepEntry& EntryOf(LogRecord& record, const StepEntry& step) { return record.steps[static_cast<size_t>(&step - record.steps.data())]; }

// `commit` and its ancestors, dropped ones too. Parents are older than their children, so it ends.
std::vector<uint64_t> AncestryOf(const LogRecord& record, uint64_t commit) {
  std::vector<uint64_t> line;
  for (const StepEntry* step = FindCommit(record, commit); step != nullptr; step = FindCommit(record, step->parent)) {
    line.push_back(step->commit);
  }
  return line;
}

}  // namespace

const StepEntry* FindCommit(const LogRecord& record, uint64_t commit) {
  const auto found = PositionOf(record, commit);
  return found == record.steps.end() ? nullptr : &*found;
}

const StepEntry* FindAttempt(const LogRecord& record, const format::AttemptId& attempt) {
  const auto found = std::find_if(record.steps.begin(), record.steps.end(), [&](const StepEntry& step) { return step.attempt == attempt; });
  return found == record.steps.end() ? nullptr : &*found;
}

bool IsUnswept(const LogRecord& record, const format::AttemptId& attempt) {
  return std::find(record.unswept.begin(), record.unswept.end(), attempt) != record.unswept.end();
}

void MoveHead(LogRecord& record, uint64_t commit) {
  record.head = commit;
  const std::vector<uint64_t> ancestry = AncestryOf(record, commit);
  const std::set<uint64_t> line(ancestry.begin(), ancestry.end());
  for (StepEntry& step : record.steps) {
    if (step.state != StepState::kLive && step.state != StepState::kAbandoned) continue;
    step.state = line.contains(step.commit) ? StepState::kLive : StepState::kAbandoned;
  }
}

absl::Status DropStep(LogRecord& record, uint64_t commit) {
  const StepEntry* step = FindCommit(record, commit);
  if (step == nullptr) return absl::NotFoundError(absl::StrCat("commit ", commit, " is not in the table of steps"));
  if (step->state == StepState::kPinned) {
    return absl::FailedPreconditionError(absl::StrCat("step ", step->attempt.step, " (commit ", commit, ") is pinned"));
  }
  EntryOf(record, *step).state = StepState::kDropped;
  if (record.head != commit) return absl::OkStatus();
  const std::vector<StepEntry> left = LineOf(record);
  MoveHead(record, left.empty() ? 0 : left.front().commit);
  return absl::OkStatus();
}

void PinStep(LogRecord& record, uint64_t commit, bool pinned) {
  const StepEntry* step = FindCommit(record, commit);
  if (step == nullptr) return;
  EntryOf(record, *step).state = pinned ? StepState::kPinned : StepState::kLive;
  MoveHead(record, record.head);
}

std::vector<uint64_t> BeyondKept(const LogRecord& record, int64_t keep) {
  std::vector<uint64_t> beyond;
  int64_t count = 0;
  for (const StepEntry& step : LineOf(record)) {
    if (keep > 0 && step.state != StepState::kPinned && ++count > keep) beyond.push_back(step.commit);
  }
  return beyond;
}

void Prune(LogRecord& record, const std::set<format::AttemptId>& swept) {
  std::erase_if(record.unswept, [&](const auto& id) { return id.incarnation < record.incarnation && swept.contains(id); });
  for (size_t i = record.steps.size(); i-- > 0;) {
    const StepEntry gone = record.steps[i];
    if (gone.state != StepState::kDropped || !swept.contains(gone.attempt) || gone.commit + kDroppedKept > record.number) continue;
    for (StepEntry& step : record.steps) {
      if (step.parent == gone.commit) step.parent = gone.parent;
    }
    record.steps.erase(record.steps.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::vector<StepEntry> LineOf(const LogRecord& record) {
  std::vector<StepEntry> line;
  for (const uint64_t commit : AncestryOf(record, record.head)) {
    const StepEntry* step = FindCommit(record, commit);
    if (step->state != StepState::kDropped) line.push_back(*step);
  }
  return line;
}

std::string PassedOver(const LogRecord& record) {
  if (record.damaged <= record.head) return {};
  return absl::StrCat("'", format::LogPath(record.damaged), "' is damaged in both copies; the step it may have committed is passed over");
}

}  // namespace lamina::tier
