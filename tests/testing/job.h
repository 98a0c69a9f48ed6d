// A training job of several ranks in miniature: what its engines stand on, the script its ranks run, and what a root holds afterwards.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coord/in_process.h"
#include "device/host_device.h"
#include "engine/runtime.h"
#include "engine/store.h"
#include "io/thread_queue.h"
#include "testing/direct_queue.h"
#include "testing/job_state.h"
#include "tier/file_tier.h"
#include "tier/log.h"

namespace lamina::testing {

// Options of a job whose failures are told within seconds.
inline Options JobOptions(std::string root, int32_t rank, int32_t rank_count, std::string run_id = "run") {
  Options options;
  options.root = std::move(root);
  options.rank = rank;
  options.rank_count = rank_count;
  options.run_id = std::move(run_id);
  options.memory_bytes = 64 * 1024;
  options.begin_timeout_s = 3;
  options.beat_s = 0.5;
  options.beat_timeout_s = 2;
  options.restore_retry_s = 1;
  options.io_threads = 1;
  options.coordination_prefix = "job";
  return options;
}

// One rank's engine and what it stands on. `env` and `hub` outlive it.
class Rank {
 public:
  // By `chaos_seed` the device finishes its copies late and out of order, and their targets hold poison until then.
  Rank(env::Env& env, coord::InProcessHub& hub, const Options& options, std::optional<uint64_t> chaos_seed = 1,
       uint64_t log_records_kept = tier::kRecordsKept, coord::Coordinator* coordinator = nullptr)
      : options_(options),
        queue_(env, 1, 1),
        tier_(env, options.root, queue_),
        coordinator_(env, hub),
        device_(env, {.threads = 1, .chaos_seed = chaos_seed}),
        engine_(engine::NewEngine(options, {env, tier_, coordinator != nullptr ? *coordinator : coordinator_, device_, nullptr, nullptr,
                                            log_records_kept})
                    .value()) {}

  const Options& options() const { return options_; }
  engine::CoreEngine& engine() { return *engine_; }
  tier::Tier& tier() { return tier_; }

 private:
  const Options options_;
  io::ThreadQueue queue_;
  tier::FileTier tier_;
  coord::InProcessCoordinator coordinator_;
  device::HostDevice device_;
  std::unique_ptr<engine::CoreEngine> engine_;
};

// What a rank does: restores, then saves, then ends.
struct Script {
  int64_t life = 1;
  std::optional<int64_t> restore_step = {};
  std::vector<int64_t> saves = {};
};

// What a rank was told, as far as it got.
struct Told {
  std::optional<Moment> restored;                       // {-1, 0}: nothing was there
  std::vector<std::pair<int64_t, absl::Status>> saves;  // of those that ended
  absl::Status status = absl::UnknownError("did not end");
};

inline absl::StatusOr<std::shared_ptr<SaveHandle>> BeginSave(Engine& engine, RankState& state, const Moment& moment) {
  state.Set(moment);
  const std::vector<BlobView> blobs = state.Blobs(moment);
  return engine.Save({moment.step, state.views(), blobs, {{"dp", 1}}});
}

// Restores and checks every bit. {-1, 0} when nothing was there. Internal for wrong bits, and for targets that a restore which failed has
// touched without saying so. `between` is called once the step is chosen; `passed_over` gets what a restore that is done tells of.
inline absl::StatusOr<Moment> RestoreAndCheck(Engine& engine, RankState& state, std::optional<int64_t> step,
                                              const std::function<void()>& between = {}, std::vector<PassedOver>* passed_over = nullptr) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<RestoreSession> session, engine.BeginRestore(step));
  if (between) between();
  if (!session->found()) return Moment{-1, 0};
  while (true) {
    const int64_t found_step = session->step();
    const int32_t rank_count = session->rank_count();
    const std::vector<StoredBlob> blobs = session->blobs();
    state.Poison();
    const absl::StatusOr<RestoreSession::Progress> progress = session->Fill(state.views());
    const bool may_touch = progress.ok() ? *progress == RestoreSession::Progress::kFilled
                                         : absl::StrContains(progress.status().message(), "filled: do not train on them");
    if (!may_touch && !state.IsPoisoned())
      return absl::InternalError(absl::StrCat("targets were touched, and nothing says so: ", progress.status().ToString()));
    LAMINA_RETURN_IF_ERROR(progress.status());
    if (*progress == RestoreSession::Progress::kOlder) continue;
    LAMINA_ASSIGN_OR_RETURN(const Moment moment, MomentOf(blobs, rank_count));
    if (moment.step != found_step) return absl::InternalError(absl::StrCat("step ", found_step, " holds the values of ", TreeText(moment)));
    LAMINA_RETURN_IF_ERROR(state.Check(moment));
    LAMINA_RETURN_IF_ERROR(session->End());
    if (passed_over != nullptr) *passed_over = session->passed_over();
    return moment;
  }
}

