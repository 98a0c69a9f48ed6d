// The log of a root: what is committed, on which line, by which incarnation. Protocol and reasons: docs/architecture.md, "The log".
// Blocking calls; one Log object per user, used from one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"
#include "format/log_record.h"
#include "format/store_header.h"
#include "tier/sweeper.h"
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
  uint64_t parent = 0;                  // commit it follows; 0: none
  bool supersedes_parent_step = false;  // the head's step saved again: the new one takes the head's parent, whatever `parent` says, and the
                                        // old one is dropped
  format::Digest catalog_digest;
  format::Digest packs_digest;
  uint64_t state_bytes = 0;
  uint64_t stored_bytes = 0;
};

// What retention drops.
struct RetentionPolicy {
  int64_t keep = 0;  // steps of the line beyond the newest so many that are not pinned; 0: none
  // Steps that have been off the line for so long, by the store's clock, as far as the log can tell; nullopt: none.
  std::optional<int64_t> abandoned_ns = std::nullopt;
};

inline constexpr uint64_t kRecordsKept = 1000;  // besides each `open`

class Log {
 public:
  // `tier` outlives the log. Nothing is read. Logs of one process that publish and sweep share `swept`; null: this one is alone. Tests
  // keep fewer records.
  Log(env::Env& env, Tier& tier, std::shared_ptr<Swept> swept = nullptr, uint64_t records_kept = kRecordsKept);

  // Creates the root's LAMINA file and directories when they are not there (put-if-absent: several may try), else reads it.
  absl::StatusOr<format::StoreHeader> CreateOrReadStore();
  absl::StatusOr<format::StoreHeader> ReadStore();  // NotFound when the root holds no store

  // The newest sound record, names settled first (whoever acts on a record makes it durable). A record without steps and number 0 for an
  // empty log. DataLoss when the newest record is damaged in both copies (`damage_ok`: then the one before, with `damaged` set).
  absl::StatusOr<format::LogRecord> Newest(bool damage_ok = false);

  // Publishes an `open` and returns it: its number is the new incarnation, its table what there is to restore. FailedPrecondition naming
  // host, pid and age when a live trainer holds the root and `takeover` is not set. Watches a lease of unknown state for up to lease_ns.
  // The store must have been created. A claim that fails otherwise may have been published all the same; the next claim of this process
  // follows it.
  absl::StatusOr<format::LogRecord> Claim(const ClaimOptions& options);

  // Publishes a commit; returns its number, also when it is committed already. It becomes the head; what is off its line becomes abandoned.
  // Aborted (fenced) when a newer incarnation opened before it; FailedPrecondition when the parent, or the step to supersede, has left the
  // table or the attempt was aborted; InvalidArgument when the step is not above its parent's. *Any other status leaves the outcome
  // unknown*: ask VerdictOf.
  absl::StatusOr<uint64_t> Commit(const CommitRequest& request);
  // Publishes an abort unless the attempt is settled; returns how it is settled then (kCommitted when a commit came first). Aborted
  // (fenced) when a newer incarnation opened before it, whatever else settled it: nothing but a commit matters more to the caller. After
  // another failure the outcome is unknown.
  absl::StatusOr<Verdict> Abort(const format::AttemptId& attempt, std::string_view reason);
  // Aborted when a newer incarnation has opened, for which nothing that this one still writes counts.
  absl::Status CheckNotFenced(uint64_t incarnation);
  // An attempt of an older incarnation that never committed counts as aborted: it can do so no more.
  absl::StatusOr<Verdict> VerdictOf(const format::AttemptId& attempt);
  // Makes `commit` the head of the line; commits off the new line become abandoned. NotFound when it has left the table; Aborted when
  // fenced. Nothing is published when it is the head.
  absl::Status Rewind(uint64_t incarnation, uint64_t commit, std::string_view reason);
  // Marks steps dropped; a dropped head hands over to its nearest ancestor that is left. All or none: NotFound, or FailedPrecondition for a
  // pinned one. A trainer gives its `incarnation` and gets Aborted when it is fenced; tools that never claim give none.
  // `may_drop` is asked of each record that the drop would follow.
  absl::Status Drop(const std::vector<uint64_t>& commits, std::string_view reason, std::optional<uint64_t> incarnation = std::nullopt,
                    const std::function<absl::Status(const format::LogRecord& newest)>& may_drop = {});
  // What `policy` would drop of `record`, a record of this log. With `dry_run` nothing is written, and this machine's clock stands in for
  // the store's.
  absl::StatusOr<std::vector<uint64_t>> Superfluous(const format::LogRecord& record, const RetentionPolicy& policy, bool dry_run = false);
  // Drops what the policy says of the very record that the drop is published on; returns what it dropped. Never the head. As Drop
  // otherwise.
  absl::StatusOr<std::vector<format::StepEntry>> Retain(const RetentionPolicy& policy, std::string_view reason,
                                                        std::optional<uint64_t> incarnation = std::nullopt);
  // Pins a step, which nothing drops then, or lets it go. NotFound when it has left the table.
  absl::Status Pin(uint64_t commit, bool pinned);

