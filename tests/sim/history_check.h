// What must hold of a simulated history, whatever went wrong in it. Letters and numbers such as I3 are the invariants of
// docs/architecture.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "env/sim_env.h"
#include "sim/history_job.h"
#include "sim/log_audit.h"

namespace lamina::sim {

class HistoryCheck {
 public:
  // Both are the history's own and outlive this.
  HistoryCheck(env::SimWorld& world, const std::deque<std::unique_ptr<HistoryJob>>& jobs) : world_(world), jobs_(jobs) {}

  // Reads the root as it is now: the log obeys its rules (I4), what ranks were told is what the log says (I3, I6, I9), and every listed
  // step reads back bit for bit unless a fault has damaged it, which is then found (I1, I2, I5). Internal says what broke.
  absl::Status All();
  // After a launch that nothing disturbed, on a root with damage: its restore passed over what is damaged.
  absl::Status RestoredDespiteDamage(const HistoryJob& job) const;
  // After a launch in fair weather: no file but those that the log needs, and nothing is left open.
  absl::Status NothingLeft();

  uint64_t RecordCount() const;  // in the log, now
  std::vector<int64_t> KnownSteps() const;
  bool damaged() const { return !damaged_.empty(); }  // some step was
  int64_t commit_count() const;
  int64_t restore_count() const { return restore_count_; }
  std::string Describe() const;  // of the log

  // A process that reads every step of the root twice, beside whatever else goes on.
  void StartReader(const std::string& name, int64_t delay_ns);
  // Changes a byte of a step's file, or of one copy of a log record.
  void Rot(uint64_t seed);
  void NoteMisdirected();

 private:
  struct Reading {
    absl::Status status = absl::UnknownError("did not end");
    int64_t duration_ns = 0;
  };
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
  absl::Status CheckTold(const HistoryJob& job);
  absl::Status CheckSave(const HistoryJob& job, const Told& told);
  absl::Status CheckRestore(const HistoryJob& job, const Told& told, uint64_t from);
  absl::Status CheckTogether(const HistoryJob& job);
  absl::Status CheckSteps();
  absl::Status CheckReaders();

  env::SimWorld& world_;
  const std::deque<std::unique_ptr<HistoryJob>>& jobs_;
  LogAudit log_;
  std::set<std::string> damaged_;  // attempts' paths
  std::set<uint64_t> rotten_;      // records of which a copy has rotted
  std::deque<std::shared_ptr<Reading>> readings_;
  int64_t restore_count_ = 0;
};

}  // namespace lamina::sim
