// What must hold of a simulated history, whatever went wrong in it. Letters and numbers such as I3 are the invariants of
// docs/architecture.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "env/sim_env.h"
#include "sim/bystander.h"
#include "sim/deletion_watch.h"
#include "sim/history_job.h"
#include "sim/log_audit.h"

namespace lamina::sim {

class HistoryCheck {
 public:
  // Both are the history's own and outlive this.
  HistoryCheck(env::SimWorld& world, const std::deque<std::unique_ptr<HistoryJob>>& jobs) : world_(world), jobs_(jobs), watch_(world) {}

  // Reads the root as it is now: the log obeys its rules (I4), what ranks were told is what the log says (I3, I6, I9), and every listed
  // step reads back bit for bit unless a fault has damaged it, which is then found (I1, I2, I5). Internal says what broke.
  absl::Status All();
  // After All, of a launch that nothing disturbed: everything was done, or, on a root with damage, its restore passed over what is damaged.
  // What gc has dropped under a job's hands is excused.
  absl::Status Undisturbed(const HistoryJob& job);
  // After launches in fair weather: no file but those that the log needs, nothing is left open, and gc finds nothing to do (I5).
  absl::Status NothingLeft();

  uint64_t RecordCount() const;  // in the log, now
  std::vector<int64_t> KnownSteps() const;
  bool damaged() const { return !damaged_.empty() || lost_.has_value(); }  // some step was, or the log
  int64_t commit_count() const;
  int64_t restore_count() const { return restore_count_; }
  void CountDeletions(int64_t& drops, int64_t& deletions, int64_t& reads, int64_t& late_reads) const;
  std::string Describe() const;  // of the log

  // How long files of dropped steps stay, and steps off the line, whoever deletes.
  void SetGraces(int64_t gc_grace_ns, int64_t abandoned_ns);
  void OnOp(const env::SimOp& op) { watch_.OnOp(op); }
  Seen Look(const env::SimProcess& reader);
  void BeginLaunch() { launched_readings_ = readings_.size(), launched_collectings_ = collectings_.size(); }
  void Add(std::shared_ptr<Reading> reading) { readings_.push_back(std::move(reading)); }
  void Add(std::shared_ptr<Collecting> collecting) { collectings_.push_back(std::move(collecting)); }
  void Reboot();
  // Changes a byte of a step's file, of one copy of a log record, or of both copies of the newest one.
  void Rot(uint64_t seed);
  void NoteMisdirected();

 private:
  struct SaveOfJob {
    const HistoryJob* job = nullptr;
    uint32_t ordinal = 0;
  };

  std::map<std::string, std::string> RootFiles() const;
  static std::string AttemptOf(const std::string& name);  // the attempt's path of a file in it; empty: of none
  bool IsDamaged(const format::StepEntry& step) const { return damaged_.contains(format::AttemptPath(step.attempt)); }
  std::vector<uint64_t> OpensOf(const HistoryJob& job) const;
  uint64_t FenceOf(const HistoryJob& job) const;
  const HistoryJob* JobOf(uint64_t incarnation) const;
  SaveOfJob SaveWithLife(int64_t life) const;
  uint64_t CommitOf(const HistoryJob& job, int64_t step, uint32_t ordinal) const;
  void LoseNewest(env::SimRandom& random);
  bool IsDropped(int64_t step) const;
  absl::Status RestoredDespiteDamage(const HistoryJob& job) const;
  absl::Status BystandersUndisturbed() const;
  bool HeadWasDropped(const HistoryJob& job) const;
  absl::Status CheckPublishers();
  absl::Status CheckClaims() const;
  absl::Status CheckDropped(const absl::Status& told, const Seen& seen, bool may_write);
  absl::Status CheckTold(const HistoryJob& job);
  absl::Status CheckSave(const HistoryJob& job, const Told& told);
  absl::Status CheckRestore(const HistoryJob& job, const Told& told, uint64_t from);
  absl::Status CheckTogether(const HistoryJob& job);
  absl::Status CheckSteps();
  absl::Status CheckBystanders();

  env::SimWorld& world_;
  const std::deque<std::unique_ptr<HistoryJob>>& jobs_;
  DeletionWatch watch_;
  int64_t abandoned_ns_ = 0;
  LogAudit log_;
  std::optional<format::LogRecord> lost_;  // as it was before both of its copies went bad
  std::set<std::string> damaged_;          // attempts' paths
  std::set<uint64_t> rotten_;              // records of which a copy has rotted
  std::deque<std::shared_ptr<Reading>> readings_;
  std::deque<std::shared_ptr<Collecting>> collectings_;
  size_t launched_readings_ = 0;  // those from here on belong to the present launch
  size_t launched_collectings_ = 0;
  int64_t restore_count_ = 0;
};

}  // namespace lamina::sim
