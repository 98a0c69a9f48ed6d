#include "env/sim_env.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "env/sim_file_system.h"

namespace lamina::env {
namespace {

constexpr int64_t kOpNs = 1000;                               // so that time never stands still for one who polls
constexpr int64_t kWallOriginNs = 1'767'225'600'000'000'000;  // 2026-01-01
constexpr int64_t kTickNs = 10'000'000;                       // of ProcessIdentity::start_ticks
constexpr int64_t kFirstPid = 1000;

// Streams of the seed, so that drawing from one leaves the others as they were.
enum Stream : uint64_t { kSchedule, kDisk, kFaults, kProcesses };

uint64_t HashOfText(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

class SimTaskHandle final : public Task {
 public:
  SimTaskHandle(SimScheduler& scheduler, const SimTask* task) : scheduler_(scheduler), task_(task) {}
  ~SimTaskHandle() override { Join(); }
  void Join() override {
    if (task_ != nullptr) scheduler_.Join(*task_);
  }

 private:
  SimScheduler& scheduler_;
  const SimTask* const task_;  // null: asked for by the dead, never started
};

}  // namespace

SimProcess::SimProcess(SimWorld& world, std::string name, ProcessIdentity identity, uint64_t seed)
    : world_(world),
      life_{.name = std::move(name)},
      identity_(std::move(identity)),
      random_(seed),
      origin_ns_(random_.Below(int64_t{1} << 40)),
      files_(std::make_unique<SimFileSystem>(world, *this, SimClient{identity_.pid, identity_.host})) {}

SimProcess::~SimProcess() = default;

int64_t SimProcess::MonotonicNs() {
  const int64_t now_ns = world_.scheduler_.ReadClock();
  world_.scheduler_.CheckAlive(life_);
  return now_ns + origin_ns_;
}

int64_t SimProcess::WallNs() {
  const int64_t now_ns = world_.scheduler_.ReadClock();
  world_.scheduler_.CheckAlive(life_);
  return kWallOriginNs + now_ns + wall_skew_ns_;
}

void SimProcess::SleepNs(int64_t duration_ns) {
  if (world_.Enter(*this, "sleep", {}, static_cast<uint64_t>(duration_ns))) world_.Wait(*this, duration_ns);
}

uint64_t SimProcess::RandomU64() {
  world_.scheduler_.SwitchPoint();
  return world_.scheduler_.CheckAlive(life_) ? random_.Next() : 0;
}

std::unique_ptr<Task> SimProcess::Start(std::string name, std::function<void()> body) {
  SimScheduler& scheduler = world_.scheduler_;
  if (!scheduler.CheckAlive(life_)) return std::make_unique<SimTaskHandle>(scheduler, nullptr);
  auto handle = std::make_unique<SimTaskHandle>(scheduler, &scheduler.Start(life_, std::move(name), std::move(body)));
  scheduler.SwitchPoint();
  return handle;
}

std::unique_ptr<MutexImpl> SimProcess::NewMutex() { return std::make_unique<SimMutex>(world_.scheduler_); }

std::unique_ptr<CondVarImpl> SimProcess::NewCondVar() { return std::make_unique<SimCondVar>(world_.scheduler_, life_, origin_ns_); }

Liveness SimProcess::LivenessOf(const ProcessIdentity& process) {
  world_.scheduler_.CheckAlive(life_);
  const bool knowable =
      process.host == identity_.host && process.boot_id == identity_.boot_id && process.pid_namespace == identity_.pid_namespace;
  if (!knowable) return Liveness::kUnknown;
  const bool alive = std::any_of(world_.processes_.begin(), world_.processes_.end(), [&process](const auto& other) {
    return other->identity_ == process && !other->life_.dead && !other->exited_;
  });
  return alive ? Liveness::kAlive : Liveness::kDead;
}

void SimProcess::Operation(std::string_view what) { world_.Enter(*this, what, {}); }

SimWorld::SimWorld(SimWorldOptions options)
    : options_(std::move(options)),
      own_threads_(options_.threads == nullptr ? std::make_unique<SimThreads>() : nullptr),
      scheduler_({NextSeed(kSchedule), options_.switch_probability, options_.switch_probability / 5, options_.spurious_wakeup_probability,
                  options_.step_count_max},
                 options_.threads == nullptr ? *own_threads_ : *options_.threads),
      disk_({NextSeed(kDisk), options_.capacity_bytes, options_.lose_all_unsynced, options_.stale_ns, options_.stale_list_ns},
            [this] { return WallNs(); }),
      fault_random_(NextSeed(kFaults)),
      power_cut_at_op_(options_.power_cut_at_op) {
  for (const std::string& directory : options_.directories) {
    disk_.MakeDirectory({}, directory).IgnoreError();  // a missing parent shows at the first use
  }
  disk_.MakeDurable();
}

SimWorld::~SimWorld() {
  scheduler_.KillAll();
  try {
    scheduler_.RunUntilQuiet().IgnoreError();  // Run is where failures are told
  } catch (...) {
  }
}

SimProcess& SimWorld::NewProcess(std::string name, std::string host, std::string pid_namespace) {
  const int64_t pid = kFirstPid + static_cast<int64_t>(processes_.size());
  const uint64_t boot = SimRandom::Mix(NextSeed(kProcesses) ^ HashOfText(host) ^ static_cast<uint64_t>(boots_[host]));
  ProcessIdentity identity{std::move(host), absl::StrCat(absl::Hex(boot, absl::kZeroPad16)), std::move(pid_namespace), pid,
                           scheduler_.now_ns() / kTickNs};
  const uint64_t seed = SimRandom::Mix(NextSeed(kProcesses) + static_cast<uint64_t>(pid));
  processes_.push_back(std::unique_ptr<SimProcess>(new SimProcess(*this, std::move(name), std::move(identity), seed)));
  scheduler_.AddProcess(processes_.back()->life_);
  return *processes_.back();
}

void SimWorld::Start(SimProcess& process, std::function<void(Env&)> body) {
  ++process.bodies_running_;
  process.exited_ = false;
  scheduler_.Start(process.life_, "main", [&process, body = std::move(body)] {
    body(process);
    process.exited_ = --process.bodies_running_ == 0;
  });
}

absl::Status SimWorld::Run(SimProcess& process, std::function<void(Env&)> body) {
  Start(process, std::move(body));
  return Run();
}

void SimWorld::Kill(SimProcess& process) { scheduler_.Kill(process.life_); }

void SimWorld::KillHost(const std::string& host) {
  for (const std::unique_ptr<SimProcess>& process : processes_) {
    if (process->host() == host) Kill(*process);
  }
  disk_.LoseHost(host);
  ++boots_[host];
}

void SimWorld::PowerCut() {
  scheduler_.KillAll();
  disk_.PowerCut();
  for (auto& [host, boot] : boots_) ++boot;
  power_was_cut_ = true;
}

void SimWorld::Reboot() {
  if (!power_was_cut_) PowerCut();
  power_was_cut_ = false;
}

void SimWorld::Pause(SimProcess& process) { process.life_.paused = true; }

void SimWorld::Resume(SimProcess& process) { process.life_.paused = false; }

absl::StatusOr<std::string> SimWorld::ReadFile(const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(const SimDisk::InodePtr inode, disk_.Open({}, path));
  std::string bytes(static_cast<size_t>(disk_.Size(*inode)), '\0');
  disk_.Read(*inode, 0, std::as_writable_bytes(std::span<char>(bytes)));
  return bytes;
}

int64_t SimWorld::WallNs() const { return kWallOriginNs + scheduler_.now_ns(); }

SimProcess& SimWorld::Caller(SimProcess& owner) {
  for (const std::unique_ptr<SimProcess>& process : processes_) {
    if (&process->life_ == scheduler_.current().process) return *process;
  }
  return owner;
}

bool SimWorld::Enter(SimProcess& owner, std::string_view what, std::string_view path, uint64_t arguments) {
  if (!scheduler_.CheckAlive(owner.life_)) return false;
  if (scheduler_.in_test()) return true;
  SimProcess& process = Caller(owner);
  const SimOp op{op_count_++, process.op_count_++, process, scheduler_.current().name, what, path};
  scheduler_.Tick(kOpNs);
  for (const uint64_t value : {static_cast<uint64_t>(scheduler_.current().id), HashOfText(what), HashOfText(path), arguments}) Trace(value);
  if (on_op_) on_op_(op);
  if (op.number == power_cut_at_op_) PowerCut();
  if (op.number_in_process == process.kill_at_op_) Kill(process);
  if (op.number_in_process == process.pause_at_op_) Pause(process);
  scheduler_.SwitchPoint();
  return scheduler_.CheckAlive(owner.life_);
}

bool SimWorld::Wait(SimProcess& process, int64_t duration_ns) {
  if (duration_ns <= 0) return true;
  const int64_t now_ns = scheduler_.now_ns();
  scheduler_.SleepUntil(duration_ns < kForeverNs - now_ns ? now_ns + duration_ns : kForeverNs);
  return scheduler_.CheckAlive(process.life_);
}

SimFault SimWorld::FaultFor(std::string_view what, std::string_view path) {
  if (scheduler_.in_test()) return {};
  if (what == "open" && options_.stale_handle_each_opens > 0 && ++open_count_ % options_.stale_handle_each_opens == 0) {
    return {.error_number = ESTALE};
  }
  const std::string& process = scheduler_.current().process->name;
  for (CountedFault& counted : faults_) {
    const SimFault& fault = counted.fault;
    const bool matches = (fault.what.empty() || fault.what == what) && path.find(fault.path) != std::string_view::npos &&
                         (fault.process.empty() || fault.process == process);
    if (!matches) continue;
    const int64_t number = counted.match_count++;
    const bool hit = number >= fault.first && number - fault.first < fault.count;
    if (!hit || !fault_random_.Chance(fault.probability)) continue;
    ++fault_count_;
    return fault;
  }
  return {};
}

}  // namespace lamina::env
