#include "sim/history.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/units.h"
#include "env/sim_env.h"
#include "sim/bystander.h"
#include "sim/history_check.h"
#include "sim/history_job.h"
#include "sim/random_layout.h"

namespace lamina::sim {
namespace {

using base::kMillisecondNs;
using base::kSecondNs;
using env::SimFault;
using env::SimProcess;
using env::SimRandom;

constexpr int64_t kStaleNs = 3 * kSecondNs;
constexpr int64_t kHourNs = 3600 * kSecondNs;
constexpr int64_t kForEver = INT64_MAX / 2;
constexpr int64_t kOpsOfALaunch = 1500;  // about, for placing what happens in the midst of one
constexpr int64_t kLaunchNsMax = 6 * kHourNs;
constexpr int64_t kLateSaveNs = 620 * kSecondNs;
constexpr int64_t kPinsToForget = 105;  // records enough for a dropped step to leave the table, once it is swept; odd: it ends as it began

// Kinds that hold for a whole history, and those that befall one launch.
constexpr FaultKind kOfTheWorld[] = {FaultKind::kShortWrites, FaultKind::kLatency, FaultKind::kStaleNames, FaultKind::kStaleLists,
                                     FaultKind::kLateCopies};

bool IsOfTheWorld(FaultKind kind) { return std::find(std::begin(kOfTheWorld), std::end(kOfTheWorld), kind) != std::end(kOfTheWorld); }

std::string Names(const std::set<FaultKind>& kinds) {
  return absl::StrJoin(kinds, ", ", [](std::string* out, FaultKind kind) { out->append(NameOf(kind)); });
}

class History {
 public:
  History(const HistoryOptions& options, env::SimThreads& threads)
      : options_(options),
        random_(options.seed * 2 + 1),
        world_kinds_(DrawWorldKinds()),
        check_(world_, jobs_),
        world_(WorldOptions(threads)),
        tensors_(RandomTensors(random_)),
        retention_(DrawRetention()) {
    check_.SetGraces(static_cast<int64_t>(retention_.gc_grace_s * 1e9), static_cast<int64_t>(retention_.abandoned_grace_s * 1e9));
    world_.set_on_op([this](const env::SimOp& op) { OnOp(op); });
  }

  HistoryOutcome Run() {
    Tell(absl::StrCat("throughout: ", Names(world_kinds_), "; gc_grace_s ", retention_.gc_grace_s, ", abandoned_grace_s ",
                      retention_.abandoned_grace_s));
    absl::Status status;
    while (status.ok() && saves_left_ > 0) status = Act();
    if (status.ok()) status = End();
    outcome_.status = std::move(status);
    outcome_.trace_hash = world_.trace_hash();
    outcome_.op_count = world_.op_count();
    outcome_.launch_count = std::ssize(jobs_);
    outcome_.simulated_s = static_cast<double>(world_.now_ns()) / 1e9;
    outcome_.commit_count = check_.commit_count();
    outcome_.restore_count = check_.restore_count();
    check_.CountDeletions(outcome_.drop_count, outcome_.deletion_count, outcome_.read_count, outcome_.late_read_count);
    return std::move(outcome_);
  }

 private:
  // Something that happens just before an operation: the first one from number `op` on, or of those the `left`-th whose name or path has
  // `part` in it; of one process when there is one.
  struct Trigger {
    int64_t op = 0;
    const SimProcess* process = nullptr;
    std::string_view part = {};
    int64_t left = 0;
    std::function<void()> fire;
  };

  // What holds for everybody who deletes in this history, and how likely a launch has `keep`.
  struct Retention {
    double gc_grace_s = 600;
    double abandoned_grace_s = 604800;
    double keep_chance = 0;
    uint64_t log_records_kept = tier::kRecordsKept;
  };

  // ---- Drawing.

  std::set<FaultKind> DrawWorldKinds() {
    std::set<FaultKind> kinds;
    for (const FaultKind kind : kOfTheWorld) {
      if (options_.faults.contains(kind) && random_.Chance(0.3)) kinds.insert(kind);
    }
    return kinds;
  }

