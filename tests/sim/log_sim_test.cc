// The log on a simulated cluster, before any tensor exists: what was acknowledged survives, what is fenced has no effect, and a restart
// resumes the line. Letters and numbers such as I3 are the invariants of docs/architecture.md.
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "env/sim_env.h"
#include "testing/direct_queue.h"
#include "testing/tiny_save.h"
#include "tier/file_tier.h"
#include "tier/log.h"

namespace lamina {
namespace {

using env::Env;
using env::SimProcess;
using env::SimWorld;
using env::SimWorldOptions;
using format::AttemptId;
using format::LogRecord;
using testing::LineSteps;

const tier::SweepOptions kAtOnce{.reader_lease_ns = 120'000'000'000, .reader_grace_ns = 0};

// A process's view of the root.
struct Root {
  explicit Root(Env& env) : tier(env, "/ckpt/run", queue), log(env, tier) {}

  absl::Status Claim(const tier::ClaimOptions& options) {
    LAMINA_ASSIGN_OR_RETURN(store, log.CreateOrReadStore());
    LAMINA_ASSIGN_OR_RETURN(open, log.Claim(options));
    parent = open.head;
    return absl::OkStatus();
  }
  // A save on top of the last one; its packs are needed too when `base` is given.
  absl::Status Save(int64_t step, const std::vector<AttemptId>& bases = {}) {
    last = AttemptId{step, open.number, attempts++};
    LAMINA_ASSIGN_OR_RETURN(parent, testing::SaveTiny(tier, log, store, last, parent, bases));
    return absl::OkStatus();
  }
  absl::Status SaveAndAbort(int64_t step) {
    const AttemptId attempt{step, open.number, attempts++};
    LAMINA_RETURN_IF_ERROR(testing::WriteAttempt(tier, store, attempt, parent).status());
    LAMINA_RETURN_IF_ERROR(log.Abort(attempt, "disk full").status());
    return log.Sweep(open.number, kAtOnce).status();
  }

  testing::DirectQueue queue;
  tier::FileTier tier;
  tier::Log log;
  format::StoreHeader store;
  LogRecord open;
  uint64_t parent = 0;
  uint32_t attempts = 0;
  AttemptId last;
};

const tier::ClaimOptions kSameRun{.run_id = "run", .takeover = false};
const tier::ClaimOptions kTakeover{.run_id = {}, .takeover = true};

// What a job was told.
struct Told {
  int64_t step = -1;
  std::vector<std::pair<AttemptId, absl::Status>> saves;
};

absl::Status Save(Root& root, int64_t step, Told& told, const std::vector<AttemptId>& bases = {}) {
  const absl::Status status = root.Save(step, bases);
  told.saves.emplace_back(root.last, status);
  if (status.ok()) told.step = step;
  return status;
}

// The usual life of a trainer: two commits, an aborted save between them, a retention that drops the older one's files.
absl::Status Train(Env& env, const tier::ClaimOptions& options, int64_t first_step, Told& told) {
  Root root(env);
  LAMINA_RETURN_IF_ERROR(root.Claim(options));
  LAMINA_RETURN_IF_ERROR(root.log.Sweep(root.open.number, kAtOnce).status());
  LAMINA_RETURN_IF_ERROR(Save(root, first_step, told));
  const AttemptId first = root.last;
  const uint64_t commit = root.parent;
  LAMINA_RETURN_IF_ERROR(root.SaveAndAbort(first_step + 50));
  LAMINA_RETURN_IF_ERROR(Save(root, first_step + 100, told, {first}));
  LAMINA_RETURN_IF_ERROR(root.log.Drop({commit}, "retention", root.open.number));
  return root.log.Sweep(root.open.number, kAtOnce).status();
}

std::set<std::string> AttemptsOnDisk(const SimWorld& world) {
  std::set<std::string> attempts;
  for (const auto& [path, bytes] : world.Files()) {
    const size_t at = path.find("/steps/");
    if (at != std::string::npos) attempts.insert(path.substr(at + 1, path.rfind('/') - at - 1));
  }
  return attempts;
}

// After a crash: what was acknowledged is there, every step reads back whole, and a restart goes on from it and tidies up.
void CheckRestart(SimWorld& world, int64_t acknowledged) {
  world.ClearFaults();
  Root root(world.NewProcess("restarted"));
  absl::Status status = root.Claim(kSameRun);
  INFO(status);
  REQUIRE(status.ok());
  const LogRecord found = root.open;
  status = testing::CheckSteps(root.tier, found);
  if (status.ok()) status = root.log.Sweep(root.open.number, kAtOnce).status();
  if (status.ok()) status = root.Save(1000);
  if (status.ok()) status = testing::CheckSteps(root.tier, root.log.Newest().value());
  INFO(status);
  REQUIRE(status.ok());
  const std::vector<int64_t> line = LineSteps(found);
  REQUIRE((line.empty() ? -1 : line.front()) >= acknowledged);
  std::set<std::string> expected{"steps/000000001000/" + std::to_string(found.number) + "-0"};
  for (const format::StepEntry& step : found.steps) expected.insert(format::AttemptPath(step.attempt));
  // Of a dropped step only what others need is left, and that may be nothing.
  for (const std::string& attempt : AttemptsOnDisk(world)) REQUIRE(expected.contains(attempt));
}

}  // namespace

TEST_CASE("Power loss at any operation keeps what was acknowledged (I1, I2, I3)", "[sim]") {
  env::SimThreads threads;
  for (const auto& [seed, lose_all] : {std::pair<uint64_t, bool>{7, true}, {1, false}, {2, false}, {3, false}}) {
    for (int64_t cut = 0, op_count = 1; cut <= op_count; ++cut) {
      SimWorldOptions options;
      options.seed = seed;
      options.power_cut_at_op = cut;
      options.lose_all_unsynced = lose_all;
      options.threads = &threads;
      SimWorld world(options);
      Told told;
      absl::Status status;
      SimProcess& trainer = world.NewProcess("trainer");
      REQUIRE(world.Run(trainer, [&](Env& env) { status = Train(env, kSameRun, 100, told); }).ok());
      op_count = world.op_count();
      INFO("seed " << seed << ", cut " << cut << " of " << op_count << ", loses all: " << lose_all << ", " << status);
      REQUIRE(status.ok());
      world.Reboot();
      CheckRestart(world, told.step);
    }
  }
}

TEST_CASE("Death of the trainer at any operation keeps what was acknowledged (I2, I3)", "[sim]") {
  env::SimThreads threads;
  for (int64_t cut = 0, op_count = 1; cut <= op_count; ++cut) {
    SimWorldOptions options;
    options.threads = &threads;
    SimWorld world(options);
    Told told;
    SimProcess& trainer = world.NewProcess("trainer");
    world.KillAtOp(trainer, cut);
    REQUIRE(world.Run(trainer, [&](Env& env) { Train(env, kSameRun, 100, told).IgnoreError(); }).ok());
    op_count = trainer.op_count();
    INFO("cut " << cut);
    CheckRestart(world, told.step);
  }
}

// Whatever a paused trainer was about to do, once it goes on it neither commits nor removes anything, and what it is told agrees with the
// log.
TEST_CASE("An older incarnation paused at any operation and resumed has no effect (I4)", "[sim]") {
  env::SimThreads threads;
  for (int64_t at = 0, op_count = 1; at <= op_count; ++at) {
    SimWorldOptions options;
    options.threads = &threads;
    SimWorld world(options);
    SimProcess& old_one = world.NewProcess("old", "host0");
    SimProcess& new_one = world.NewProcess("new", "host1");
    Told told_old;
    Told told_new;
    absl::Status status_old;
    absl::Status status_new;
    world.PauseAtOp(old_one, at);
    world.Start(old_one, [&](Env& env) { status_old = Train(env, kSameRun, 100, told_old); });
    REQUIRE(world.Run().ok());
    const bool paused = old_one.paused();
    std::optional<Root> root;
    REQUIRE(world
                .Run(new_one,
                     [&](Env& env) {
                       root.emplace(env);
                       status_new = root->Claim(kTakeover);
                       if (status_new.ok()) status_new = Save(*root, 1000, told_new);
                       if (status_new.ok()) status_new = root->log.Sweep(root->open.number, kAtOnce).status();
                       if (status_new.ok()) status_new = Save(*root, 1100, told_new, {told_new.saves[0].first});
                     })
                .ok());
    INFO("paused at " << at << ": " << status_old << ", the new one: " << status_new);
    REQUIRE(status_new.ok());
    if (paused) world.Resume(old_one);
    REQUIRE(world.Run().ok());
    op_count = old_one.op_count();
    const LogRecord newest = root->log.Newest().value();
    // A claim that was paused before its own record goes on to open the newest incarnation, unless it finds the lease alive.
    const bool old_is_newest = newest.incarnation > root->open.number;
    if (!old_is_newest) REQUIRE(newest.number == root->parent);  // the older one has published nothing since
    REQUIRE(testing::CheckSteps(root->tier, newest).ok());
    for (const auto& [attempt, status] : told_old.saves) {
      INFO(format::AttemptPath(attempt) << ": " << status);
      const tier::Verdict verdict = root->log.VerdictOf(attempt).value();
      REQUIRE(status.ok() == (verdict == tier::Verdict::kCommitted));
    }
    REQUIRE(root->log.VerdictOf(root->last).value() == tier::Verdict::kCommitted);
  }
}

TEST_CASE("A roll-back that was acknowledged is never undone by a crash or a restart (I9)", "[sim]") {
  env::SimThreads threads;
  for (const bool power : {true, false}) {
    for (int64_t cut = 0, op_count = 1; cut <= op_count; ++cut) {
      SimWorldOptions options;
      options.threads = &threads;
      options.lose_all_unsynced = true;
      SimWorld world(options);
      REQUIRE(world
                  .Run(world.NewProcess("first"),
                       [&](Env& env) {
                         Root root(env);
                         absl::Status status = root.Claim(kSameRun);
                         for (const int64_t step : {100, 200, 300}) {
                           if (status.ok()) status = root.Save(step);
                         }
                         REQUIRE(status.ok());
                       })
                  .ok());
      int64_t acknowledged = 0;  // step of the last acknowledged commit or roll-back
      SimProcess& second = world.NewProcess("second");
      if (power) {
        world.set_on_op([&](const env::SimOp& op) {
          if (op.process.name() == "second" && op.number_in_process == cut) world.PowerCut();
        });
      } else {
        world.KillAtOp(second, cut);
      }
      const auto roll_back = [&](Env& env) -> absl::Status {
        Root root(env);
        LAMINA_RETURN_IF_ERROR(root.Claim(kSameRun));
        const std::vector<format::StepEntry> line = tier::LineOf(root.open);
        root.parent = line.back().commit;
        LAMINA_RETURN_IF_ERROR(root.log.Rewind(root.open.number, root.parent, "restored step 100"));
        acknowledged = 100;
        LAMINA_RETURN_IF_ERROR(root.Save(150));
        acknowledged = 150;
        return absl::OkStatus();
      };
      absl::Status status;
      REQUIRE(world.Run(second, [&](Env& env) { status = roll_back(env); }).ok());
      op_count = second.op_count();
      INFO("cut " << cut << ", " << status << ", power " << power);
      REQUIRE(status.ok());
      if (power) world.Reboot();
      world.set_on_op(nullptr);
      Root root(world.NewProcess("looker"));
      const std::vector<int64_t> line = LineSteps(root.log.Newest().value());
      if (acknowledged == 0) {
        REQUIRE((line == std::vector<int64_t>{300, 200, 100} || line == std::vector<int64_t>{100}));
      } else {
        REQUIRE(line.back() == 100);
        REQUIRE((line.front() == acknowledged || line.front() == 150));
        REQUIRE(line.size() == (line.front() == 150 ? 2 : 1));
      }
      CheckRestart(world, line.front());
    }
  }
}

TEST_CASE("A verdict that another rank was given outlives a power cut (I3)", "[sim]") {
  env::SimThreads threads;
  bool was_committed = false;
  for (int64_t at = 0, op_count = 1; at < op_count; ++at) {
    SimWorldOptions options;
    options.threads = &threads;
    options.lose_all_unsynced = true;
    SimWorld world(options);
    SimProcess& leader = world.NewProcess("leader");
    world.PauseAtOp(leader, at);
    world.Start(leader, [&](Env& env) {
      Root root(env);
      if (root.Claim(kSameRun).ok()) root.Save(100).IgnoreError();
    });
    REQUIRE(world.Run().ok());
    INFO("paused at " << at);
    const AttemptId attempt{100, 1, 0};
    Root rank(world.NewProcess("rank", "host1"));
    const absl::StatusOr<tier::Verdict> told = rank.log.VerdictOf(attempt);
    const bool committed = told.ok() && *told == tier::Verdict::kCommitted;
    was_committed = was_committed || committed;
    if (committed) {
      world.PowerCut();
    } else {
      world.Resume(leader);
    }
    REQUIRE(world.Run().ok());
    op_count = std::max(op_count, leader.op_count() + 1);
    if (!committed) continue;
    world.Reboot();
    Root later(world.NewProcess("later"));
    REQUIRE(later.log.VerdictOf(attempt).value() == tier::Verdict::kCommitted);
  }
  REQUIRE(was_committed);
}

TEST_CASE("Of two claimants at once one trains and the other is told who does", "[sim]") {
  env::SimThreads threads;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SimWorldOptions options;
    options.seed = seed;
    options.threads = &threads;
    options.latency_ns_max = 3'000'000;
    options.switch_probability = 0.5;
    SimWorld world(options);
    std::map<std::string, absl::Status> outcomes;
    const auto claim = [&](Env& env, const std::string& name) {
      Root root(env);
      outcomes[name] = root.Claim({.run_id = {}, .takeover = false});
      if (!outcomes[name].ok()) return;
      for (int i = 0; i < 12; ++i) {
        env.SleepNs(10'000'000'000);
        const absl::Status renewed = root.log.RenewLease(root.open.number);
        REQUIRE(renewed.ok());
      }
      const absl::Status saved = root.Save(100);
      REQUIRE(saved.ok());
    };
    SimProcess& one = world.NewProcess("one", "host1");
    SimProcess& two = world.NewProcess("two", "host2");
    world.Start(one, [&](Env& env) { claim(env, "one"); });
    world.Start(two, [&](Env& env) { claim(env, "two"); });
    REQUIRE(world.Run().ok());
    INFO("seed " << seed << ": " << outcomes["one"] << " / " << outcomes["two"]);
    REQUIRE(outcomes["one"].ok() != outcomes["two"].ok());
    const bool one_won = outcomes["one"].ok();
    const absl::Status& refused = outcomes[one_won ? "two" : "one"];
    REQUIRE(absl::IsFailedPrecondition(refused));
    REQUIRE(refused.message().find(one_won ? "host1" : "host2") != absl::string_view::npos);
    Root root(world.NewProcess("looker"));
    REQUIRE(root.log.Newest()->head == 2);
  }
}

TEST_CASE("A former trainer that is gone is taken over without asking", "[sim]") {
  const auto claim_after = [](const std::function<void(SimWorld&, SimProcess&)>& end, const std::string& host,
                              const tier::ClaimOptions& options) {
    SimWorld world(SimWorldOptions{});
    SimProcess& former = world.NewProcess("former", "host1");
    world.Start(former, [&](Env& env) {
      Root root(env);
      const absl::Status claimed = root.Claim({.run_id = "job7", .takeover = false});
      REQUIRE(claimed.ok());
      for (;;) {
        env.SleepNs(10'000'000'000);
        const absl::Status renewed = root.log.RenewLease(root.open.number);
        REQUIRE(renewed.ok());
      }
    });
    absl::Status status;
    int64_t waited_ns = -1;
    world.Start(world.NewProcess("next", host), [&](Env& env) {
      env.SleepNs(25'000'000'000);
      end(world, former);
      const int64_t begin_ns = env.MonotonicNs();
      Root root(env);
      status = root.Claim(options);
      waited_ns = env.MonotonicNs() - begin_ns;
      world.Kill(former);
    });
    REQUIRE(world.Run().ok());
    return std::pair(status, waited_ns);
  };
  const auto kill = [](SimWorld& world, SimProcess& former) { world.Kill(former); };
  const auto pause = [](SimWorld& world, SimProcess& former) { world.Pause(former); };
  const auto leave = [](SimWorld&, SimProcess&) {};
  constexpr int64_t kSecond = 1'000'000'000;
  SECTION("its process is dead on this host") {
    const auto [status, waited_ns] = claim_after(kill, "host1", {});
    REQUIRE(status.ok());
    REQUIRE(waited_ns < kSecond);
  }
  SECTION("its run is ours") {
    const auto [status, waited_ns] = claim_after(leave, "host2", {.run_id = "job7", .takeover = false});
    REQUIRE(status.ok());
    REQUIRE(waited_ns < kSecond);
  }
  SECTION("its lease runs out, seen from another host") {
    const auto [status, waited_ns] = claim_after(kill, "host2", {});
    REQUIRE(status.ok());
    REQUIRE(waited_ns > 50 * kSecond);
    REQUIRE(waited_ns < 61 * kSecond);
  }
  SECTION("it sleeps longer than its lease") {
    const auto [status, waited_ns] = claim_after(pause, "host1", {});
    REQUIRE(status.ok());
    REQUIRE(waited_ns > 50 * kSecond);
  }
  SECTION("it lives: no") {
    const auto [status, waited_ns] = claim_after(leave, "host2", {.run_id = "job8", .takeover = false});
    REQUIRE(absl::IsFailedPrecondition(status));
    REQUIRE(status.message().find("host1") != absl::string_view::npos);
    REQUIRE(waited_ns < 12 * kSecond);
  }
  SECTION("it lives, and is taken over on request") {
    const auto [status, waited_ns] = claim_after(leave, "host2", kTakeover);
    REQUIRE(status.ok());
    REQUIRE(waited_ns < kSecond);
  }
}

TEST_CASE("Answers that a network file system garbles do not change what is committed", "[sim]") {
  env::SimThreads threads;
  for (const int error_number : {EEXIST, EIO}) {
    for (const bool takes_effect : {true, false}) {
      if (error_number == EEXIST && !takes_effect) continue;  // a store that says so of a name that is free is none
      for (int64_t at = 0; at < 8; ++at) {
        SimWorldOptions options;
        options.threads = &threads;
        options.stale_ns = 5'000'000'000;
        options.stale_handle_each_opens = 7;
        SimWorld world(options);
        env::SimFault fault;
        fault.what = "link";
        fault.first = at;
        fault.error_number = error_number;
        fault.takes_effect = takes_effect;
        world.AddFault(fault);
        Told told;
        absl::Status status;
        SimProcess& trainer = world.NewProcess("trainer");
        REQUIRE(world.Run(trainer, [&](Env& env) { status = Train(env, kSameRun, 100, told); }).ok());
        INFO("link " << at << ", errno " << error_number << ", took effect " << takes_effect << ": " << status);
        REQUIRE(status.ok());
        world.ClearFaults();
        SimProcess& looker = world.NewProcess("looker");
        looker.SleepNs(options.stale_ns);
        Root root(looker);
        const LogRecord newest = root.log.Newest().value();
        REQUIRE(newest.number == 5);  // open, commit, abort, commit, drop: none twice
        REQUIRE(LineSteps(newest) == std::vector<int64_t>{200});
        REQUIRE(testing::CheckSteps(root.tier, newest).ok());
      }
    }
  }
}

TEST_CASE("A root that the former trainer made a moment ago and that does not show yet is waited for", "[sim]") {
  const int64_t delay_ns = GENERATE(0, 1'000'000'000);  // of the former's operations, so that its directories show one after another
  for (int64_t killed_at = 1; killed_at <= 30; ++killed_at) {
    SimWorldOptions options;
    options.stale_ns = 10'000'000'000;
    SimWorld world(options);
    SimProcess& former = world.NewProcess("former");
    if (delay_ns > 0) world.AddFault({.process = "former", .count = 100, .delay_ns = delay_ns});
    world.KillAtOp(former, killed_at);
    Told told;
    absl::Status status = absl::UnknownError("did not end");
    REQUIRE(world.Run(former, [&](Env& env) { Train(env, kSameRun, 100, told).IgnoreError(); }).ok());
    REQUIRE(world.Run(world.NewProcess("next"), [&](Env& env) { status = Train(env, kSameRun, 1000, told); }).ok());
    INFO("killed at " << killed_at << ": " << status);
    REQUIRE(status.ok());
  }
}

TEST_CASE("An error at any file operation fails the save or not, but never what was acknowledged (I2)", "[sim]") {
  env::SimThreads threads;
  for (const int error_number : {EIO, ENOSPC}) {
    for (int64_t at = 0, op_count = 1; at <= op_count; ++at) {
      SimWorldOptions options;
      options.threads = &threads;
      options.lose_all_unsynced = true;
      SimWorld world(options);
      env::SimFault fault;
      fault.first = at;
      fault.error_number = error_number;
      world.AddFault(fault);
      Told told;
      SimProcess& trainer = world.NewProcess("trainer");
      REQUIRE(world.Run(trainer, [&](Env& env) { Train(env, kSameRun, 100, told).IgnoreError(); }).ok());
      op_count = world.op_count();
      world.Reboot();
      INFO("errno " << error_number << " at " << at);
      CheckRestart(world, told.step);
    }
  }
}

TEST_CASE("The same seed runs the log the same way", "[sim]") {
  const auto run = [](uint64_t seed) {
    SimWorldOptions options;
    options.seed = seed;
    options.latency_ns_max = 1'000'000;
    options.switch_probability = 0.5;
    SimWorld world(options);
    Told told;
    for (const std::string name : {"one", "two"}) {
      world.Start(world.NewProcess(name), [&](Env& env) { Train(env, kTakeover, 100, told).IgnoreError(); });
    }
    REQUIRE(world.Run().ok());
    return world.trace_hash();
  };
  REQUIRE(run(5) == run(5));
  REQUIRE(run(5) != run(6));
}

}  // namespace lamina
