// The rules of the log, told a second time: every record of a root is compared with what its predecessor and its own kind make of the table
// of steps, by code that shares nothing with src/tier.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "format/log_record.h"

namespace lamina::sim {

struct AuditOptions {
  int64_t abandoned_ns = 0;                              // steps must have been off the line for so long before retention drops them
  std::optional<format::LogRecord> lost = std::nullopt;  // as it was before both of its copies went bad
};

class LogAudit {
 public:
  // `files`: the root's, by their names in it. Internal says which record breaks which rule. An empty audit where there is no log.
  static absl::StatusOr<LogAudit> Of(const std::map<std::string, std::string>& files, AuditOptions options = {});

  const std::vector<format::LogRecord>& records() const { return records_; }  // number n at n - 1; the lost one as it was
  uint64_t newest_number() const { return records_.size(); }
  const format::LogRecord& At(uint64_t number) const { return records_[number - 1]; }
  // What readers go by: the newest sound one. The log must not be empty.
  const format::LogRecord& Newest() const { return newest_is_lost() ? At(newest_number() - 1) : records_.back(); }
  bool newest_is_lost() const { return options_.lost.has_value() && options_.lost->number == newest_number(); }
  // The log goes on over a record that was lost, or cannot go on until somebody claims.
  bool is_damaged() const { return !records_.empty() && (newest_is_lost() || records_.back().damaged != 0); }
  // Number of the commit record of an attempt; 0: it was never committed.
  uint64_t CommitOf(const format::AttemptId& attempt) const;
  // The head, and whether `commit` is on the line, after record `number`; 0 is the empty log.
  uint64_t HeadAt(uint64_t number) const { return number == 0 ? 0 : At(number).head; }
  std::vector<uint64_t> LineAt(uint64_t number) const;  // newest first, without dropped ones

 private:
  absl::Status Add(format::LogRecord record);
  // Whether a drop follows its own reason.
  absl::Status CheckDrop(const format::LogRecord& before, const format::LogRecord& record) const;
  int64_t AbandonedSinceNs(uint64_t commit) const;

  AuditOptions options_;
  std::vector<format::LogRecord> records_;
};

}  // namespace lamina::sim
