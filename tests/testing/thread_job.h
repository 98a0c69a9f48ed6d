// A job whose ranks are real threads of this process, each with faults of its own.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "env/fault_env.h"
#include "env/posix_env.h"
#include "testing/job.h"
#include "testing/scratch_directory.h"

namespace lamina::testing {

class ThreadJob {
 public:
  using Adjust = std::function<void(Options&)>;

  ThreadJob(
      const std::string& root, int32_t rank_count, const Adjust& adjust = [](Options&) {}, bool with_moments = false)
      : posix_(env::NewPosixEnv()) {
    for (int32_t rank = 0; rank < rank_count; ++rank) {
      Options options = JobOptions(root, rank, rank_count);
      options.restore_retry_s = 0;
      options.beat_s = 0.05;
      options.begin_timeout_s = options.beat_timeout_s = 60;  // the machine may be busy
      adjust(options);
      envs_.push_back(std::make_unique<env::FaultEnv>(*posix_));
      ranks_.push_back(std::make_unique<Rank>(*envs_.back(), hub_, options));
      states_.emplace_back(rank, rank_count, with_moments);
    }
  }

  int32_t rank_count() const { return static_cast<int32_t>(ranks_.size()); }
  Engine& engine(int32_t rank) { return ranks_[static_cast<size_t>(rank)]->engine(); }
  RankState& state(int32_t rank) { return states_[static_cast<size_t>(rank)]; }
  env::FaultPlan& faults(int32_t rank) { return envs_[static_cast<size_t>(rank)]->plan(); }
  env::Env& env() { return *posix_; }
  coord::InProcessHub& hub() { return hub_; }

  // What each rank's body returned. Ranks not named in `ranks` stay away.
  std::vector<absl::Status> Each(const std::function<absl::Status(int32_t)>& body, std::vector<int32_t> ranks = {}) {
    if (ranks.empty()) {
      for (int32_t rank = 0; rank < rank_count(); ++rank) ranks.push_back(rank);
    }
    std::vector<absl::Status> statuses(ranks.size());
    std::vector<std::unique_ptr<env::Task>> tasks;
    for (size_t i = 0; i < ranks.size(); ++i) {
      tasks.push_back(posix_->Start("rank", [&, i] { statuses[i] = body(ranks[i]); }));
    }
    for (const std::unique_ptr<env::Task>& task : tasks) task->Join();
    return statuses;
  }
  std::vector<absl::Status> Save(const Moment& moment, std::vector<int32_t> ranks = {}) {
    const auto body = [&](int32_t rank) -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(const std::shared_ptr<SaveHandle> handle, BeginSave(engine(rank), state(rank), moment));
      return Await(*handle);
    };
    return Each(body, std::move(ranks));
  }
  // Every rank restores, checks every bit and says what it found: the moment is that of rank 0.
  std::vector<absl::Status> Restore(std::optional<int64_t> step, Moment* found = nullptr) {
    return Each([&](int32_t rank) -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(const Moment moment, RestoreAndCheck(engine(rank), state(rank), step));
      if (rank == 0 && found != nullptr) *found = moment;
      return absl::OkStatus();
    });
  }
  // Closes and destroys the engines.
  std::vector<absl::Status> End() {
    std::vector<absl::Status> statuses = Each([this](int32_t rank) { return engine(rank).Close(-1); });
    ranks_.clear();
    return statuses;
  }

 private:
  std::unique_ptr<env::Env> posix_;
  coord::InProcessHub hub_;
  std::vector<std::unique_ptr<env::FaultEnv>> envs_;
  std::deque<RankState> states_;  // views point into them
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace lamina::testing