  env::SimWorldOptions WorldOptions(env::SimThreads& threads) {
    env::SimWorldOptions world;
    world.seed = options_.seed;
    world.threads = &threads;
    world.lose_all_unsynced = random_.Chance(0.3);
    world.switch_probability = random_.Chance(0.5) ? 0.1 : 0.02;
    world.short_writes = Has(FaultKind::kShortWrites);
    if (Has(FaultKind::kLatency)) world.latency_ns_max = 5 * kMillisecondNs;
    if (Has(FaultKind::kStaleNames)) world.stale_ns = 1 + random_.Below(kStaleNs);
    if (Has(FaultKind::kStaleLists)) world.stale_list_ns = 1 + random_.Below(kStaleNs);
    return world;
  }

  bool Has(FaultKind kind) const { return world_kinds_.contains(kind); }
  bool IsStale() const { return Has(FaultKind::kStaleNames) || Has(FaultKind::kStaleLists); }

  // The grace is longer than names may be stale.
  Retention DrawRetention() {
    constexpr double kGraces[] = {0, 0, 5, 600};
    constexpr double kStaleGraces[] = {10, 10, 30, 600};
    constexpr double kAbandoned[] = {0, 20, 604800};
    Retention retention;
    retention.gc_grace_s = (IsStale() ? kStaleGraces : kGraces)[random_.Below(4)];
    retention.abandoned_grace_s = kAbandoned[random_.Below(3)];
    retention.keep_chance = random_.Chance(0.6) ? 0.7 : 0;
    if (options_.seed % 3 == 0) retention.log_records_kept = 4 + options_.seed % 8;  // of some dozens
    return retention;
  }
  void SetRetention(Script& script) {
    script.gc_grace_s = retention_.gc_grace_s;
    script.abandoned_grace_s = retention_.abandoned_grace_s;
    script.log_records_kept = retention_.log_records_kept;
    if (random_.Chance(retention_.keep_chance)) script.keep = static_cast<int32_t>(1 + random_.Below(3));
  }
  // Mostly at once; at times so long that a lease must be renewed meanwhile.
  int64_t DrawLinger() { return random_.Chance(0.6) ? 0 : random_.Below(random_.Chance(0.5) ? 10 * kSecondNs : 300 * kSecondNs); }

  std::set<FaultKind> DrawWeather() {
    std::vector<FaultKind> kinds;
    for (const FaultKind kind : options_.faults) {
      if (!IsOfTheWorld(kind)) kinds.push_back(kind);
    }
    std::set<FaultKind> weather;
    if (kinds.empty()) return weather;
    constexpr int kCounts[] = {0, 0, 1, 1, 1, 1, 2, 2, 3};
    for (int i = kCounts[random_.Below(std::size(kCounts))]; i > 0; --i) {
      weather.insert(kinds[static_cast<size_t>(random_.Below(std::ssize(kinds)))]);
    }
    return weather;
  }

  Script DrawScript(int32_t rank_count, int64_t save_count) {
    Script script;
    script.run_id = random_.Chance(0.7) ? "run" : absl::StrCat("run", jobs_.size());
    script.takeover = random_.Chance(0.7);
    if (IsStale()) script.restore_retry_s = 8;
    SetRetention(script);
    script.late_copies = Has(FaultKind::kLateCopies);
    script.abandons = random_.Chance(0.1);
    script.layouts.push_back(RandomLayout(random_, tensors_, rank_count));
    Action restore{.kind = Action::Kind::kRestore};
    if (random_.Chance(0.2)) restore.linger_ns = DrawLinger();
    const std::vector<int64_t> known = check_.KnownSteps();
    if (!known.empty() && random_.Chance(0.15)) restore.step = known[static_cast<size_t>(random_.Below(std::ssize(known)))];
    script.actions.push_back(restore);
    bool restored = true;
    for (int64_t i = 0; i < save_count; ++i) {
      if (random_.Chance(0.1)) script.actions.push_back({.kind = Action::Kind::kSleep, .sleep_ns = random_.Below(100 * kSecondNs)});
      if (i > 0 && random_.Chance(0.1)) {
        script.actions.push_back({.kind = Action::Kind::kRestore, .to_start = random_.Chance(0.5), .layout = script.layouts.size() - 1});
        restored = true;
      }
      if (random_.Chance(0.15)) script.layouts.push_back(RandomLayout(random_, tensors_, rank_count));
      const bool again = restored && random_.Chance(0.2);
      script.actions.push_back({.kind = Action::Kind::kSave,
                                .rise = again ? 0 : 1 + random_.Below(3),
                                .life = ++life_count_,
                                .layout = script.layouts.size() - 1});
      if (random_.Chance(0.3)) script.actions.push_back({.kind = Action::Kind::kSettle});
      restored = false;
    }
    return script;
  }

