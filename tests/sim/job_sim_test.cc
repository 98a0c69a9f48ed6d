// Small jobs on a simulated cluster, broken at every operation, then started again on other numbers of ranks. Letters and numbers such as
// I3 are the invariants of docs/architecture.md.
#include <catch2/catch.hpp>
#include <set>

#include "base/units.h"
#include "testing/sim_job.h"

namespace lamina {
namespace {

using env::SimProcess;
using env::SimWorld;
using env::SimWorldOptions;
using testing::CheckRoot;
using testing::Found;
using testing::kSimRoot;
using testing::Moment;
using testing::Script;
using testing::SimJob;
using testing::Told;

constexpr int64_t kBefore = 4;
constexpr int64_t kFirstLife = 1;
constexpr int64_t kSecondLife = 2;

// By odd seeds operations take time, so that ranks are apart; by even ones they run close together.
SimWorldOptions WorldOptions(uint64_t seed, env::SimThreads& threads) {
  SimWorldOptions options;
  options.seed = seed;
  options.threads = &threads;
  if (seed % 2 == 1) options.latency_ns_max = 5'000'000;
  return options;
}

std::set<std::string> AttemptsOnDisk(const SimWorld& world) {
  std::set<std::string> attempts;
  for (const auto& [path, bytes] : world.Files()) {
    const size_t at = path.find("/steps/");
    if (at != std::string::npos) attempts.insert(path.substr(at + 1, path.rfind('/') - at - 1));
  }
  return attempts;
}

Found CheckedRoot(SimWorld& world) {
  const absl::StatusOr<Found> found = CheckRoot(world.NewProcess("looker"), kSimRoot);
  INFO(found.status());
  REQUIRE(found.ok());
  return *found;
}

// What ranks were told of their saves is what the log says.
void CheckVerdicts(const SimJob& job, int64_t life, const Found& found) {
  for (const Told& told : job.told()) {
    for (const auto& [step, status] : told.saves) {
      INFO("step " << step << ": " << status);
      REQUIRE(status.ok() == found.Has({step, life}));
    }
  }
}

// A new launch restores the newest step, or an older one when told to, and saves on top of it.
SimJob Relaunch(SimWorld& world, int32_t rank_count, const Script& script) {
  SimJob job(world, "relaunched", rank_count, script);
  const absl::Status run = world.Run();
  INFO(run << job.Describe());
  REQUIRE(run.ok());
  REQUIRE(job.AllOk());
  return job;
}

// After a crash: nothing acknowledged is lost, every listed step reads back bit for bit, and restarts on other numbers of ranks go on from
// the newest step of the line, leave the older ones as they are and tidy up.
void CheckRestarts(SimWorld& world, int64_t acknowledged, int64_t parity) {
  world.set_on_op(nullptr);
  world.PowerCutAtOp(-1);
  const Found before = CheckedRoot(world);
  const Moment newest = before.line.empty() ? Moment{-1, 0} : before.line.front();
  REQUIRE(newest.step >= acknowledged);
  const int32_t rank_count = parity % 2 == 0 ? 2 : 4;
  const SimJob second = Relaunch(world, rank_count, {.life = kSecondLife, .saves = {300}});
  REQUIRE(second.told()[0].restored == newest);
  const SimJob third = Relaunch(world, 6 - rank_count, {.life = 3});
  REQUIRE(third.told()[0].restored == Moment{300, kSecondLife});
  const Found after = CheckedRoot(world);
  REQUIRE(after.line.size() == before.line.size() + 1);
  REQUIRE(std::equal(before.line.begin(), before.line.end(), after.line.begin() + 1));
  REQUIRE(AttemptsOnDisk(world) == after.attempts);
}

const Script kTwoSaves{.life = kFirstLife, .saves = {100, 200}};

}  // namespace

TEST_CASE("A job that nothing disturbs commits its saves", "[sim]") {
  env::SimThreads threads;
  SimWorld world(WorldOptions(GENERATE(range(1, 9)), threads));
  const SimJob job(world, "job", 4, kTwoSaves);
  REQUIRE(world.Run().ok());
  INFO(job.Describe());
  REQUIRE(job.AllOk());
  CheckRestarts(world, 200, 0);
  REQUIRE(CheckedRoot(world).line == std::vector<Moment>{{300, kSecondLife}, {200, kFirstLife}, {100, kFirstLife}});
}

TEST_CASE("Ranks that do not see the step's directory yet wait for it", "[sim]") {
  env::SimThreads threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SimWorldOptions options = WorldOptions(seed, threads);
    options.stale_ns = 20'000'000'000;
    SimWorld world(options);
    const SimJob job(world, "job", 4, kTwoSaves);
    REQUIRE(world.Run().ok());
    INFO(job.Describe());
    REQUIRE(job.AllOk());
  }
}

