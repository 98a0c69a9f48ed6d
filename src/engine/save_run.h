// One save from the snapshot to its verdict, on the save thread. docs/architecture.md, "One save", has the sequence and its reasons.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/agreement.h"
#include "engine/pack_writer.h"
#include "engine/runtime.h"
#include "engine/save_messages.h"
#include "format/store_header.h"
#include "plan/save_plan.h"
#include "snapshot/snapshotter.h"
#include "tier/log.h"

namespace lamina::engine {

// A plan with the descriptions it was made from. Shared by the saves that use it; never changed.
struct PlanSet {
  std::vector<plan::RankDescription> descriptions;
  plan::SavePlan plan;
};

// A save whose snapshot is taken.
struct SaveJob {
  int64_t number = 0;  // counts the engine's saves
  int64_t step = 0;
  std::string key;      // starts this save's coordination keys
  absl::Status status;  // what went wrong before the background; then there is no snapshot
  plan::RankDescription description;
  std::shared_ptr<const PlanSet> plans;    // that the snapshot was taken by
  bool description_changed = false;        // everything was copied, not what the plan says
  std::vector<plan::BoxReference> copied;  // boxes of the snapshot's first items, in order
  std::vector<VotedBlob> blobs;            // the items behind them; `table` is not set yet
  snapshot::Snapshot snapshot;
  std::vector<format::Digest> replica_digests;  // of the replicas it does not write; zero for those it writes
  format::Digest tree_digest;
  Topology topology;
  int64_t begun_ns = 0;
};

// The root as the job has claimed it, and where its line stands.
struct Claimed {
  format::StoreHeader store;
  uint64_t incarnation = 0;
  uint64_t parent = 0;           // commit that the next save follows; the leader alone keeps it
  int64_t restored_step = -1;    // -1: nothing was restored
  uint64_t restored_parent = 0;  // parent of the restored commit: for a save of the same step
};

struct RunResult {
  Ended ended;
  std::shared_ptr<const PlanSet> plans;  // for later saves; null: to be agreed on again
  SaveTotals totals;                     // this rank's
  std::string differing;                 // of the leader: which replicas that may differ do so, and on which ranks; empty: none
};

// What a run asks of its engine and tells it.
struct SaveCallbacks {
  std::function<bool()> may_vote;                   // false: the save was given up
  std::function<bool()> abandoned;                  // the program has to end: stop as soon as may be
  std::function<void(std::string_view)> set_phase;  // for the beats
  std::function<void(int64_t bytes)> progress;      // so many are written by now
  std::function<void(EventKind kind, int64_t bytes, int64_t duration_ns, std::string cause)> post;
};

class SaveRun {
 public:
  // `log` is the save thread's own: what it remembers must outlive the run.
  SaveRun(const Options& options, const Runtime& runtime, Agreement& agreement, tier::Log& log, const Claimed& claimed, uint32_t attempt,
          SaveJob& job, int64_t deadline_ns, SaveCallbacks callbacks);
  RunResult Run();

  // Takes back what this rank has said in a save that every rank is past.
  static void Forget(Agreement& agreement, const std::string& job_key);

 private:
  absl::StatusOr<Go> LeadReady();
  absl::StatusOr<Go> FollowReady();
  absl::Status PlanAnew();
  absl::Status WriteAndVote(const Go& go);
  std::vector<PackItem> ItemsToWrite();
  std::vector<format::Digest> ReplicaDigests(const WrittenPack& pack);
  format::Digest DigestOfCopy(size_t item);
  absl::StatusOr<Vote> MakeVote(const WrittenPack& pack);
  void RemoveOwnPack(const format::AttemptId& attempt);
  absl::Status AskHooks();
  absl::Status Abandoned() const;
  absl::Status SomebodyFailed();
  Ended LeadVerdict(const Go& go, const absl::Status& mine);
  absl::StatusOr<Ended> LeadCommit(const Go& go);
  absl::StatusOr<Ended> WriteAndCommit(const Go& go, const std::vector<Vote>& votes);
  absl::Status CheckVotes(const std::vector<Vote>& votes);
  absl::Status CheckReplicas(const std::vector<Vote>& votes);
  absl::Status WriteObject(const std::string& name, std::string_view bytes);
  Ended Settle(const Go& go, const absl::Status& why);
  Ended CommittedByLog(const format::AttemptId& attempt);
  void NoteFence(Ended& ended);
  Ended FollowVerdict(const Go& go, const absl::Status& mine);
  void Tell(const absl::Status& cause);
  absl::Status AllCauses(const absl::Status& cause);
  Patience Waiting(std::string_view what) const;
  std::string Key(std::string_view name) const;

  const Options& options_;
  const Runtime& runtime_;
  Agreement& agreement_;
  tier::Log& log_;
  const Claimed& claimed_;
  const uint32_t attempt_;
  SaveJob& job_;
  const int64_t deadline_ns_;
  const SaveCallbacks callbacks_;
  std::shared_ptr<const PlanSet> plans_;
  bool voted_ = false;
  bool written_ = false;  // this rank's pack is durable
  int64_t next_look_ns_ = 0;
  SaveTotals totals_;
  std::string differing_;
};

}  // namespace lamina::engine