  // ---- Launching.

  HistoryJob& Launch(int32_t rank_count, Script script) {
    const int64_t ranks_per_host = 1 + random_.Below(3);
    const int64_t first_host = random_.Below(2);
    jobs_.push_back(std::make_unique<HistoryJob>(
        world_, std::ssize(jobs_) + 1, rank_count, std::move(script),
        [&](int32_t rank) { return absl::StrCat("host", first_host + rank / ranks_per_host); },
        [this](const SimProcess& leader) { return check_.Look(leader); }));
    return *jobs_.back();
  }

  int32_t DrawRankCount() { return static_cast<int32_t>(1 + random_.Below(options_.rank_count_max)); }

  // Beside the job: others that read, and gc. Those that a kind of fault is about are there for certain.
  void LaunchBystanders(const std::set<FaultKind>& weather) {
    readers_.clear();
    collecting_.reset();
    check_.BeginLaunch();
    const bool must_read = weather.contains(FaultKind::kPauseReader) || at_readers_;
    if (random_.Chance(must_read ? 0.5 : 0.25)) {
      Script script{.mode = Mode::kRead, .late_copies = Has(FaultKind::kLateCopies)};
      const int32_t rank_count = DrawRankCount();
      script.layouts.push_back(RandomLayout(random_, tensors_, rank_count));
      script.restore_retry_s = 8;
      script.actions.push_back({.kind = Action::Kind::kSleep, .sleep_ns = random_.Below(2 * kSecondNs)});
      script.actions.push_back({.kind = Action::Kind::kRestore, .linger_ns = DrawLinger()});
      Tell(absl::StrCat("beside it job ", jobs_.size() + 1, " reads on ", rank_count, " ranks"));
      readers_.push_back(&Launch(rank_count, std::move(script)).process(0));
    }
    int64_t lease_ns = 0;
    if (must_read || random_.Chance(0.3)) {
      const ReaderPlan plan{
          .delay_ns = random_.Below(2 * kSecondNs), .linger_ns = DrawLinger(), .may_write = must_read || random_.Chance(0.8)};
      Tell(absl::StrCat("beside it a reader ", plan.may_write ? "" : "without write access ", "looks at all steps, and lingers for ",
                        plan.linger_ns / kMillisecondNs, " ms"));
      const auto reading = StartReader(world_, absl::StrCat("reader", ++reader_count_), plan,
                                       [this](const SimProcess& reader) { return check_.Look(reader); });
      check_.Add(reading);
      if (plan.linger_ns > 120 * kSecondNs) lease_ns = plan.linger_ns;
      readers_.push_back(reading->process);
    }
    if (weather.contains(FaultKind::kPauseGc) || random_.Chance(must_read || lease_ns > 0 ? 0.8 : 0.35)) LaunchGc(lease_ns);
  }

  // `lease_ns`: a reader lingers for so long, more than a lease lasts that nobody touches; 0: none does.
  void LaunchGc(int64_t lease_ns) {
    constexpr GcPlan::Kind kKinds[] = {GcPlan::Kind::kRetire,   GcPlan::Kind::kRetire,   GcPlan::Kind::kRetire, GcPlan::Kind::kDropStep,
                                       GcPlan::Kind::kDropStep, GcPlan::Kind::kDropStep, GcPlan::Kind::kPin,    GcPlan::Kind::kLetGo};
    GcPlan plan{.kind = kKinds[random_.Below(std::ssize(kKinds))]};
    plan.delay_ns = random_.Below(random_.Chance(0.7) ? 2 * kSecondNs : 100 * kSecondNs);
    plan.rounds = 1 + random_.Below(3);
    plan.between_ns = random_.Below(random_.Chance(0.5) ? 10 * kSecondNs : 200 * kSecondNs);
    if (lease_ns > 0) {
      plan.delay_ns = random_.Below(3 * kSecondNs);
      plan.rounds = 3;
      plan.between_ns = lease_ns * 2 / 5;
    }
    plan.keep = static_cast<int32_t>(random_.Below(4));
    plan.gc_grace_s = retention_.gc_grace_s;
    plan.abandoned_grace_s = retention_.abandoned_grace_s;
    plan.pick = random_.Next();
    plan.dry_run = random_.Chance(0.1);
    if (options_.seed % 4 == 1) plan.pin_count = kPinsToForget;
    constexpr const char* kNames[] = {"retires steps", "drops a step", "pins a step", "lets a step go"};
    Tell(absl::StrCat("beside it gc ", kNames[static_cast<size_t>(plan.kind)], plan.dry_run ? ", dry" : ""));
    collecting_ = StartGc(world_, absl::StrCat("gc", ++gc_count_), plan);
    check_.Add(collecting_);
  }

