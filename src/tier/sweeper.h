// Removes files that nothing can need any more. docs/architecture.md, "Deleting", says why each kind may go.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"
#include "format/log_record.h"
#include "tier/swept.h"
#include "tier/tier.h"

namespace lamina::tier {

struct SweepOptions {
  int64_t reader_lease_ns = 120'000'000'000;  // a reader whose file is untouched this long is gone
  int64_t reader_grace_ns = 600'000'000'000;  // after a drop, for readers that cannot write a file
  bool dry_run = false;                       // says what would go; writes nothing
  bool count_bytes = false;                   // of each object, which costs a look at each
  std::function<bool()> may_go_on = {};       // asked before each object; false ends the sweep, and a later one does the rest
};

// A dropped step whose files stay for now.
struct WaitingStep {
  format::AttemptId attempt;
  int64_t grace_left_ns = 0;
  std::vector<std::string> readers;  // names of their files
  int64_t bytes = 0;                 // of what is to go; counted with count_bytes
};

struct SweepReport {
  std::vector<ObjectInfo> removed;  // without sizes unless count_bytes is set
  std::vector<WaitingStep> waiting;
};

// What lies under steps/, names that Lamina did not make left out.
struct Usage {
  int64_t disk_bytes = 0;
  int64_t needed_bytes = 0;  // of these, what steps of the table need that are not dropped
};

// Not thread-safe. Remembers between calls what it found gone and which readers it waits for.
class Sweeper {
 public:
  // How long a dropped step has been so, by the store's clock; the look at the log may end at `enough_ns`.
  using DroppedFor = std::function<absl::StatusOr<int64_t>(const format::StepEntry& step, int64_t now_ns, int64_t enough_ns)>;

  // `env` and `tier` outlive it.
  Sweeper(env::Env& env, Tier& tier, std::shared_ptr<Swept> swept) : env_(env), tier_(tier), swept_(std::move(swept)) {}

  // `newest` is the newest record, durable, without damage, of the caller's own incarnation. The first call for an incarnation looks
  // through the whole root; later ones at what `newest` names, and at the log when its floor has risen. `check` is asked again before each
  // further attempt: whether the caller may still delete. Nothing is removed when a step's list of packs cannot be read; what cannot be
  // removed keeps nothing else from going, and its status comes back in the end.
  absl::StatusOr<SweepReport> Sweep(const format::LogRecord& newest, const SweepOptions& options, const DroppedFor& dropped_for,
                                    const std::function<absl::Status()>& check);

  absl::StatusOr<Usage> Measure(const format::LogRecord& newest);

  const std::shared_ptr<Swept>& swept() const { return swept_; }

 private:
  // Readers for whom a dropped step's files stay.
  struct Readers {
    int64_t dropped_ns = 0;  // by the store's clock
    std::set<std::string> names;
    bool complete = false;  // the list was made when the time of grace was over
  };

  absl::StatusOr<std::set<format::AttemptId>> Candidates(const format::LogRecord& newest, const SweepOptions& options,
                                                         const DroppedFor& dropped_for, SweepReport& report);
  absl::StatusOr<std::set<format::AttemptId>> AttemptsThere();
  absl::Status AddDropped(const format::LogRecord& newest, const SweepOptions& options, const DroppedFor& dropped_for,
                          std::set<format::AttemptId>& attempts, SweepReport& report);
  absl::StatusOr<std::set<std::string>> NamedPacks(const format::LogRecord& newest);
  absl::Status SweepAttempt(const format::AttemptId& attempt, const std::set<std::string>& named, const SweepOptions& options,
                            SweepReport& report);
  absl::StatusOr<int64_t> BytesOf(const format::AttemptId& attempt, const std::set<std::string>& named);
  absl::StatusOr<std::vector<std::string>> NamesOf(const format::AttemptId& attempt);
  absl::StatusOr<bool> LiesThere(const format::AttemptId& attempt);
  absl::Status Remove(const std::string& name, const SweepOptions& options, SweepReport& report);
  absl::Status Tidy(const format::LogRecord& newest, const SweepOptions& options, SweepReport& report);
  absl::Status RemoveOldLog(const format::LogRecord& newest, const SweepOptions& options, SweepReport& report);
  absl::Status RemoveOldLeases(const format::LogRecord& newest, const SweepOptions& options, SweepReport& report);
  absl::Status RemoveOldNonces(std::string_view prefix, const SweepOptions& options, SweepReport& report);

  env::Env& env_;
  Tier& tier_;
  const std::shared_ptr<Swept> swept_;
  uint64_t tidied_ = 0;     // incarnation whose first sweep is done
  uint64_t log_floor_ = 0;  // old records below it are gone
  std::map<format::AttemptId, Readers> readers_;
  std::map<uint64_t, std::vector<std::string>> packs_;  // of each commit that is not dropped
};

}  // namespace lamina::tier
