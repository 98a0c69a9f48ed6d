// Death, pause and resume of simulated processes.
#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "env/sim_env.h"
#include "env/sync.h"

namespace lamina::env {
namespace {

// Counts its destruction, and calls of Env in it, as destructors of the dead may do.
class Witness {
 public:
  Witness(Env& env, int& destroyed) : env_(env), mutex_(env), changed_(env), destroyed_(destroyed) {}
  ~Witness() {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
    if (std::uncaught_exceptions() > 0) env_.files().Touch("/ckpt/from-the-dead").IgnoreError();  // must do nothing
    ++destroyed_;
  }

 private:
  Env& env_;
  Mutex mutex_;
  CondVar changed_;
  int& destroyed_;
};

// A small program with two threads: what it acknowledged, and how many of its witnesses were made and destroyed.
struct Program {
  int made = 0;
  int destroyed = 0;
  bool finished = false;

  void Run(Env& env) {
    const Witness outer(env, destroyed);
    ++made;
    Mutex mutex(env);
    CondVar changed(env);
    bool ready = false;
    auto task = env.Start("writer", [&] {
      ++made;
      const Witness inner(env, destroyed);
      auto file = env.files().CreateNew("/ckpt/file");
      REQUIRE(file.ok());
      const absl::Status written = (*file)->WriteAt(0, base::AsBytes("abcdef"));
      const absl::Status synced = (*file)->Sync();
      REQUIRE((written.ok() && synced.ok()));
      MutexLock lock(mutex);
      ready = true;
      changed.NotifyAll();
    });
    {
      MutexLock lock(mutex);
      while (!ready) changed.Wait(mutex);
    }
    env.SleepNs(1000);
    finished = env.files().SyncDirectory("/ckpt").ok();
  }
};

TEST_CASE("A process killed at any operation unwinds, and does nothing afterwards", "[sim]") {
  SimThreads threads;
  int64_t op_count = 1;
  for (int64_t op = 0; op <= op_count; ++op) {
    SimWorld world({.seed = static_cast<uint64_t>(op), .threads = &threads});
    SimProcess& process = world.NewProcess("p");
    SimProcess& other = world.NewProcess("other");
    world.KillAtOp(process, op);
    Program program;
    bool other_finished = false;
    world.Start(process, [&](Env& env) { program.Run(env); });
    world.Start(other, [&](Env& env) {
      env.SleepNs(1'000'000);
      other_finished = true;
    });
    REQUIRE(world.Run() == absl::OkStatus());
    REQUIRE(other_finished);
    REQUIRE(program.destroyed == program.made);
    REQUIRE(program.finished == (op == op_count));
    REQUIRE(process.dead() == (op < op_count));
    REQUIRE(world.Files().count("/ckpt/from-the-dead") == 0);
    if (op == 0) {
      SimWorld whole({.seed = 0, .threads = &threads});
      SimProcess& counted = whole.NewProcess("p");
      REQUIRE(whole.Run(counted, [](Env& env) { Program().Run(env); }) == absl::OkStatus());
      op_count = counted.op_count();
      REQUIRE(op_count == 5);
    }
  }
}

TEST_CASE("A write that death interrupts leaves a prefix in the page cache", "[sim]") {
  int whole = 0;
  int torn = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SimWorld world({.seed = seed});
    SimProcess& process = world.NewProcess("p");
    world.KillAtOp(process, 1);
    REQUIRE(world.Run(process, [](Env& env) {
      auto file = env.files().CreateNew("/ckpt/a");
      (*file)->WriteAt(0, base::AsBytes("abcdef")).IgnoreError();
      FAIL("the dead go on");
    }) == absl::OkStatus());
    const std::string found = world.Files().at("/ckpt/a");
    REQUIRE(std::string("abcdef").starts_with(found));
    whole += found == "abcdef" ? 1 : 0;
    torn += !found.empty() && found != "abcdef" ? 1 : 0;
  }
  REQUIRE(whole > 0);
  REQUIRE(torn > 0);
}

TEST_CASE("Death ends every kind of wait", "[sim]") {
  SimWorld world({});
  SimProcess& victim = world.NewProcess("victim");
  int destroyed = 0;
  world.Start(victim, [&](Env& env) {
    const Witness witness(env, destroyed);
    Mutex mutex(env);
    CondVar never(env);
    auto holder = env.Start("holder", [&] {
      const Witness inner(env, destroyed);
      MutexLock lock(mutex);
      env.SleepNs(int64_t{1} << 60);
    });
    auto waiter = env.Start("waiter", [&] {
      const Witness inner(env, destroyed);
      Mutex own(env);
      MutexLock lock(own);
      while (true) never.Wait(own);
    });
    auto locker = env.Start("locker", [&] {
      const Witness inner(env, destroyed);
      env.SleepNs(1000);
      MutexLock lock(mutex);
    });
    holder->Join();
  });
  world.Start(world.NewProcess("killer"), [&](Env& env) {
    env.SleepNs(1'000'000'000);
    world.Kill(victim);
  });
  REQUIRE(world.Run() == absl::OkStatus());
  REQUIRE(destroyed == 4);
  REQUIRE(world.now_ns() < 2'000'000'000);
}

TEST_CASE("A paused process stops before the effect and goes on after it is resumed", "[sim]") {
  for (int64_t op = 0; op < 5; ++op) {
    SimWorld world({.seed = 5});
    SimProcess& process = world.NewProcess("p");
    world.PauseAtOp(process, op);
    Program program;
    world.Start(process, [&](Env& env) { program.Run(env); });
    REQUIRE(world.Run() == absl::OkStatus());
    REQUIRE_FALSE(program.finished);
    REQUIRE(process.op_count() == op + 1);
    REQUIRE(world.Files().size() == (op == 0 ? 0 : 1));
    if (op == 1) REQUIRE(world.Files().at("/ckpt/file").empty());
    if (op == 2) REQUIRE(world.Files().at("/ckpt/file") == "abcdef");
    world.Resume(process);
    REQUIRE(world.Run() == absl::OkStatus());
    REQUIRE(program.finished);
  }
}

TEST_CASE("Others go on while a process is paused, and time with them", "[sim]") {
  SimWorld world({});
  SimProcess& sleeper = world.NewProcess("sleeper");
  int64_t slept_ns = 0;
  world.Start(sleeper, [&](Env& env) {
    const int64_t begin_ns = env.MonotonicNs();
    env.SleepNs(1000);
    slept_ns = env.MonotonicNs() - begin_ns;
  });
  world.PauseAtOp(sleeper, 0);
  world.Start(world.NewProcess("other"), [&](Env& env) {
    env.SleepNs(1'000'000'000);
    CHECK(sleeper.paused());
    world.Resume(sleeper);
  });
  REQUIRE(world.Run() == absl::OkStatus());
  REQUIRE(slept_ns >= 1'000'000'000);
}

TEST_CASE("A paused process that is killed unwinds", "[sim]") {
  SimWorld world({});
  SimProcess& process = world.NewProcess("p");
  world.PauseAtOp(process, 2);
  Program program;
  world.Start(process, [&](Env& env) { program.Run(env); });
  REQUIRE(world.Run() == absl::OkStatus());
  world.Kill(process);
  REQUIRE(world.Run() == absl::OkStatus());
  REQUIRE(program.destroyed == program.made);
}

TEST_CASE("A world that ends early unwinds what was left", "[sim]") {
  Program program;
  {
    SimWorld world({});
    SimProcess& process = world.NewProcess("p");
    world.PauseAtOp(process, 3);
    world.Start(process, [&](Env& env) { program.Run(env); });
    REQUIRE(world.Run() == absl::OkStatus());
  }
  REQUIRE_FALSE(program.finished);
  REQUIRE(program.destroyed == program.made);
}

TEST_CASE("A hook sees each operation and may act", "[sim]") {
  SimWorld world({});
  SimProcess& process = world.NewProcess("p");
  std::vector<std::string> seen;
  world.set_on_op([&](const SimOp& op) {
    seen.push_back(std::string(op.what) + " " + std::string(op.path));
    if (op.what == "sync") world.Kill(op.process);
  });
  Program program;
  REQUIRE(world.Run(process, [&](Env& env) { program.Run(env); }) == absl::OkStatus());
  REQUIRE(seen == std::vector<std::string>{"create /ckpt/file", "write /ckpt/file", "sync /ckpt/file"});
  REQUIRE(process.dead());
}

TEST_CASE("The death of a host kills its processes alone and may take what they had not synced", "[sim]") {
  SimWorld world({.lose_all_unsynced = true});
  auto write = [](const std::string& path) {
    return [path](Env& env) {
      auto file = env.files().CreateNew(path);
      CHECK((*file)->WriteAt(0, base::AsBytes("synced")).ok());
      CHECK((*file)->Sync().ok());
      CHECK((*file)->WriteAt(6, base::AsBytes(" and not")).ok());
    };
  };
  SimProcess& one = world.NewProcess("one", "host1");
  SimProcess& two = world.NewProcess("two", "host2");
  world.Start(one, write("/ckpt/one"));
  world.Start(two, write("/ckpt/two"));
  REQUIRE(world.Run() == absl::OkStatus());
  world.KillHost("host1");
  REQUIRE(one.dead());
  REQUIRE_FALSE(two.dead());
  REQUIRE(world.Files().at("/ckpt/one") == "synced");
  REQUIRE(world.Files().at("/ckpt/two") == "synced and not");
  REQUIRE(world.NewProcess("one", "host1").Self().boot_id != one.Self().boot_id);
}

}  // namespace
}  // namespace lamina::env