// How a save ended: committed, or why not.
inline absl::Status Await(SaveHandle& handle) {
  LAMINA_ASSIGN_OR_RETURN(const SaveReport report, handle.Wait(-1));
  return report.outcome == Outcome::kCommitted ? absl::OkStatus() : absl::CancelledError("skipped: " + report.reason);
}

inline absl::Status RunScript(Rank& rank, const Script& script, Told& told) {
  Engine& engine = rank.engine();
  RankState state(rank.options().rank, rank.options().rank_count);
  LAMINA_ASSIGN_OR_RETURN(told.restored, RestoreAndCheck(engine, state, script.restore_step));
  std::vector<std::shared_ptr<SaveHandle>> handles;  // two in flight
  for (const int64_t step : script.saves) {
    LAMINA_ASSIGN_OR_RETURN(handles.emplace_back(), BeginSave(engine, state, {step, script.life}));
    state.Poison();
    if (handles.size() == 2) told.saves.emplace_back(script.saves[0], Await(*handles[0]));
  }
  for (size_t i = told.saves.size(); i < handles.size(); ++i) told.saves.emplace_back(script.saves[i], Await(*handles[i]));
  return engine.Close(-1);
}

// What a root holds.
struct Found {
  std::vector<Moment> line;  // newest first
  std::vector<Moment> all;
  std::set<std::string> attempts;  // paths
  uint64_t incarnation = 0;        // the newest
  bool Has(const Moment& moment) const { return std::find(all.begin(), all.end(), moment) != all.end(); }
};

// Reads the whole step; Internal for wrong bits.
inline absl::StatusOr<Moment> CheckOpenStep(engine::Store& store, engine::StepReader& reader) {
  std::vector<StoredBlob> blobs;
  for (const format::CatalogBlob& blob : reader.catalog().blobs) {
    LAMINA_ASSIGN_OR_RETURN(std::string bytes, reader.ReadBlob(blob));
    blobs.push_back({blob.name, static_cast<int32_t>(blob.rank), std::move(bytes)});
  }
  LAMINA_ASSIGN_OR_RETURN(const Moment moment, MomentOf(blobs, static_cast<int32_t>(reader.catalog().rank_count)));
  if (moment.step != reader.entry().attempt.step) return absl::InternalError(absl::StrCat("holds the values of ", TreeText(moment)));
  for (const format::CatalogTensor& tensor : reader.catalog().tensors) {
    LAMINA_ASSIGN_OR_RETURN(const std::string bytes, store.ReadTensor(reader, tensor.name));
    const StoredTensor stored{tensor.name, tensor.dtype, tensor.global_shape, tensor.alias_of};
    if (bytes != TrueBytes(stored, moment))
      return absl::InternalError(absl::StrCat("'", tensor.name, "' is not that of ", TreeText(moment)));
  }
  return moment;
}

inline absl::StatusOr<Moment> CheckListedStep(env::Env& env, tier::Tier& tier, engine::Store& store, const format::StepEntry& entry,
                                              double retry_s = 0) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<engine::StepReader> reader,
                          engine::StepReader::Open(env, tier, store.header(), entry, retry_s));
  return CheckOpenStep(store, *reader);
}

// Reads back every step that is listed, and has the root verified. Nothing at all where there is no store yet.
inline absl::StatusOr<Found> CheckRoot(env::Env& env, const std::string& root) {
  Found found;
  DirectQueue queue;
  tier::FileTier tier(env, root, queue);
  const absl::StatusOr<std::unique_ptr<engine::Store>> store = engine::Store::Open(env, tier);
  if (absl::IsNotFound(store.status())) return found;
  LAMINA_RETURN_IF_ERROR(store.status());
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord newest, tier::Log(env, tier).Newest());
  found.incarnation = newest.incarnation;
  LAMINA_ASSIGN_OR_RETURN(const std::vector<engine::ListedStep> steps, (*store)->Steps(/*all=*/true));
  for (const engine::ListedStep& step : steps) {
    const absl::StatusOr<Moment> moment = CheckListedStep(env, tier, **store, step.entry);
    if (!moment.ok()) return base::Annotate(moment.status(), format::AttemptPath(step.entry.attempt));
    found.all.push_back(*moment);
    found.attempts.insert(format::AttemptPath(step.entry.attempt));
    if (step.on_line) found.line.push_back(*moment);
  }
  LAMINA_ASSIGN_OR_RETURN(const engine::Verification verification, (*store)->Verify(std::nullopt, /*full=*/true));
  if (!verification.problems.empty()) return absl::DataLossError(verification.problems.front().message);
  return found;
}

}  // namespace lamina::testing
