#include "engine/collect.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/store.h"
#include "tier/step_table.h"

namespace lamina::engine {

// The step that a live trainer follows must not go: its next save would fail for want of a parent.
absl::Status Collector::CheckNotFollowed(const format::LogRecord& newest, const format::StepEntry& entry, bool dry_run) {
  if (entry.commit != newest.head) return absl::OkStatus();
  LAMINA_ASSIGN_OR_RETURN(const bool held, log_.IsHeld(dry_run));
  if (!held) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("step ", entry.attempt.step, " is the newest, and a trainer builds on it: host ",
                                                    newest.trainer.host, ", pid ", newest.trainer.pid, ", seen less than a minute ago"));
}

absl::StatusOr<Collected> Collector::Collect(const CollectRequest& request) {
  Collected collected;
  LAMINA_ASSIGN_OR_RETURN(format::LogRecord newest, log_.Newest(/*damage_ok=*/true));
  if (newest.damaged != 0) {
    return absl::DataLossError(absl::StrCat("nothing is dropped or deleted while log record ", newest.damaged, " is damaged"));
  }
  std::vector<uint64_t> commits;
  if (request.step.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(const format::StepEntry entry, FindStep(newest, *request.step));
    LAMINA_RETURN_IF_ERROR(CheckNotFollowed(newest, entry, request.dry_run));
    commits.push_back(entry.commit);
  }
  if (request.dry_run) {
    if (!request.step.has_value()) {
      LAMINA_ASSIGN_OR_RETURN(commits, log_.Superfluous(newest, request.policy, /*dry_run=*/true));
    }
    std::sort(commits.begin(), commits.end());  // as the table has them, and so what a drop tells
    for (const uint64_t commit : commits) {
      collected.dropped.push_back(*tier::FindCommit(newest, commit));
      LAMINA_RETURN_IF_ERROR(tier::DropStep(newest, commit));
    }
  } else if (request.step.has_value()) {
    const format::StepEntry entry = *tier::FindCommit(newest, commits.front());
    // Asked again: a trainer may roll back to it meanwhile.
    const auto may_drop = [&](const format::LogRecord& latest) { return CheckNotFollowed(latest, entry, /*dry_run=*/false); };
    LAMINA_RETURN_IF_ERROR(log_.Drop(commits, absl::StrCat("gc of step ", *request.step), std::nullopt, may_drop));
    collected.dropped.push_back(entry);
  } else {
    LAMINA_ASSIGN_OR_RETURN(collected.dropped, log_.Retain(request.policy, "gc"));
  }
  tier::SweepOptions options;
  options.reader_grace_ns = request.reader_grace_ns;
  options.dry_run = request.dry_run;
  options.count_bytes = true;
  LAMINA_ASSIGN_OR_RETURN(collected.sweep, log_.Sweep(std::nullopt, options, &newest));
  LAMINA_ASSIGN_OR_RETURN(collected.usage, log_.MeasureUsage());
  return collected;
}

absl::Status Collector::Pin(int64_t step, bool pinned) {
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord newest, log_.Newest());
  LAMINA_ASSIGN_OR_RETURN(const format::StepEntry entry, FindStep(newest, step));
  return log_.Pin(entry.commit, pinned);
}

}  // namespace lamina::engine
