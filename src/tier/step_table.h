// The table of steps in a record of the log, and what each kind of record does to it. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "format/log_record.h"

namespace lamina::tier {

// Null when it is not in the table. A dropped step is in it until its packs are gone.
const format::StepEntry* FindCommit(const format::LogRecord& record, uint64_t commit);
const format::StepEntry* FindAttempt(const format::LogRecord& record, const format::AttemptId& attempt);
bool IsUnswept(const format::LogRecord& record, const format::AttemptId& attempt);

// Makes `commit` the head: what is on its line becomes live, what is off it abandoned; pinned and dropped steps stay so.
void MoveHead(format::LogRecord& record, uint64_t commit);
// Marks a step dropped; a dropped head hands over to its nearest ancestor that is left. NotFound; FailedPrecondition for a pinned step.
absl::Status DropStep(format::LogRecord& record, uint64_t commit);
// Pins a step of the table, or makes it live or abandoned again.
void PinStep(format::LogRecord& record, uint64_t commit, bool pinned);
// Steps of the line beyond the newest `keep`; none when `keep` is 0. Pinned ones stay and do not count.
std::vector<uint64_t> BeyondKept(const format::LogRecord& record, int64_t keep);
// Takes out what is about attempts of which no file is left, as far as nobody can still ask how they ended.
void Prune(format::LogRecord& record, const std::set<format::AttemptId>& swept);

}  // namespace lamina::tier