TEST_CASE("A pack that is gone fails the restore of its step on all ranks within 45 s and is named (FC-19)", "[sim]") {
  env::SimThreads threads;
  SimWorld world(WorldOptions(1, threads));
  SimJob(world, "job", 4, kTwoSaves);
  REQUIRE(world.Run().ok());
  const std::map<std::string, std::string> files = world.Files();
  const auto pack =
      std::find_if(files.begin(), files.end(), [](const auto& file) { return absl::EndsWith(file.first, "/00002.pack"); })->first;
  REQUIRE(absl::StrContains(pack, "/steps/000000000100/"));
  REQUIRE(world.Run(world.NewProcess("broom"), [&pack](env::Env& env) { env.files().Unlink(pack).IgnoreError(); }).ok());
  const int64_t begun_ns = world.now_ns();
  const SimJob job(world, "again", 4, {.restore_step = 100}, [](Options& options) { options.restore_retry_s = Options().restore_retry_s; });
  REQUIRE(world.Run().ok());
  INFO(job.Describe());
  for (const Told& told : job.told()) {
    REQUIRE(absl::IsDataLoss(told.status));
    REQUIRE(absl::StrContains(told.status.message(), pack.substr(pack.find("steps/"))));
  }
  const int64_t waited_ns = world.now_ns() - begun_ns;
  REQUIRE(waited_ns >= 30 * base::kSecondNs);
  REQUIRE(waited_ns < 45 * base::kSecondNs);
  REQUIRE(Relaunch(world, 4, {.life = kSecondLife}).told()[0].restored == Moment{200, kFirstLife});
}

TEST_CASE("A root that is not shared is found within 30 s, though files may show late (FC-19)", "[sim]") {
  env::SimThreads threads;
  SimWorld world(WorldOptions(1, threads));
  const SimJob job(world, "job", 4, kTwoSaves, [](Options& options) {
    options.restore_retry_s = Options().restore_retry_s;
    options.root = options.rank < 2 ? kSimRoot : "/ckpt/another";
  });
  REQUIRE(world.Run().ok());
  INFO(job.Describe());
  for (const Told& told : job.told()) {
    REQUIRE(absl::IsUnimplemented(told.status));
    REQUIRE(absl::StrContains(told.status.message(), "not shared: ranks 2 and 3"));
  }
  REQUIRE(world.now_ns() >= 20 * base::kSecondNs);
  REQUIRE(world.now_ns() < 30 * base::kSecondNs);
}

TEST_CASE("A job replays exactly from its seed, whatever befalls it", "[sim]") {
  env::SimThreads threads;
  const int64_t cut = GENERATE(-1, 60, 120, 200);
  std::set<uint64_t> hashes;
  for (const uint64_t seed : {7, 7, 8}) {
    SimWorld world(WorldOptions(seed, threads));
    const SimJob job(world, "job", 4, kTwoSaves);
    world.KillAtOp(job.process(0), cut);
    REQUIRE(world.Run().ok());
    hashes.insert(world.trace_hash());
  }
  REQUIRE(hashes.size() == 2);
}

TEST_CASE("Death of a rank at any operation leaves the others a true verdict and a root to go on from (I1, I2, I3, I6)", "[sim][death]") {
  env::SimThreads threads;
  const int32_t rank = GENERATE(0, 1, 2, 3);
  const uint64_t seed = GENERATE(7, 8);
  const bool then_power = GENERATE(false, true);  // is lost too, once the others have been told
  bool died = true;
  for (int64_t cut = 0; died; ++cut) {
    SimWorldOptions options = WorldOptions(seed, threads);
    options.lose_all_unsynced = true;
    SimWorld world(options);
    const SimJob job(world, "job", 4, kTwoSaves);
    world.KillAtOp(job.process(rank), cut);
    const absl::Status run = world.Run();
    died = job.process(rank).dead();
    INFO("seed " << seed << ", rank " << rank << " died at its operation " << cut << ", then power loss: " << then_power << ", " << run
                 << job.Describe());
    REQUIRE(run.ok());
    REQUIRE((died || job.AllOk()));
    if (then_power) world.Reboot();
    CheckVerdicts(job, kFirstLife, CheckedRoot(world));
    CheckRestarts(world, job.Acknowledged(), cut);
  }
}

