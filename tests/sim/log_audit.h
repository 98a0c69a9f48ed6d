// The rules of the log, told a second time: every record of a root is compared with what its predecessor and its own kind make of the table
// of steps, by code that shares nothing with src/tier.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "format/log_record.h"

namespace lamina::sim {

class LogAudit {
 public:
  // `files`: the root's, by their names in it. Internal says which record breaks which rule. An empty audit where there is no log.
  static absl::StatusOr<LogAudit> Of(const std::map<std::string, std::string>& files);

  const std::vector<format::LogRecord>& records() const { return records_; }  // number n at n - 1
  uint64_t newest_number() const { return records_.size(); }
  const format::LogRecord& At(uint64_t number) const { return records_[number - 1]; }
  // Number of the commit record of an attempt; 0: it was never committed.
  uint64_t CommitOf(const format::AttemptId& attempt) const;
  // The head, and whether `commit` is on the line, after record `number`; 0 is the empty log.
  uint64_t HeadAt(uint64_t number) const { return number == 0 ? 0 : At(number).head; }
  std::vector<uint64_t> LineAt(uint64_t number) const;  // newest first, without dropped ones

 private:
  absl::Status Add(format::LogRecord record);

  std::vector<format::LogRecord> records_;
};

}  // namespace lamina::sim
