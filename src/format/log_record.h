// One record of the log. A record carries the whole table of steps, so that a reader reads one record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "format/chunk.h"
#include "format/paths.h"

namespace lamina::format {

enum class RecordKind : uint8_t { kOpen = 1, kCommit = 2, kAbort = 3, kRewind = 4, kDrop = 5, kRewrite = 6 };
enum class StepState : uint8_t { kLive = 1, kAbandoned = 2, kPinned = 3, kDropped = 4 };

struct StepEntry {
  uint64_t commit = 0;  // number of the record that committed it: its identity
  uint64_t parent = 0;  // commit it follows on the line; 0: none
  AttemptId attempt;
  Digest catalog_digest;      // Checksum128 of the file `catalog`
  Digest packs_digest;        // of the file `packs`
  int64_t committed_ns = 0;   // wall clock of the leader
  uint64_t state_bytes = 0;   // raw bytes of the job's state
  uint64_t stored_bytes = 0;  // written by this save
  StepState state = StepState::kLive;
  bool operator==(const StepEntry&) const = default;
};

// Who opened an incarnation.
struct Trainer {
  std::string run_id;  // empty: not known
  std::string host;
  std::string boot_id;
  std::string pid_namespace;
  int64_t pid = 0;
  int64_t start_ticks = 0;
  bool operator==(const Trainer&) const = default;
};

struct LogRecord {
  Digest store_id;
  uint64_t number = 0;  // that of its file
  RecordKind kind = RecordKind::kOpen;
  Digest nonce;                    // of this publication
  uint64_t incarnation = 0;        // number of the `open` it belongs to; an `open`'s own number
  uint64_t head = 0;               // newest commit of the line; 0: none
  uint64_t floor = 1;              // lowest number still kept; a put below it is void
  uint64_t damaged = 0;            // number of a record found damaged in both copies and passed over by a claim; 0: none
  int64_t written_ns = 0;          // wall clock
  AttemptId subject;               // of commit, abort, rewind: the attempt it is about; else all 0
  std::string reason;              // of abort: "skipped: ...", or the cause; of rewind, drop: why
  std::vector<uint64_t> opens;     // numbers of all `open` records
  Trainer trainer;                 // of the newest `open`
  std::vector<StepEntry> steps;    // sorted by commit
  std::vector<AttemptId> unswept;  // aborted, superseded or dropped attempts whose files may still lie there
  bool operator==(const LogRecord&) const = default;
};

// What a reader insists on: numbers in order and in range, the head in the table, no attempt twice in it, the subject that the kind
// demands, `incarnation` the last of `opens`. InvalidArgument names the first thing that is wrong. A record that fails this must not be
// published.
absl::Status ValidateLogRecord(const LogRecord& record);

inline constexpr size_t kLogCopyAlignment = 4096;  // each copy is padded to this, so that one bad sector does not take both

// The record twice, each copy with its own checksum, the second at half the length. Empty when it would be larger than kMetadataBytesMax.
std::string EncodeLogRecord(const LogRecord& record);
// Decodes the first sound copy. DataLoss when both are bad, when what they say breaks ValidateLogRecord, or when the record's number is not
// `number` or its store not `store_id`; Unimplemented for a newer version.
absl::StatusOr<LogRecord> DecodeLogRecord(std::span<const std::byte> bytes, uint64_t number, const std::optional<Digest>& store_id = {});
// The same of the first copy alone.
absl::StatusOr<LogRecord> DecodeLogRecordCopy(std::span<const std::byte> bytes, uint64_t number,
                                              const std::optional<Digest>& store_id = {});

}  // namespace lamina::format