TEST_CASE("A rank that sleeps at any operation and wakes finds what the others have decided (I2)", "[sim][wake]") {
  env::SimThreads threads;
  const int32_t rank = GENERATE(0, 1, 3);
  const uint64_t seed = GENERATE(7, 8);
  bool slept = true;
  for (int64_t at = 0; slept; ++at) {
    SimWorld world(WorldOptions(seed, threads));
    const SimJob job(world, "job", 4, kTwoSaves);
    world.PauseAtOp(job.process(rank), at);
    absl::Status run = world.Run();
    INFO("seed " << seed << ", rank " << rank << " asleep at its operation " << at << ", " << run);
    REQUIRE(run.ok());
    slept = job.process(rank).paused();
    if (slept) world.Resume(job.process(rank));
    run = world.Run();
    INFO(run << job.Describe());
    REQUIRE(run.ok());
    const Found found = CheckedRoot(world);
    CheckVerdicts(job, kFirstLife, found);
    CheckRestarts(world, job.Acknowledged(), at);
  }
}

TEST_CASE("Power loss at any operation of a job keeps what any rank was told is committed (I1, I2, I3, I6)", "[sim][power]") {
  env::SimThreads threads;
  const bool lose_all = GENERATE(true, false);
  const uint64_t seed = GENERATE(7, 8);
  bool cut_off = true;
  for (int64_t cut = 0; cut_off; ++cut) {
    SimWorldOptions options = WorldOptions(seed, threads);
    options.power_cut_at_op = cut;
    options.lose_all_unsynced = lose_all;
    SimWorld world(options);
    const SimJob job(world, "job", 4, kTwoSaves);
    const absl::Status run = world.Run();
    cut_off = world.power_was_cut();
    INFO("seed " << seed << ", power cut at operation " << cut << ", loses all: " << lose_all << ", " << run << job.Describe());
    REQUIRE(run.ok());
    REQUIRE((cut_off || job.AllOk()));
    world.Reboot();
    CheckRestarts(world, job.Acknowledged(), cut);
  }
}

namespace {

// Lets a new launch restore and save while the old one sleeps, then wakes it.
void CheckSleepers(SimWorld& world, const SimJob& job, const std::vector<SimProcess*>& sleepers, int64_t parity) {
  const SimJob second(world, "relaunched", parity % 2 == 0 ? 2 : 4, {.life = kSecondLife, .saves = {300}});
  absl::Status run = world.Run();
  INFO(run << second.Describe());
  REQUIRE(run.ok());
  REQUIRE(second.AllOk());
  const Found between = CheckedRoot(world);
  for (SimProcess* sleeper : sleepers) world.Resume(*sleeper);
  run = world.Run();
  INFO("awake: " << run << job.Describe());
  REQUIRE(run.ok());
  const Found after = CheckedRoot(world);
  CheckVerdicts(job, kFirstLife, after);
  CheckVerdicts(second, kSecondLife, after);
  // A claim that slept before its own record goes on to be the newest incarnation, and restores and saves on top of what it finds.
  if (after.incarnation == between.incarnation) REQUIRE(after.line == between.line);
  for (const Moment& moment : between.line) REQUIRE(after.Has(moment));
}

}  // namespace

TEST_CASE("A leader that sleeps at any operation while the job is launched anew has no effect afterwards (I4)", "[sim][pause]") {
  env::SimThreads threads;
  const uint64_t seed = GENERATE(7, 8);
  bool slept = true;
  for (int64_t at = 0; slept; ++at) {
    SimWorld world(WorldOptions(seed, threads));
    const SimJob job(world, "job", 4, kTwoSaves);
    world.PauseAtOp(job.process(0), at);
    const absl::Status run = world.Run();
    slept = job.process(0).paused();
    INFO("seed " << seed << ", asleep at the leader's operation " << at << ", " << run << job.Describe());
    REQUIRE(run.ok());
    CheckSleepers(world, job, {&job.process(0)}, at);
  }
}

