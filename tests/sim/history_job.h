// One launch of a job in a simulated history: what its ranks are to do, and what they were told.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coord/in_process.h"
#include "env/sim_env.h"
#include "testing/job.h"

namespace lamina::sim {

inline constexpr char kRoot[] = "/ckpt/run";

// A step of a job's script, the same on all ranks. What a save's step is follows from what was restored: `rise` more than it, or than the
// last save.
struct Action {
  enum class Kind { kRestore, kSave, kSettle, kSleep };
  Kind kind = Kind::kSettle;
  std::optional<int64_t> step = {};  // of a restore
  bool to_start = false;             // of a restore: the step that the job began with
  int64_t rise = 0;
  int64_t life = 0;   // of a save: unique in the history, and part of the true bytes
  size_t layout = 0;  // of a restore and a save
  int64_t sleep_ns = 0;
  int64_t linger_ns = 0;  // of a restore: between the choice of the step and its tensors
};

struct Script {
  Mode mode = Mode::kTrain;
  std::string run_id = {};
  bool takeover = false;
  double restore_retry_s = 1;
  int64_t memory_bytes = 64 * 1024;
  int32_t keep = 0;
  double gc_grace_s = 600;
  double abandoned_grace_s = 604800;
  uint64_t log_records_kept = tier::kRecordsKept;
  bool late_copies = false;
  bool abandons = false;              // gives up its saves in the end, as a program under an exception
  std::vector<int64_t> late_ns = {};  // of each rank: before each action
  std::vector<Action> actions = {};
  std::vector<std::vector<testing::LaidOutTensor>> layouts = {};
};

// What a rank was told, in its order.
struct Told {
  Action::Kind kind = Action::Kind::kSave;
  absl::Status status = {};
  bool skipped = false;
  std::optional<int64_t> asked = {};   // of a restore
  std::set<int64_t> passed_over = {};  // by a restore: steps; -1: one that is lost with its record
  testing::Moment moment = {};         // restored ({-1, 0}: nothing was there) or saved
  uint32_t save_ordinal = 0;           // counts the job's saves, as attempts do
  uint64_t records = 0;                // of the log, when it was told
  int64_t told_ns = 0;                 // by the file server's clock
  bool is_protected = true;            // the lease under which the job read last has not run out
};

// What is noted when a rank is told something.
struct Seen {
  uint64_t records = 0;
  int64_t now_ns = 0;
  bool is_protected = true;
};
using Look = std::function<Seen(const env::SimProcess& leader)>;

class HistoryJob {
 public:
  // `host_of` places ranks; `look` is asked by whoever holds the baton.
  HistoryJob(env::SimWorld& world, int64_t ordinal, int32_t rank_count, Script script, const std::function<std::string(int32_t)>& host_of,
             Look look);

  int64_t ordinal() const { return ordinal_; }
  const Script& script() const { return shared_->script; }
  int32_t rank_count() const { return static_cast<int32_t>(processes_.size()); }
  env::SimProcess& process(int32_t rank) const { return *processes_[static_cast<size_t>(rank)]; }
  const std::vector<env::SimProcess*>& processes() const { return processes_; }
  coord::InProcessHub& hub() { return shared_->hub; }
  const std::vector<Told>& told(int32_t rank) const { return shared_->ranks[static_cast<size_t>(rank)].told; }
  // How the rank's program ended; Unknown while it has not.
  const absl::Status& status(int32_t rank) const { return shared_->ranks[static_cast<size_t>(rank)].status; }

  // Every rank came to its end, and everything was done but what `excused` says, and saves that it gave up or that were skipped for a
  // changed layout.
  bool AllOk(const std::function<bool(const Told&)>& excused) const;
  std::string Describe() const;

 private:
  struct RankOutcome {
    std::vector<Told> told;
    absl::Status status = absl::UnknownError("did not end");
  };
  struct Shared {
    Script script;
    coord::InProcessHub hub;
    std::vector<RankOutcome> ranks;
    Look look;
    const env::SimProcess* leader = nullptr;
  };
  class Body;

  const int64_t ordinal_;
  std::shared_ptr<Shared> shared_;
  std::vector<env::SimProcess*> processes_;
};

}  // namespace lamina::sim
