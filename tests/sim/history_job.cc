#include "sim/history_job.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::sim {

using testing::Moment;
using testing::RankState;

// A rank's program.
class HistoryJob::Body {
 public:
  Body(testing::Rank& rank, Shared& shared) : rank_(rank), shared_(shared), mine_(shared.ranks[static_cast<size_t>(Ordinal())]) {}

  absl::Status Run(env::Env& env) {
    const absl::Status status = RunActions(env);
    // As Python does it: a program under an exception gives its saves up, any other waits for them.
    if (!status.ok() || shared_.script.abandons) rank_.engine().Abandon();
    AwaitAll();
    const absl::Status closed = rank_.engine().Close(-1);
    // What hangs is waited for here, where the process may die, and not by the engine's destructor.
    while (absl::IsUnavailable(rank_.engine().Close(-1))) env.SleepNs(base::kSecondNs);
    return status.ok() ? closed : status;
  }

 private:
  struct InFlight {
    uint32_t ordinal = 0;
    Moment moment;
    std::shared_ptr<SaveHandle> handle;
  };

  int32_t Ordinal() const { return rank_.options().rank; }
  const std::vector<testing::LaidOutTensor>& LayoutOf(const Action& action) const { return shared_.script.layouts[action.layout]; }

  absl::Status RunActions(env::Env& env) {
    const int64_t late_ns = shared_.script.late_ns.empty() ? 0 : shared_.script.late_ns[static_cast<size_t>(Ordinal())];
    for (const Action& action : shared_.script.actions) {
      if (late_ns > 0) env.SleepNs(late_ns);
      if (action.kind == Action::Kind::kRestore) LAMINA_RETURN_IF_ERROR(Restore(env, action));
      if (action.kind == Action::Kind::kSave) LAMINA_RETURN_IF_ERROR(Save(action));
      if (action.kind == Action::Kind::kSettle) AwaitAll();
      if (action.kind == Action::Kind::kSleep) env.SleepNs(action.sleep_ns);
    }
    return absl::OkStatus();
  }

  absl::Status Restore(env::Env& env, const Action& action) {
    AwaitAll();
    RankState state(Ordinal(), LayoutOf(action));
    Told told{.kind = Action::Kind::kRestore, .status = {}, .asked = action.to_start && start_ >= 0 ? start_ : action.step};
    std::vector<PassedOver> passed_over;
    const absl::StatusOr<Moment> restored = testing::RestoreAndCheck(
        rank_.engine(), state, told.asked, [&] { env.SleepNs(action.linger_ns); }, &passed_over);
    for (const PassedOver& each : passed_over) told.passed_over.insert(each.step);
    told.status = restored.status();
    if (restored.ok()) told.moment = *restored;
    Tell(std::move(told));
    if (!restored.ok()) return restored.status();
    step_ = restored->step;
    if (!began_) start_ = step_;
    began_ = true;
    return absl::OkStatus();
  }

  absl::Status Save(const Action& action) {
    step_ = std::max<int64_t>(step_, 0) + action.rise;
    const Moment moment{step_, action.life};
    RankState state(Ordinal(), LayoutOf(action));
    absl::StatusOr<std::shared_ptr<SaveHandle>> handle = testing::BeginSave(rank_.engine(), state, moment);
    state.Poison();
    const uint32_t ordinal = save_count_++;
    if (!handle.ok()) {
      Tell({.kind = Action::Kind::kSave, .status = handle.status(), .moment = moment, .save_ordinal = ordinal});
      return handle.status();
    }
    in_flight_.push_back({ordinal, moment, *std::move(handle)});
    return absl::OkStatus();
  }

  void AwaitAll() {
    for (const InFlight& save : std::exchange(in_flight_, {})) {
      const absl::StatusOr<SaveReport> report = save.handle->Wait(-1);
      Tell({.kind = Action::Kind::kSave,
            .status = report.status(),
            .skipped = report.ok() && report->outcome == Outcome::kSkipped,
            .moment = save.moment,
            .save_ordinal = save.ordinal});
    }
  }

