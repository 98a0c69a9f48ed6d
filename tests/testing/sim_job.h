// A job whose ranks are simulated processes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "env/sim_env.h"
#include "testing/job.h"

namespace lamina::testing {

inline constexpr char kSimRoot[] = "/ckpt/run";

// One launch. The processes belong to the world; what they tell, and the store they speak through, are shared with their bodies, so a job
// may end before its world does.
class SimJob {
 public:
  SimJob(
      env::SimWorld& world, const std::string& name, int32_t rank_count, Script script,
      const std::function<void(Options&)>& adjust = [](Options&) {})
      : told_(std::make_shared<std::vector<Told>>(static_cast<size_t>(rank_count))) {
    const auto hub = std::make_shared<coord::InProcessHub>();
    for (int32_t rank = 0; rank < rank_count; ++rank) {
      env::SimProcess& process = world.NewProcess(absl::StrCat(name, "/", rank));
      processes_.push_back(&process);
      Options options = JobOptions(kSimRoot, rank, rank_count);
      adjust(options);
      world.Start(process, [told = told_, hub, script, rank, options](env::Env& env) {
        Told& mine = (*told)[static_cast<size_t>(rank)];
        Rank body(env, *hub, options);
        mine.status = RunScript(body, script, mine);
      });
    }
  }

  env::SimProcess& process(int32_t rank) const { return *processes_[static_cast<size_t>(rank)]; }
  const std::vector<env::SimProcess*>& processes() const { return processes_; }
  const std::vector<Told>& told() const { return *told_; }

  // Every rank came to the end of its script, and every save is committed.
  bool AllOk() const {
    const auto committed = [](const auto& save) { return save.second.ok(); };
    return std::all_of(told_->begin(), told_->end(),
                       [&](const Told& told) { return told.status.ok() && std::all_of(told.saves.begin(), told.saves.end(), committed); });
  }
  // The largest step that any rank was told is committed, or has restored; -1: none.
  int64_t Acknowledged() const {
    int64_t step = -1;
    for (const Told& told : *told_) {
      if (told.restored.has_value()) step = std::max(step, told.restored->step);
      for (const auto& [saved, status] : told.saves) step = status.ok() ? std::max(step, saved) : step;
    }
    return step;
  }
  std::string Describe() const {
    std::string text;
    for (size_t rank = 0; rank < told_->size(); ++rank) {
      const Told& told = (*told_)[rank];
      absl::StrAppend(&text, "\n  rank ", rank, ": ", told.status.ToString());
      if (told.restored.has_value()) absl::StrAppend(&text, "; restored ", TreeText(*told.restored));
      for (const auto& [step, status] : told.saves) absl::StrAppend(&text, "; save of ", step, ": ", status.ToString());
    }
    return text;
  }

 private:
  std::shared_ptr<std::vector<Told>> told_;
  std::vector<env::SimProcess*> processes_;
};

}  // namespace lamina::testing