  absl::Status Act() {
    const int32_t rank_count = DrawRankCount();
    const int64_t save_count = 1 + random_.Below(std::min<int64_t>(3, saves_left_));
    saves_left_ -= save_count;
    const std::set<FaultKind> weather = DrawWeather();
    Script script = DrawScript(rank_count, save_count);
    if (weather.contains(FaultKind::kLatePeer)) {
      script.late_ns.resize(static_cast<size_t>(rank_count));
      script.late_ns[static_cast<size_t>(random_.Below(rank_count))] = random_.Below(6 * kSecondNs);
    }
    const int64_t job_count = weather.contains(FaultKind::kRival) ? 2 : 1;
    Script rival;
    if (job_count > 1) rival = DrawScript(rank_count, save_count);
    const int32_t script_keep = script.keep;
    HistoryJob& job = Launch(rank_count, std::move(script));
    Tell(absl::StrCat("launch ", jobs_.size(), ": ", rank_count, " ranks, ", save_count, " saves; weather: ", Names(weather),
                      script_keep > 0 ? absl::StrCat("; keep ", script_keep) : ""));
    if (job_count > 1) Launch(rank_count, std::move(rival));
    at_readers_ = (weather.contains(FaultKind::kIoError) || weather.contains(FaultKind::kStaleHandle)) && random_.Chance(0.4);
    LaunchBystanders(weather);
    for (const FaultKind kind : weather) {
      ++outcome_.faults[kind];
      Befall(kind, job);
    }
    const bool woken = PlanWakings();
    disturbed_ = !weather.empty() || woken;
    LAMINA_RETURN_IF_ERROR(RunWorld());
    for (SimProcess* process : AsleepIn(job.processes())) sleepers_.push_back(process);
    for (SimProcess* process : AsleepIn(readers_)) sleepers_.push_back(process);
    if (collecting_ != nullptr && collecting_->process->paused() && !collecting_->process->dead())
      sleepers_.push_back(collecting_->process);
    if (options_.faults.contains(FaultKind::kPowerCut) && random_.Chance(0.15)) {
      Tell("once all is quiet the power is cut");
      world_.PowerCut();
    }
    if (world_.power_was_cut()) {
      world_.Reboot();
      check_.Reboot();
      sleepers_.clear();
    }
    CalmDown();
    if (!sleepers_.empty() && random_.Chance(0.4)) LAMINA_RETURN_IF_ERROR(WakeAll());
    LAMINA_RETURN_IF_ERROR(Checked());
    return disturbed_ ? absl::OkStatus() : check_.Undisturbed(job);
  }

  // ---- What goes wrong.

