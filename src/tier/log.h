// The log of a root: what is committed, on which line, by which incarnation. Protocol and reasons: docs/architecture.md, "The log".
// Blocking calls; one Log object per user, used from one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"
#include "format/log_record.h"
#include "format/store_header.h"
#include "tier/tier.h"

namespace lamina::tier {

struct ClaimOptions {
  std::string run_id;                 // empty: not known
  bool takeover = false;              // take the root from a live trainer
  int64_t lease_ns = 60'000'000'000;  // a writer whose lease is untouched this long is gone
};

// How a save ended, as the log has it.
enum class Verdict { kUnsettled, kCommitted, kAborted };

struct CommitRequest {
  format::AttemptId attempt;
  uint64_t parent = 0;                // commit it follows; 0: none
  bool supersedes_parent_step = false;  // the same step saved again: `parent` is the old one's parent and the old one leaves the table
  format::Digest catalog_digest;
  format::Digest packs_digest;
  uint64_t state_bytes = 0;
  uint64_t stored_bytes = 0;
};

class Log {
 public:
  // `tier` outlives the log. Nothing is read.
  Log(env::Env& env, Tier& tier);

  // Creates the root's LAMINA file and directories when they are not there (put-if-absent: several may try), else reads it.
  absl::StatusOr<format::StoreHeader> CreateOrReadStore();
  absl::StatusOr<format::StoreHeader> ReadStore();                    // NotFound when the root holds no store

  // The newest sound record, names settled first (whoever acts on a record makes it durable). A record without steps and number 0 for an
  // empty log. DataLoss when the newest record is damaged in both copies (`damage_ok`: then the one before, with `damaged` set).
  absl::StatusOr<format::LogRecord> Newest(bool damage_ok = false);

  // Publishes an `open` and returns it: its number is the new incarnation. FailedPrecondition naming host, pid and age when a live trainer
  // holds the root and `takeover` is not set. Watches a lease of unknown state for up to lease_ns.
  absl::StatusOr<format::LogRecord> Claim(const ClaimOptions& options);

  // Publishes a commit; returns its number. Aborted (fenced) when a newer incarnation opened before it; FailedPrecondition when the parent left the
  // table or the attempt is settled otherwise; the number of the record when it is committed already. *Any other status leaves the outcome
  // unknown*: ask VerdictOf.
  absl::StatusOr<uint64_t> Commit(const CommitRequest& request);
  // Publishes an abort unless the attempt is settled; returns how it is settled then (kCommitted when a commit came first).
  absl::StatusOr<Verdict> Abort(const format::AttemptId& attempt, std::string_view reason);
  absl::StatusOr<Verdict> VerdictOf(const format::AttemptId& attempt);
  // Makes `commit` the head of the line; commits off the new line become abandoned. NotFound when it has left the table; Aborted when fenced.
  absl::Status Rewind(uint64_t incarnation, uint64_t commit, std::string_view reason);
  // Takes steps from the table (they become dropped).
  absl::Status Drop(const std::vector<uint64_t>& commits, std::string_view reason);

  // Removes files of attempts that section "Sweeping" lets go: aborted, superseded, or of older incarnations and in no step's packs. Never
  // touches a name that Lamina did not make. Returns the number of objects removed. `incarnation`: of the caller, which must be the newest.
  absl::StatusOr<int64_t> Sweep(uint64_t incarnation);

  // Renews the lease of a live trainer; called every 10 s.
  absl::Status RenewLease(uint64_t incarnation);
};

// The line: head and its ancestors, newest first.
std::vector<format::StepEntry> LineOf(const format::LogRecord& record);

}  // namespace lamina::tier
