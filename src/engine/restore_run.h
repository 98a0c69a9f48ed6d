// One restore: the ranks choose a step together, check all that they need of it, and only then fill their targets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/agreement.h"
#include "engine/runtime.h"
#include "engine/save_run.h"
#include "engine/step_reader.h"
#include "format/log_record.h"
#include "plan/restore_plan.h"

namespace lamina::engine {

// What the engine learns from a restore that has ended.
struct Restored {
  int64_t step = -1;  // -1: the root holds no commit
  uint64_t commit = 0;
  uint64_t parent = 0;
};

class RestoreRun final : public RestoreSession {
 public:
  // `claim` gives the leader the root (an incarnation in train mode, the header alone in read mode; an empty root in read mode is
  // NotFound). `done` is called once, on success. `keep_active` lives as long as the session: the beats.
  RestoreRun(const Options& options, const Runtime& runtime, Agreement& agreement, int64_t number, std::optional<int64_t> wanted_step,
             std::function<absl::StatusOr<Claimed>()> claim, std::function<void(const Claimed&, const Restored&)> done,
             std::shared_ptr<void> keep_active);

  // Collective: stands at a step that every rank can open, or at none.
  absl::Status Begin();

  bool found() const override { return step_ >= 0; }
  int64_t step() const override { return step_; }
  int32_t rank_count() const override { return rank_count_; }
  const Topology& topology() const override { return topology_; }
  const std::vector<int64_t>& line() const override { return line_; }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  const std::vector<StoredBlob>& blobs() const override { return blobs_; }
  absl::StatusOr<Progress> Fill(std::span<const TensorView> targets) override;
  absl::Status Fail(const absl::Status& why) override;

 private:
  struct Choice {
    format::StoreHeader store;
    uint64_t incarnation = 0;
    std::vector<format::StepEntry> candidates;  // the chosen one, then older ones of the line
    std::vector<int64_t> line;
    uint64_t head = 0;
  };

  absl::StatusOr<Choice> Choose();
  std::optional<std::string> Refusal(const format::StepEntry& candidate);
  size_t NextAllowed(const std::vector<format::StepEntry>& candidates, size_t next);
  static std::string EncodeChoice(const Choice& choice);
  static absl::StatusOr<Choice> DecodeChoice(std::string_view text);
  absl::Status OpenCandidate();
  absl::Status ReadDescription();
  enum class Together { kGoOn, kOlder };
  absl::StatusOr<Together> Agree(std::string_view what, const absl::Status& mine, const std::function<absl::Status()>& leader_last = {});
  Patience Waiting(std::string what) const;
  void Post(EventKind kind, int64_t step, int64_t bytes, std::string cause);
  void Close();

  const Options& options_;
  const Runtime& runtime_;
  Agreement& agreement_;
  const int64_t number_;  // counts the engine's restores
  const std::string key_;
  const int64_t begun_ns_;
  const std::optional<int64_t> wanted_step_;
  const std::function<absl::StatusOr<Claimed>()> claim_;
  const std::function<void(const Claimed&, const Restored&)> done_;
  std::shared_ptr<void> keep_active_;

  Choice choice_;
  size_t candidate_ = 0;
  int32_t round_ = 0;
  std::unique_ptr<StepReader> reader_;  // null: the restore has ended
  int64_t step_ = -1;
  int32_t rank_count_ = 0;
  Topology topology_;
  std::vector<int64_t> line_;
  std::vector<StoredTensor> tensors_;
  std::vector<StoredBlob> blobs_;
};

}  // namespace lamina::engine