  void Befall(FaultKind kind, HistoryJob& job) {
    const int32_t victim = static_cast<int32_t>(random_.Below(job.rank_count()));
    SimProcess& process = job.process(victim);
    switch (kind) {
      case FaultKind::kDeath:
        return At([this, &process] { world_.Kill(process); }, &process);
      case FaultKind::kNodeDeath:
        return At([this, host = process.host()] { world_.KillHost(host); });
      case FaultKind::kPowerCut:
        return At([this] { world_.PowerCut(); });
      case FaultKind::kPause:
        return At([this, &process] { world_.Pause(process); }, &process);
      case FaultKind::kPauseLeader:
        return At([this, &leader = job.process(0)] { world_.Pause(leader); }, &job.process(0));
      case FaultKind::kPauseJob:
        return At(
            [this, &job] {
              for (SimProcess* other : job.processes()) world_.Pause(*other);
            },
            &job.process(0));
      case FaultKind::kPauseReader:
        return PauseBystander(*readers_[static_cast<size_t>(random_.Below(std::ssize(readers_)))]);
      case FaultKind::kPauseGc:
        return PauseBystander(*collecting_->process);
      case FaultKind::kDeadPeer:
        return world_.Kill(process);
      case FaultKind::kSlowPeer:
        return world_.AddFault({.process = process.name(), .count = kForEver, .probability = 0.3, .delay_ns = 200 * kMillisecondNs});
      case FaultKind::kStoreGone:
        At([&job] { job.hub().SetGone(true); });
        if (random_.Chance(0.5)) At([&job] { job.hub().SetGone(false); });
        return;
      case FaultKind::kStoreSlow:
        return job.hub().SetDelayNs(1 + random_.Below(50 * kMillisecondNs));
      case FaultKind::kHang:
        // Beyond the deadline of a save whose bytes are there and whose vote is not.
        if (random_.Chance(0.3))
          return world_.AddFault({.what = "sync", .path = ".pack", .first = random_.Below(4), .delay_ns = kLateSaveNs});
        return AddFault({.error_number = 0, .delay_ns = random_.Chance(0.5) ? 10 * kSecondNs : random_.Below(1000 * kSecondNs)}, process);
      case FaultKind::kIoError:
        return at_readers_ ? HideReaders(EIO) : AddFault({.error_number = EIO}, process);
      case FaultKind::kNoSpace:
        return AddFault({.what = std::string(OneOf({"write", "create", "mkdir", "link", "sync"})), .error_number = ENOSPC}, process);
      case FaultKind::kQuota:
        return AddFault({.what = std::string(OneOf({"write", "create", "sync"})), .error_number = EDQUOT}, process);
      case FaultKind::kStaleHandle:
        if (at_readers_) return HideReaders(ESTALE);
        return AddFault({.what = std::string(OneOf({"open", "read", "size", "stat", "list"})), .error_number = ESTALE}, process);
      case FaultKind::kFailedSync:
        return AddFault({.what = std::string(OneOf({"sync", "syncdir"})), .error_number = EIO}, process);
      case FaultKind::kFullDisk:
        At([this, room = random_.Below(20000)] { world_.set_capacity_bytes(world_.UsedBytes() + room); });
        if (random_.Chance(0.5)) At([this] { world_.set_capacity_bytes(env::kUnlimitedBytes); });
        return;
      case FaultKind::kLostAnswer:
        return LoseAnswer(process);
      case FaultKind::kBitRot:
        return At([this] { check_.Rot(random_.Next()); });
      case FaultKind::kMisdirected:
        return world_.AddFault({.what = "write", .path = "/steps/", .first = random_.Below(30), .misdirected = true});
      case FaultKind::kLatePeer:
      case FaultKind::kRival:
      default:
        return;  // seen to before the launch
    }
  }

  std::string_view OneOf(std::initializer_list<std::string_view> words) {
    return *(words.begin() + random_.Below(static_cast<int64_t>(words.size())));
  }

  // Once or for long, now or later, on one process or on all.
  void AddFault(SimFault fault, const SimProcess& process) {
    if (fault.what.empty() && random_.Chance(0.7)) {
      fault.what =
          OneOf({"create", "open", "write", "read", "sync", "syncdir", "link", "unlink", "mkdir", "rmdir", "list", "stat", "touch"});
    }
    if (random_.Chance(0.3)) fault.process = process.name();
    if (random_.Chance(0.3)) fault.path = OneOf({"/log", "/steps", "/writers", "/LAMINA", ".pack", "/catalog", "/packs"});
    fault.first = random_.Below(fault.what.empty() ? 200 : 20);
    fault.count = random_.Chance(0.5) ? 1 : random_.Chance(0.8) ? 1 + random_.Below(10) : kForEver;
    if (random_.Chance(0.3)) fault.probability = 0.3;
    if (fault.delay_ns > 0) fault.count = std::min<int64_t>(fault.count, 3);
    world_.AddFault(std::move(fault));
  }

