// One simulated cluster in one process: hosts, processes and a file server that they share, all from one seed. Only one thread runs at
// a time, and each call of Env is a place to switch, crash or pause, so a seed replays exactly.
//
//   TEST_CASE("A synced file outlives a power cut at any operation", "[sim]") {
//     SimThreads threads;  // optional: saves making threads anew for each of many worlds
//     for (int64_t cut = 0, op_count = 1; cut <= op_count; ++cut) {
//       SimWorld world({.seed = 7, .power_cut_at_op = cut, .threads = &threads});
//       bool acknowledged = false;
//       SimProcess& writer = world.NewProcess("writer");
//       world.Start(writer, [&](Env& env) {
//         auto file = env.files().CreateNew("/ckpt/a");
//         if (file.ok() && (*file)->WriteAt(0, base::AsBytes("hello")).ok() && (*file)->Sync().ok())
//           acknowledged = env.files().SyncDirectory("/ckpt").ok();
//       });
//       REQUIRE(world.Run().ok());       // Internal on a deadlock: who waits for what
//       op_count = world.op_count();     // one more than `cut` until a run meets no cut
//       world.Reboot();                  // from here on only what was durable, or happened to survive
//       if (acknowledged) REQUIRE(world.Files().at("/ckpt/a") == "hello");
//     }
//   }
//
// The test's own thread may call any Env too, before, between and after runs: such calls are not operations, meet no fault, and block
// only by letting the tasks run. A REQUIRE that fails in a task kills everything and fails the test. Where a task may die, keep calls
// of Env out of CHECK and REQUIRE (`const bool ok = …; CHECK(ok);`): these catch the exception that unwinds it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "env/env.h"
#include "env/sim_disk.h"
#include "env/sim_scheduler.h"

namespace lamina::env {

class SimWorld;
class SimProcess;

// An operation about to take effect: a call of the file system, of SleepNs or of Operation.
struct SimOp {
  int64_t number = 0;             // in the world, from 0
  int64_t number_in_process = 0;  // from 0
  SimProcess& process;
  std::string_view task;
  std::string_view what;  // create open write read sync size truncate link rename unlink mkdir rmdir syncdir list stat touch capacity
                          // sleep, or what Operation was given
  std::string_view path;
};

// What goes wrong with file operations. Of those that match, number `first` (from 0) and the `count - 1` next ones are hit.
struct SimFault {
  std::string what = {};     // as in SimOp; empty: every kind
  std::string path = {};     // a part of the path; empty: every path
  std::string process = {};  // a name; empty: every process
  int64_t first = 0;
  int64_t count = 1;
  double probability = 1.0;   // of each such operation, by the seed
  int error_number = 0;       // 0: it succeeds, late
  bool takes_effect = false;  // fails for the caller only, as when an answer is lost and the retry says EEXIST
  int64_t delay_ns = 0;       // before it takes effect
  bool misdirected = false;   // a write lands elsewhere, and all seems well (SimWorld::misdirected_files)
};

struct SimWorldOptions {
  uint64_t seed = 1;
  int64_t power_cut_at_op = -1;    // just before operation of this number; a write on its way is torn
  bool lose_all_unsynced = false;  // what a power cut or a dead host takes: everything unsynced; else each thing by the seed
  int64_t capacity_bytes = kUnlimitedBytes;
  int64_t stale_ns = 0;                 // how long other processes do not see a new name (NFS)
  int64_t stale_list_ns = 0;            // how old what they list may be, and how long they see a name that is gone (NFS)
  int64_t stale_handle_each_opens = 0;  // each so many opens one fails with ESTALE; 0: none
  int64_t latency_ns_max = 0;           // of a file operation, uniform from 0, partly before and partly after its effect
  bool short_writes = false;            // a write goes to the server in two parts
  double switch_probability = 0.1;      // at an operation; at a lock a fifth of it
  double spurious_wakeup_probability = 0.01;
  int64_t step_count_max = 5'000'000;                // switch points until a run counts as endless
  std::vector<std::string> directories = {"/ckpt"};  // there and durable at the start
  SimThreads* threads = nullptr;                     // shared by worlds that follow one another; null: own ones
};

// The Env of one simulated process. It stays valid, though dead, as long as its world.
class SimProcess final : public Env {
 public:
  ~SimProcess() override;
  FileSystem& files() override { return *files_; }
  int64_t MonotonicNs() override;
  int64_t WallNs() override;
  void SleepNs(int64_t duration_ns) override;
  uint64_t RandomU64() override;
  std::unique_ptr<Task> Start(std::string name, std::function<void()> body) override;
  std::unique_ptr<MutexImpl> NewMutex() override;
  std::unique_ptr<CondVarImpl> NewCondVar() override;
  ProcessIdentity Self() override { return identity_; }
  Liveness LivenessOf(const ProcessIdentity& process) override;
  void Operation(std::string_view what) override;

  const std::string& name() const { return life_.name; }
  const std::string& host() const { return identity_.host; }
  bool dead() const { return life_.dead; }
  bool paused() const { return life_.paused; }
  int64_t op_count() const { return op_count_; }
  void set_wall_skew_ns(int64_t skew_ns) { wall_skew_ns_ = skew_ns; }

 private:
  friend class SimWorld;
  SimProcess(SimWorld& world, std::string name, ProcessIdentity identity, uint64_t seed);