  void Tell(Told told) {
    const Seen seen = shared_.look(*shared_.leader);
    told.records = seen.records;
    told.told_ns = seen.now_ns;
    told.is_protected = seen.is_protected;
    mine_.told.push_back(std::move(told));
  }

  testing::Rank& rank_;
  Shared& shared_;
  RankOutcome& mine_;
  std::vector<InFlight> in_flight_;
  int64_t step_ = -1;
  int64_t start_ = -1;
  bool began_ = false;
  uint32_t save_count_ = 0;
};

HistoryJob::HistoryJob(env::SimWorld& world, int64_t ordinal, int32_t rank_count, Script script,
                       const std::function<std::string(int32_t)>& host_of, Look look)
    : ordinal_(ordinal), shared_(std::make_shared<Shared>()) {
  shared_->script = std::move(script);
  shared_->ranks.resize(static_cast<size_t>(rank_count));
  shared_->look = std::move(look);
  for (int32_t rank = 0; rank < rank_count; ++rank) {
    env::SimProcess& process = world.NewProcess(absl::StrCat("job", ordinal, "/", rank), host_of(rank));
    processes_.push_back(&process);
    if (rank == 0) shared_->leader = &process;
    world.Start(process, [shared = shared_, rank, rank_count, ordinal](env::Env& env) {
      Options options = testing::JobOptions(kRoot, rank, rank_count, shared->script.run_id);
      options.mode = shared->script.mode;
      options.takeover = shared->script.takeover;
      options.restore_retry_s = shared->script.restore_retry_s;
      options.memory_bytes = shared->script.memory_bytes;
      options.keep = shared->script.keep;
      options.gc_grace_s = shared->script.gc_grace_s;
      options.abandoned_grace_s = shared->script.abandoned_grace_s;
      std::optional<uint64_t> chaos_seed;
      if (shared->script.late_copies) chaos_seed = static_cast<uint64_t>(ordinal * 100 + rank);
      testing::Rank body(env, shared->hub, options, chaos_seed, shared->script.log_records_kept);
      absl::Status status = Body(body, *shared).Run(env);
      shared->ranks[static_cast<size_t>(rank)].status = std::move(status);
    });
  }
}

bool HistoryJob::AllOk(const std::function<bool(const Told&)>& excused) const {
  const auto well = [&](const Told& told) {
    return told.status.ok() || (script().abandons && told.kind == Action::Kind::kSave) || excused(told);
  };
  return std::all_of(shared_->ranks.begin(), shared_->ranks.end(), [&](const RankOutcome& rank) {
    const bool ended = rank.status.ok() || (!rank.told.empty() && !rank.told.back().status.ok() && excused(rank.told.back()));
    return ended && std::all_of(rank.told.begin(), rank.told.end(), well);
  });
}

std::string HistoryJob::Describe() const {
  std::string text = absl::StrCat("job ", ordinal_, " of ", rank_count(), " ranks", script().mode == Mode::kRead ? " that only read" : "");
  for (int32_t rank = 0; rank < rank_count(); ++rank) {
    const env::SimProcess& process = *processes_[static_cast<size_t>(rank)];
    absl::StrAppend(&text, "\n    rank ", rank, " (", process.name(),
                    process.dead()     ? ", dead"
                    : process.paused() ? ", asleep"
                                       : "",
                    "): ", status(rank).ToString());
    for (const Told& event : told(rank)) {
      absl::StrAppend(&text, "; ", event.kind == Action::Kind::kSave ? "save " : "restore ",
                      event.asked.has_value() ? absl::StrCat("of ", *event.asked, " gave ") : "", testing::TreeText(event.moment), ": ",
                      event.skipped ? "skipped" : event.status.ToString());
    }
  }
  return text;
}

}  // namespace lamina::sim
