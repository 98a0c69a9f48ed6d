// One restore: the ranks choose a step together, check all that they need of it, and only then fill their targets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/agreement.h"
#include "engine/runtime.h"
#include "engine/save_run.h"
#include "engine/step_choice.h"
#include "engine/step_reader.h"
#include "format/log_record.h"
#include "plan/restore_plan.h"
#include "tier/reader_lease.h"

namespace lamina::engine {

class RestoreRun final : public RestoreSession {
 public:
  // `claim` gives the leader the root (an incarnation in train mode, the header alone in read mode; an empty root in read mode is
  // NotFound). `touches` is called before the first target is written, and `done` once, when all ranks have ended it well. `keep_active`
  // lives as long as the session: the beats. What `hold` returns lives as long as a piece of work on storage, which may outlive the
  // session.
  RestoreRun(const Options& options, const Runtime& runtime, Agreement& agreement, int64_t number, std::optional<int64_t> wanted_step,
             std::function<absl::StatusOr<Claimed>()> claim, std::function<void()> touches, std::function<void(const Claimed&)> done,
             std::shared_ptr<void> keep_active, std::function<std::shared_ptr<void>()> hold);

  // Collective: stands at a step that every rank can open, or at none.
  absl::Status Begin();

  bool found() const override { return step_ >= 0; }
  int64_t step() const override { return step_; }
  int32_t rank_count() const override { return rank_count_; }
  const Topology& topology() const override { return topology_; }
  const std::vector<int64_t>& line() const override { return line_; }
  const std::vector<PassedOver>& passed_over() const override { return choice_.passed_over; }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  const std::vector<StoredBlob>& blobs() const override { return blobs_; }
  absl::StatusOr<bool> Holds(std::string_view name) override;
  absl::StatusOr<Progress> Fill(std::span<const TensorView> targets) override;
  absl::Status End() override;
  absl::Status Fail(const absl::Status& why) override;

 private:
  absl::Status OpenCandidate();
  absl::Status ReadDescription();
  absl::Status InTime(std::string_view what, std::function<absl::Status()> work);
  enum class Together { kGoOn, kOlder };
  absl::StatusOr<Together> Agree(std::string_view what, const absl::Status& mine, const std::function<absl::Status()>& leader_last = {});
  Patience Waiting(std::string_view what) const;
  // Posts events of one kind; for threads that may outlive this restore.
  std::function<void(int64_t step, std::string cause)> Teller(EventKind kind) const;
  std::function<void(const absl::Status&)> LeaseFails() const;
  void Post(EventKind kind, int64_t step, int64_t bytes, std::string cause);
  void Close();

  const Options& options_;
  const Runtime& runtime_;
  Agreement& agreement_;
  const int64_t number_;  // counts the engine's restores
  const std::string key_;
  const int64_t begun_ns_;
  const std::optional<int64_t> wanted_step_;
  const std::function<void()> touches_;
  const std::function<void(const Claimed&)> done_;
  std::shared_ptr<void> keep_active_;
  const std::function<std::shared_ptr<void>()> hold_;
  const int64_t deadline_ns_;
  const StepChooser chooser_;
  std::shared_ptr<tier::ReaderLease> lease_;  // the leader's, for the whole job: from before the choice until the last vote

  StepChoice choice_;
  size_t candidate_ = 0;
  int32_t round_ = 0;
  std::shared_ptr<StepReader> reader_;   // null: the restore has ended
  absl::Status damage_;                  // of the step that the session stands at, found before Fill
  std::optional<int64_t> filled_bytes_;  // read by this rank, once the targets are filled
  int64_t step_ = -1;
  int32_t rank_count_ = 0;
  Topology topology_;
  std::vector<int64_t> line_;
  std::vector<StoredTensor> tensors_;
  std::vector<StoredBlob> blobs_;
};

}  // namespace lamina::engine