  // Who deletes does not learn who reads, or who reads cannot say so.
  void HideReaders(int error_number) {
    world_.AddFault({.what = std::string(OneOf({"list", "list", "stat", "touch"})),
                     .path = "/readers",
                     .first = random_.Below(4),
                     .count = random_.Chance(0.5) ? 1 + random_.Below(4) : kForEver,
                     .error_number = error_number});
  }

  void LoseAnswer(const SimProcess& process) {
    const std::string_view what = OneOf({"link", "link", "create", "unlink", "mkdir", "syncdir", "touch"});
    SimFault fault{.what = std::string(what), .error_number = EIO, .takes_effect = true};
    if ((what == "link" || what == "create" || what == "mkdir") && random_.Chance(0.7)) fault.error_number = EEXIST;
    if (what == "unlink" && random_.Chance(0.7)) fault.error_number = ENOENT;
    AddFault(std::move(fault), process);
  }

  // At a random operation of the launch, or at one of those few on which the protocol turns.
  void At(std::function<void()> fire, const SimProcess* process = nullptr) {
    Trigger trigger{.op = world_.op_count(), .process = process, .fire = std::move(fire)};
    if (random_.Chance(0.5)) {
      trigger.part = OneOf({"/log", "/log", "/log", "catalog", "packs", ".pack", "/writers", "/steps", "link", "unlink", "list", "vote",
                            "go", "ended", "begin"});
      trigger.left = random_.Below(random_.Chance(0.5) ? 8 : 40);
    } else {
      trigger.op += 1 + random_.Below(random_.Chance(0.3) ? kOpsOfALaunch / 10 : kOpsOfALaunch);
    }
    triggers_.push_back(std::move(trigger));
  }

  void OnOp(const env::SimOp& op) {
    check_.OnOp(op);
    for (size_t i = 0; i < triggers_.size();) {
      Trigger& trigger = triggers_[i];
      const bool named = op.what.find(trigger.part) != std::string_view::npos || op.path.find(trigger.part) != std::string_view::npos;
      const bool counts = op.number >= trigger.op && named && (trigger.process == nullptr || trigger.process == &op.process);
      if (!counts || trigger.left-- > 0) {
        ++i;
        continue;
      }
      const std::function<void()> fire = std::move(trigger.fire);
      triggers_.erase(triggers_.begin() + static_cast<std::ptrdiff_t>(i));
      fire();
    }
  }

  // Where readers, the log and what is deleted meet. Half of them wake in the same launch.
  void PauseBystander(SimProcess& process) {
    Trigger trigger{.op = world_.op_count(), .process = &process, .fire = [this, &process] { world_.Pause(process); }};
    trigger.part = OneOf({"/readers", "/readers", "/readers", "/log", "/log", "/steps", "unlink", "sleep"});
    trigger.left = random_.Below(8);
    triggers_.push_back(std::move(trigger));
    if (random_.Chance(0.5)) At([this, &process] { world_.Resume(process); });
  }

  void CalmDown() {
    triggers_.clear();
    world_.ClearFaults();
    world_.set_capacity_bytes(env::kUnlimitedBytes);
    check_.NoteMisdirected();
  }

  // ---- Sleepers: processes of earlier launches that wake when nobody expects them.

  static std::vector<SimProcess*> AsleepIn(const std::vector<SimProcess*>& processes) {
    std::vector<SimProcess*> asleep;
    for (SimProcess* process : processes) {
      if (process->paused() && !process->dead()) asleep.push_back(process);
    }
    return asleep;
  }

  bool PlanWakings() {
    if (sleepers_.empty() || random_.Chance(0.4)) return false;
    Tell("sleepers wake in it");
    At([this] { Wake(); });
    return true;
  }

  void Wake() {
    for (SimProcess* process : std::exchange(sleepers_, {})) world_.Resume(*process);
  }

  absl::Status WakeAll() {
    Tell("sleepers wake after it");
    disturbed_ = true;
    Wake();
    return RunWorld();
  }

  // ---- Running and checking.

  absl::Status RunWorld() {
    const int64_t begun_ns = world_.now_ns();
    LAMINA_RETURN_IF_ERROR(world_.Run());
    if (world_.now_ns() - begun_ns > kLaunchNsMax) {
      return absl::InternalError(absl::StrCat("a launch took ", (world_.now_ns() - begun_ns) / kSecondNs, " s (I7)"));
    }
    return absl::OkStatus();
  }