TEST_CASE("A job that sleeps as a whole at any operation while it is launched anew has no effect afterwards (I4)", "[sim][sleep]") {
  env::SimThreads threads;
  const uint64_t seed = GENERATE(7, 8);
  const bool rolls_back = GENERATE(false, true);
  bool slept = true;
  for (int64_t at = 0; slept; ++at) {
    SimWorld world(WorldOptions(seed, threads));
    if (rolls_back) {
      const SimJob before(world, "before", 2, {.life = kBefore, .saves = {100, 200}});
      REQUIRE(world.Run().ok());
      REQUIRE(before.AllOk());
    }
    const SimJob job(world, "job", 4, rolls_back ? Script{.life = kFirstLife, .restore_step = 100, .saves = {150}} : kTwoSaves);
    const int64_t sleep_at = world.op_count() + at;
    slept = false;
    world.set_on_op([&](const env::SimOp& op) {
      if (op.number != sleep_at) return;
      slept = true;
      for (SimProcess* process : job.processes()) world.Pause(*process);
    });
    const absl::Status run = world.Run();
    world.set_on_op(nullptr);
    INFO("seed " << seed << ", asleep at operation " << at << ", rolls back: " << rolls_back << ", " << run << job.Describe());
    REQUIRE(run.ok());
    CheckSleepers(world, job, job.processes(), at);
  }
}

TEST_CASE("A job that was rolled back is never rolled forward by a crash or a restart (I9)", "[sim][rollback]") {
  env::SimThreads threads;
  const bool power = GENERATE(true, false);
  const uint64_t seed = GENERATE(7, 8);
  bool crashed = true;
  for (int64_t cut = 0; crashed; ++cut) {
    SimWorldOptions options = WorldOptions(seed, threads);
    options.lose_all_unsynced = true;
    SimWorld world(options);
    const SimJob first(world, "job", 2, kTwoSaves);
    REQUIRE(world.Run().ok());
    REQUIRE(first.AllOk());
    const SimJob back(world, "back", 2, {.life = kSecondLife, .restore_step = 100, .saves = {150}});
    const int64_t first_op = world.op_count();
    world.set_on_op([&](const env::SimOp& op) {
      if (op.number != first_op + cut) return;
      if (power)
        world.PowerCut();
      else
        world.Kill(op.process);
    });
    const absl::Status run = world.Run();
    world.set_on_op(nullptr);
    crashed = world.op_count() > first_op + cut;
    INFO("seed " << seed << ", cut at operation " << cut << " of the roll-back, power: " << power << ", " << run << back.Describe());
    REQUIRE(run.ok());
    REQUIRE((crashed || back.AllOk()));
    if (power) world.Reboot();
    const std::vector<Moment> line = CheckedRoot(world).line;
    REQUIRE(!line.empty());
    const std::vector<Moment> old_line{{200, kFirstLife}, {100, kFirstLife}};
    const bool rolled_back = line.back() == Moment{100, kFirstLife} && (line.size() == 1 || line[0] == Moment{150, kSecondLife});
    const bool acknowledged = back.Acknowledged() >= 100;
    REQUIRE((rolled_back || (!acknowledged && line == old_line)));
    if (back.Acknowledged() == 150) REQUIRE(line.size() == 2);
    CheckRestarts(world, line.front().step, cut);
  }
}

TEST_CASE("A step that is saved again is either the old one or the new one after power loss at any operation (I2, I3)", "[sim][again]") {
  env::SimThreads threads;
  const uint64_t seed = GENERATE(7, 8);
  bool crashed = true;
  for (int64_t cut = 0; crashed; ++cut) {
    SimWorldOptions options = WorldOptions(seed, threads);
    options.lose_all_unsynced = true;
    SimWorld world(options);
    const SimJob first(world, "job", 2, kTwoSaves);
    REQUIRE(world.Run().ok());
    REQUIRE(first.AllOk());
    const SimJob again(world, "again", 2, {.life = kSecondLife, .saves = {200}});
    const int64_t cut_at = world.op_count() + cut;
    world.PowerCutAtOp(cut_at);
    const absl::Status run = world.Run();
    crashed = world.power_was_cut();
    INFO("seed " << seed << ", cut at operation " << cut << " of the second launch, " << run << again.Describe());
    REQUIRE(run.ok());
    REQUIRE((crashed || again.AllOk()));
    world.Reboot();
    const std::vector<Moment> line = CheckedRoot(world).line;
    const bool saved_again = line == std::vector<Moment>{{200, kSecondLife}, {100, kFirstLife}};
    const bool acknowledged = std::any_of(again.told().begin(), again.told().end(),
                                          [](const Told& told) { return !told.saves.empty() && told.saves[0].second.ok(); });
    REQUIRE((saved_again || (!acknowledged && line == std::vector<Moment>{{200, kFirstLife}, {100, kFirstLife}})));
    world.PowerCutAtOp(-1);
    const SimJob third = Relaunch(world, 3, {.life = 3});
    REQUIRE(third.told()[0].restored == line.front());
  }
}

}  // namespace lamina