  SimWorld& world_;
  SimLife life_;
  const ProcessIdentity identity_;
  SimRandom random_;
  const int64_t origin_ns_;  // processes do not agree on the monotonic clock
  int64_t wall_skew_ns_ = 0;
  int64_t op_count_ = 0;
  int64_t kill_at_op_ = -1;
  int64_t pause_at_op_ = -1;
  int64_t bodies_running_ = 0;
  bool exited_ = false;  // every body that was started has returned
  std::unique_ptr<FileSystem> files_;
};

class SimWorld {
 public:
  explicit SimWorld(SimWorldOptions options);
  ~SimWorld();  // kills what is left and waits until it has unwound
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // A restarted process is a new one; names may repeat. A pid namespace of its own stands for a container.
  SimProcess& NewProcess(std::string name, std::string host = "host0", std::string pid_namespace = "pid:0");
  // A main body of the process. It counts as ended, for LivenessOf, when all its bodies have returned.
  void Start(SimProcess& process, std::function<void(Env&)> body);
  // Runs until all tasks are done or dead, or only paused ones and those that wait for them are left. Internal on a deadlock or a run
  // without end; everything is dead then. Throws what a body threw.
  [[nodiscard]] absl::Status Run() { return scheduler_.RunUntilQuiet(); }
  [[nodiscard]] absl::Status Run(SimProcess& process, std::function<void(Env&)> body);

  // All of these may be called by the test between runs, by tasks, and by the hook.
  void Kill(SimProcess& process);          // its calls have no effect any more; a write on its way may leave a prefix
  void KillHost(const std::string& host);  // its processes die and unsynced bytes that they wrote may be lost; a new boot follows
  void PowerCut();                         // everything dies, the file server too
  void Reboot();                           // cuts the power unless it was cut since the last Reboot
  void Pause(SimProcess& process);         // from its next switch point on, until Resume; before the effect of what it is about to do
  void Resume(SimProcess& process);
  void PowerCutAtOp(int64_t number) { power_cut_at_op_ = number; }
  void KillAtOp(SimProcess& process, int64_t number_in_process) { process.kill_at_op_ = number_in_process; }
  void PauseAtOp(SimProcess& process, int64_t number_in_process) { process.pause_at_op_ = number_in_process; }
  void AddFault(SimFault fault) { faults_.push_back({std::move(fault), 0}); }
  void ClearFaults() { faults_.clear(); }
  // Called before each operation's effect; may do the above but not block.
  void set_on_op(std::function<void(const SimOp&)> on_op) { on_op_ = std::move(on_op); }

  int64_t op_count() const { return op_count_; }
  bool power_was_cut() const { return power_was_cut_; }  // since the last Reboot
  int64_t now_ns() const { return scheduler_.now_ns(); }
  int64_t WallNs() const;                                                     // of the file server
  uint64_t trace_hash() const { return trace_hash_; }                         // of every operation: task, name, arguments, result
  std::map<std::string, std::string> Files() const { return disk_.Files(); }  // every file as it is seen now, by path
  std::vector<std::string> Names(const std::string& directory) { return disk_.Names(directory); }  // in it now; none when it is not there
  absl::StatusOr<std::string> ReadFile(const std::string& path);                                   // one of Files()
  absl::StatusOr<FileInfo> Stat(const std::string& path) { return disk_.Stat({}, path); }
  absl::Status CorruptByte(const std::string& path, int64_t offset) { return disk_.CorruptByte(path, offset); }
  absl::Status MakeLink(const std::string& target, const std::string& path) { return disk_.MakeLink({}, target, path); }
  void MakeDurable() { disk_.MakeDurable(); }  // all that is there now
  void set_capacity_bytes(int64_t bytes) { disk_.set_capacity_bytes(bytes); }
  int64_t UsedBytes() const { return disk_.UsedBytes(); }
  int64_t stale_ns() const { return std::max(options_.stale_ns, options_.stale_list_ns); }  // after it everybody sees the same
  int64_t open_file_count() const { return open_file_count_; }
  int64_t fault_count() const { return fault_count_; }                                   // operations that a fault hit
  const std::set<std::string>& misdirected_files() const { return misdirected_files_; }  // that lack bytes, or have others'

 private:
  friend class SimProcess;
  friend class SimFileSystem;
  friend class SimFile;

  struct CountedFault {
    SimFault fault;
    int64_t match_count = 0;
  };

  // Accounts for an operation and is its crash and pause point. As CheckAlive: false or an exception when the process is dead.
  bool Enter(SimProcess& process, std::string_view what, std::string_view path, uint64_t arguments = 0);
  bool Wait(SimProcess& process, int64_t duration_ns);
  SimFault FaultFor(std::string_view what, std::string_view path);
  void Trace(uint64_t value) { trace_hash_ = SimRandom::Mix(trace_hash_ ^ value); }
  SimProcess& Caller(SimProcess& owner);
  uint64_t NextSeed(uint64_t kind) { return SimRandom::Mix(options_.seed * 8 + kind); }

  const SimWorldOptions options_;
  std::unique_ptr<SimThreads> own_threads_;
  SimScheduler scheduler_;
  SimDisk disk_;
  SimRandom fault_random_;
  std::map<std::string, int64_t> boots_;  // of hosts
  std::deque<std::unique_ptr<SimProcess>> processes_;
  std::vector<CountedFault> faults_;
  std::function<void(const SimOp&)> on_op_;
  int64_t op_count_ = 0;
  int64_t open_count_ = 0;
  int64_t open_file_count_ = 0;
  int64_t fault_count_ = 0;
  std::set<std::string> misdirected_files_;
  int64_t power_cut_at_op_;
  bool power_was_cut_ = false;
  uint64_t trace_hash_ = 0;
};

}  // namespace lamina::env
