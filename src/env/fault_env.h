// An Env whose file system fails as told: for tests and drills. Everything that no fault concerns goes to the Env below.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "env/env.h"

namespace lamina::env {

enum class FaultCall {
  kOpen,
  kCreate,
  kWrite,
  kRead,
  kSync,
  kTruncate,
  kLink,
  kRename,
  kUnlink,
  kMakeDirectory,
  kRemoveDirectory,
  kSyncDirectory,
  kList,
  kStat,
  kTouch,
  kCapacity,
};

// Counts the calls of one kind whose path (or second path) contains `path_part`, and fails the `first`-th of them and those after it,
// `count` in all, without doing them. kNoMemory is no errno: such a call throws std::bad_alloc.
struct FaultRule {
  std::optional<FaultCall> call;  // nullopt: every kind
  std::string path_part;          // empty: every path
  int error_number = 0;
  int64_t first = 1;
  int64_t count = 1;  // kFaultsForEver: from then on
};
inline constexpr int64_t kFaultsForEver = INT64_MAX;
inline constexpr int kNoMemory = -1;

// Which faults are due. Thread-safe; never waits and never calls an Env.
class FaultPlan {
 public:
  // The rule's number, for RemoveRule.
  int64_t AddRule(const FaultRule& rule);
  bool RemoveRule(int64_t number);  // false when there is none
  // A file takes at most this many bytes in one write; a longer one is continued by further writes, each of which may fail. 0: no cap.
  void SetWriteBytesMax(int64_t bytes);
  // All files together take this many bytes a second; 4 MiB is a slow disk. 0: as fast as they can.
  void SetWriteBytesPerSecond(int64_t bytes);
  // A name made by Link or RenameNoReplace is not found by OpenForRead, Stat and List for so long, as on a network file system that
  // remembers its absence.
  void SetHiddenNs(int64_t duration_ns);
  // The same for files that another process made or touched less than so long ago, by this machine's clock.
  void SetHiddenFromOthersNs(int64_t duration_ns);
  // Calls (of the kind, if one is given) on paths that contain this do not return before it is taken back by nullopt, as on a file server
  // that is gone.
  void SetHang(std::optional<std::string> path_part, std::optional<FaultCall> call = std::nullopt);
  int64_t hang_count() const;  // calls that have begun to hang so far
  // Each n-th Start from now on is refused. 0: none.
  void SetTaskRefusedEvery(int64_t count);
  // Each n-th OpenForRead fails with ESTALE. 0: none.
  void SetStaleOpenEvery(int64_t count);
  // Calls failed by rules and stale opens so far.
  int64_t fault_count() const;

  // For the file system: counts the call, and tells the errno with which it fails.
  std::optional<int> Due(FaultCall call, const std::string& path, const std::string& second_path = {});
  // The length of the next part of a write.
  size_t PartBytes(size_t bytes) const;
  // How long to wait before a part so long is written.
  int64_t ReserveWrite(size_t bytes, int64_t now_ns);
  bool Hangs(FaultCall call, const std::string& path, const std::string& second_path) const;
  void CountHang();
  bool RefusesTask();
  void Made(const std::string& path);  // by this process
  bool HidesOthers(const std::string& path, int64_t age_ns) const;
  void Hide(const std::string& path, int64_t now_ns);
  bool IsHidden(const std::string& path, int64_t now_ns);

 private:
  struct ActiveRule {
    FaultRule rule;
    int64_t calls = 0;
  };
  mutable std::mutex mutex_;
  std::map<int64_t, ActiveRule> rules_;
  int64_t next_number_ = 0;
  int64_t write_bytes_max_ = 0;
  int64_t write_bytes_per_second_ = 0;
  int64_t write_free_ns_ = 0;  // when what was reserved so far will have been written
  int64_t hidden_ns_ = 0;
  std::map<std::string, int64_t> hidden_until_ns_;
  std::optional<std::string> hang_;
  std::optional<FaultCall> hang_call_;
  int64_t hang_count_ = 0;
  int64_t hidden_from_others_ns_ = 0;
  std::set<std::string> made_;  // while others' are hidden
  int64_t stale_open_every_ = 0;
  int64_t open_count_ = 0;
  int64_t fault_count_ = 0;
  int64_t task_refused_every_ = 0;
  int64_t task_count_ = 0;
};

// Thread-safe. Outlives its files; `base` outlives it.
class FaultEnv : public Env {
 public:
  explicit FaultEnv(Env& base);
  FaultPlan& plan() { return plan_; }

  FileSystem& files() override { return *files_; }
  int64_t MonotonicNs() override { return base_.MonotonicNs(); }
  int64_t WallNs() override { return base_.WallNs(); }
  void SleepNs(int64_t duration_ns) override { base_.SleepNs(duration_ns); }
  uint64_t RandomU64() override { return base_.RandomU64(); }
  std::unique_ptr<Task> Start(std::string name, std::function<void()> body) override {
    return plan_.RefusesTask() ? nullptr : base_.Start(std::move(name), std::move(body));
  }
  std::unique_ptr<MutexImpl> NewMutex() override { return base_.NewMutex(); }
  std::unique_ptr<CondVarImpl> NewCondVar() override { return base_.NewCondVar(); }
  ProcessIdentity Self() override { return base_.Self(); }
  int64_t ProcessId() override { return base_.ProcessId(); }
  Liveness LivenessOf(const ProcessIdentity& process) override { return base_.LivenessOf(process); }
  void Operation(std::string_view what) override { base_.Operation(what); }

 private:
  Env& base_;
  FaultPlan plan_;
  std::unique_ptr<FileSystem> files_;
};

}  // namespace lamina::env