  absl::Status Checked() {
    if (options_.tell) {
      for (size_t i = told_jobs_; i < jobs_.size(); ++i) Tell(jobs_[i]->Describe());
    }
    const absl::Status status = check_.All();
    if (options_.tell) Tell(check_.Describe());
    told_jobs_ = jobs_.size();
    return status;
  }

  // In the end the weather is fair: everybody wakes, days later the job is launched again, and leaves a tidy root.
  absl::Status End() {
    Tell("the end: everybody wakes");
    CalmDown();
    Wake();
    disturbed_ = true;
    LAMINA_RETURN_IF_ERROR(RunWorld());
    LAMINA_RETURN_IF_ERROR(Checked());
    world_.NewProcess("clock").SleepNs(26 * kHourNs);
    const auto launch = [&](std::vector<Action> actions) -> absl::Status {
      const int32_t rank_count = DrawRankCount();
      Script script{.run_id = "run", .takeover = true, .restore_retry_s = 8, .late_copies = Has(FaultKind::kLateCopies)};
      SetRetention(script);
      check_.BeginLaunch();
      script.layouts.push_back(RandomLayout(random_, tensors_, rank_count));
      script.actions = std::move(actions);
      HistoryJob& job = Launch(rank_count, std::move(script));
      Tell(absl::StrCat("launch ", jobs_.size(), ": ", rank_count, " ranks, in fair weather"));
      LAMINA_RETURN_IF_ERROR(RunWorld());
      LAMINA_RETURN_IF_ERROR(Checked());
      return check_.Undisturbed(job);
    };
    // The last one's claim finds what was dropped before it; the next sweep, a minute later, finds its restore at its end.
    LAMINA_RETURN_IF_ERROR(launch({{.kind = Action::Kind::kRestore},
                                   {.kind = Action::Kind::kSave, .rise = 1, .life = ++life_count_},
                                   {.kind = Action::Kind::kSettle},
                                   {.kind = Action::Kind::kSleep, .sleep_ns = kHourNs},
                                   {.kind = Action::Kind::kSave, .rise = 1, .life = ++life_count_}}));
    world_.NewProcess("clock").SleepNs(kHourNs);
    LAMINA_RETURN_IF_ERROR(
        launch({{.kind = Action::Kind::kRestore},
                {.kind = Action::Kind::kSleep, .sleep_ns = static_cast<int64_t>(retention_.gc_grace_s + 200) * kSecondNs}}));
    return check_.NothingLeft();
  }

  void Tell(const std::string& line) {
    if (options_.tell) absl::StrAppend(&outcome_.story, "  ", line, "\n");
  }

  const HistoryOptions options_;
  SimRandom random_;
  const std::set<FaultKind> world_kinds_;
  // Before the world: what its tasks tell as they unwind ends here.
  std::deque<std::unique_ptr<HistoryJob>> jobs_;
  HistoryCheck check_;
  env::SimWorld world_;
  const std::vector<StoredTensor> tensors_;
  const Retention retention_;
  HistoryOutcome outcome_;
  int64_t saves_left_ = options_.save_count;
  int64_t life_count_ = 0;
  std::deque<Trigger> triggers_;
  std::vector<SimProcess*> sleepers_;
  std::vector<SimProcess*> readers_;  // of the present launch: the leader of the job that reads, the reader
  std::shared_ptr<Collecting> collecting_;
  bool at_readers_ = false;  // the launch's errors of storage are about readers/
  int64_t reader_count_ = 0;
  int64_t gc_count_ = 0;
  bool disturbed_ = false;
  size_t told_jobs_ = 0;
};

}  // namespace

HistoryOutcome RunHistory(const HistoryOptions& options, env::SimThreads& threads) {
  try {
    return History(options, threads).Run();
  } catch (const std::exception& thrown) {  // by a task of the simulator: nothing else here throws
    HistoryOutcome outcome;
    outcome.status = absl::InternalError(absl::StrCat("thrown: ", thrown.what()));
    return outcome;
  }
}

}  // namespace lamina::sim