  // Removes files that nothing can need: of aborted attempts, of attempts of older incarnations that no record speaks of, of dropped steps
  // once their readers are gone; never a pack that a step's list names, never a name that Lamina did not make. Old records go too, and
  // at the first call of an incarnation leases and leftovers. A trainer gives its `incarnation` and gets Aborted when it is not the
  // newest; tools that never claim give none. DataLoss while a damaged record was passed over, or when a step's list of packs cannot be
  // read. With options.dry_run `planned` may stand in for the newest record.
  absl::StatusOr<SweepReport> Sweep(std::optional<uint64_t> incarnation, const SweepOptions& options = {},
                                    const format::LogRecord* planned = nullptr);

  // Once every grace has passed and a sweep has ended well, disk_bytes is at most twice needed_bytes (I5).
  absl::StatusOr<Usage> MeasureUsage();

  // Aborted (fenced) when `incarnation` is not the newest.
  absl::Status CheckIsNewest(uint64_t incarnation);
  // Renews the lease of a live trainer; called every 10 s.
  absl::Status RenewLease(uint64_t incarnation);
  // Whether a trainer holds the root, as far as its lease tells: one that was killed does so for a minute more.
  absl::StatusOr<bool> IsHeld(bool dry_run = false);

 private:
  // The newest sound record, and the number of the newest of all, which is higher when damaged ones were passed over.
  struct Top {
    uint64_t number = 0;
    format::LogRecord record;
  };
  struct Settlement {
    Verdict verdict = Verdict::kUnsettled;
    uint64_t commit = 0;
  };
  // Makes the record to publish at `number` on top of `newest`; nullopt when there is nothing to publish any more.
  using Build = std::function<absl::StatusOr<std::optional<format::LogRecord>>(const format::LogRecord& newest, uint64_t number)>;

  absl::StatusOr<format::Digest> StoreId();
  absl::StatusOr<uint64_t> NewestNumber();
  absl::StatusOr<format::LogRecord> ReadRecord(uint64_t number);
  static Top NothingYet(const format::Digest& store_id);
  absl::StatusOr<Top> FindTop(bool damage_ok);
  absl::StatusOr<Top> PassOver(uint64_t damaged, const absl::Status& why);
  absl::StatusOr<std::optional<format::LogRecord>> Publish(bool damage_ok, const Build& build);
  absl::StatusOr<bool> Put(const format::LogRecord& record);
  absl::StatusOr<bool> Counts(const format::LogRecord& record);
  format::LogRecord NextRecord(const format::LogRecord& newest, uint64_t number, format::RecordKind kind) const;
  format::LogRecord OpenRecord(const format::LogRecord& newest, uint64_t number, const ClaimOptions& options);
  absl::StatusOr<format::LogRecord> CommitRecord(const format::LogRecord& newest, uint64_t number, const CommitRequest& request);
  // Which commits to drop of the record that a drop is built on.
  using Select = std::function<absl::StatusOr<std::vector<uint64_t>>(const format::LogRecord& newest)>;
  absl::StatusOr<std::vector<format::StepEntry>> DropSelected(const Select& select, std::string_view reason,
                                                              std::optional<uint64_t> incarnation);
  absl::StatusOr<int64_t> NowNs(bool dry_run);
  absl::StatusOr<int64_t> HeldNs(const format::LogRecord& newest, const format::StepEntry& step, int64_t now_ns, int64_t enough_ns);
  absl::StatusOr<Settlement> SettlementIn(const format::LogRecord& newest, const format::AttemptId& attempt);

  // Since when a step has been in a state, as far as records up to `through` tell.
  struct Held {
    format::StepState state;
    int64_t since_ns;  // by the store's clock
    uint64_t through;
  };

  env::Env& env_;
  Tier& tier_;
  const uint64_t records_kept_;
  Sweeper sweeper_;
  std::map<uint64_t, Held> held_;  // by commit: so that each record is looked at once
  std::optional<format::StoreHeader> store_;
  uint64_t newest_known_ = 0;  // a list that ends below it is stale
};

// The line: head and its ancestors, newest first, without dropped ones.
std::vector<format::StepEntry> LineOf(const format::LogRecord& record);
// Why a step may be missing from the line: a damaged record was passed over, and nothing has been committed since. Empty otherwise.
std::string PassedOver(const format::LogRecord& record);

}  // namespace lamina::tier
