#include "env/sim_env.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "env/sync.h"

namespace lamina::env {
namespace {

constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;

absl::Status Put(Env& env, const std::string& path, std::string_view text) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env.files().CreateNew(path));
  LAMINA_RETURN_IF_ERROR(file->WriteAt(0, base::AsBytes(text)));
  return file->Sync();
}

// Two processes with two threads each that write, wait for each other and sleep.
void MixedWork(SimWorld& world) {
  for (const std::string name : {"a", "b"}) {
    world.Start(world.NewProcess(name), [name](Env& env) {
      Mutex mutex(env);
      CondVar changed(env);
      int done = 0;
      auto work = [&](int ordinal) {
        const absl::Status status = Put(env, "/ckpt/" + name + std::to_string(ordinal) + RandomHex(env, 4), name);
        CHECK(status == absl::OkStatus());
        env.SleepNs(static_cast<int64_t>(env.RandomU64() % 1000));
        MutexLock lock(mutex);
        ++done;
        changed.NotifyAll();
      };
      auto one = env.Start("one", [&] { work(1); });
      auto two = env.Start("two", [&] { work(2); });
      MutexLock lock(mutex);
      while (done < 2) changed.Wait(mutex);
    });
  }
}

uint64_t HashOfMixedWork(uint64_t seed) {
  SimWorld world({.seed = seed});
  MixedWork(world);
  REQUIRE(world.Run() == absl::OkStatus());
  REQUIRE(world.Files().size() == 4);
  return world.trace_hash();
}

TEST_CASE("One seed gives one execution, another seed another", "[sim]") {
  REQUIRE(HashOfMixedWork(1) == HashOfMixedWork(1));
  REQUIRE(HashOfMixedWork(77) == HashOfMixedWork(77));
  REQUIRE(HashOfMixedWork(1) != HashOfMixedWork(2));
}

TEST_CASE("Hours of waiting pass at once", "[sim]") {
  SimWorld world({});
  REQUIRE(world.Run(world.NewProcess("p"), [](Env& env) {
    Mutex mutex(env);
    CondVar never(env);
    const int64_t begin_ns = env.MonotonicNs();
    const int64_t wall_begin_ns = env.WallNs();
    MutexLock lock(mutex);
    while (never.WaitUntil(mutex, begin_ns + 5 * kHourNs)) {
    }
    env.SleepNs(kHourNs);
    CHECK(env.MonotonicNs() - begin_ns >= 6 * kHourNs);
    CHECK(env.MonotonicNs() - begin_ns < 6 * kHourNs + kHourNs / 60);
    CHECK(env.WallNs() - wall_begin_ns >= 6 * kHourNs);
  }) == absl::OkStatus());
}

TEST_CASE("A loop over the clock ends, and lets others run", "[sim]") {
  SimWorld world({});
  bool set = false;
  REQUIRE(world.Run(world.NewProcess("p"), [&](Env& env) {
    auto task = env.Start("setter", [&] { set = true; });
    const int64_t begin_ns = env.MonotonicNs();
    while (!set || env.MonotonicNs() < begin_ns + 100'000) {
      env.WallNs();
    }
  }) == absl::OkStatus());
  REQUIRE(set);
}

TEST_CASE("Sleepers wake in the order of their times", "[sim]") {
  SimWorld world({.seed = 3});
  std::vector<int> order;
  REQUIRE(world.Run(world.NewProcess("p"), [&](Env& env) {
    std::vector<std::unique_ptr<Task>> tasks;
    for (const int seconds : {3, 1, 2}) {
      tasks.push_back(env.Start("sleeper", [&order, &env, seconds] {
        env.SleepNs(int64_t{seconds} * 1'000'000'000);
        order.push_back(seconds);
      }));
    }
  }) == absl::OkStatus());
  REQUIRE(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("A lock keeps others out at every switch", "[sim]") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimWorld world({.seed = seed, .switch_probability = 0.9});
    int inside = 0;
    REQUIRE(world.Run(world.NewProcess("p"), [&](Env& env) {
      Mutex mutex(env);
      std::vector<std::unique_ptr<Task>> tasks;
      for (int i = 0; i < 4; ++i) {
        tasks.push_back(env.Start("t", [&] {
          for (int round = 0; round < 5; ++round) {
            MutexLock lock(mutex);
            CHECK(++inside == 1);
            env.Operation("inside");
            --inside;
          }
        }));
      }
    }) == absl::OkStatus());
    REQUIRE(world.op_count() == 20);
  }
}

TEST_CASE("A deadlock is told with who waits for what, and everything ends", "[sim]") {
  SimWorld world({});
  SimProcess& process = world.NewProcess("trainer");
  const absl::Status status = world.Run(process, [](Env& env) {
    Mutex mutex(env);
    CondVar never(env);
    auto task = env.Start("writer", [&] {
      MutexLock lock(mutex);
      while (true) never.Wait(mutex);
    });
    task->Join();
  });
  REQUIRE(status.code() == absl::StatusCode::kInternal);
  REQUIRE_THAT(std::string(status.message()), Catch::Contains("deadlock") &&
                                                  Catch::Contains("'writer' of 'trainer' waits to be notified") &&
                                                  Catch::Contains("'main' of 'trainer' waits for the end of 'writer'"));
  REQUIRE(process.dead());
}

TEST_CASE("A run without end is ended and told", "[sim]") {
  SimWorld world({.step_count_max = 1000});
  const absl::Status status = world.Run(world.NewProcess("p"), [](Env& env) {
    for (;;) env.Operation("poll");
  });
  REQUIRE(status.code() == absl::StatusCode::kInternal);
  REQUIRE_THAT(std::string(status.message()), Catch::Contains("no end"));
}

TEST_CASE("The test's own thread may call and wait", "[sim]") {
  SimWorld world({});
  SimProcess& env = world.NewProcess("p");
  bool ran = false;
  env.Start("task",
            [&] {
              env.SleepNs(kHourNs);
              ran = true;
            })
      ->Join();
  REQUIRE(ran);
  REQUIRE(Put(env, "/ckpt/a", "text").ok());
  REQUIRE(world.Files().at("/ckpt/a") == "text");
}

TEST_CASE("What a body throws comes out of Run", "[sim]") {
  SimWorld world({});
  world.Start(world.NewProcess("other"), [](Env& env) { env.SleepNs(kHourNs); });
  world.Start(world.NewProcess("p"), [](Env&) { throw std::runtime_error("from the body"); });
  REQUIRE_THROWS_WITH(world.Run().IgnoreError(), "from the body");
}

TEST_CASE("Liveness follows the simulated process", "[sim]") {
  SimWorld world({});
  SimProcess& watcher = world.NewProcess("watcher", "here");
  SimProcess& process = world.NewProcess("p", "here");
  REQUIRE(watcher.LivenessOf(process.Self()) == Liveness::kAlive);
  world.Pause(process);
  REQUIRE(watcher.LivenessOf(process.Self()) == Liveness::kAlive);
  world.Kill(process);
  REQUIRE(watcher.LivenessOf(process.Self()) == Liveness::kDead);
  SimProcess& ended = world.NewProcess("ended", "here");
  REQUIRE(world.Run(ended, [](Env&) {}) == absl::OkStatus());
  REQUIRE(watcher.LivenessOf(ended.Self()) == Liveness::kDead);
  REQUIRE(watcher.LivenessOf(world.NewProcess("q", "there").Self()) == Liveness::kUnknown);
  REQUIRE(watcher.LivenessOf(world.NewProcess("q", "here", "container").Self()) == Liveness::kUnknown);
  world.Reboot();
  SimProcess& later = world.NewProcess("watcher", "here");
  REQUIRE(later.LivenessOf(ended.Self()) == Liveness::kUnknown);
}

TEST_CASE("Thousands of worlds share a few threads", "[sim]") {
  SimThreads threads;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SimWorld world({.seed = seed, .power_cut_at_op = static_cast<int64_t>(seed % 30), .threads = &threads});
    MixedWork(world);
    REQUIRE(world.Run() == absl::OkStatus());
  }
  REQUIRE(threads.thread_count() == 6);
}

TEST_CASE("Faults hit the operations that they name", "[sim]") {
  SimWorld world({});
  SimProcess& process = world.NewProcess("p");
  world.AddFault({.what = "create", .path = "bad", .first = 1, .count = 2, .error_number = ENOSPC});
  world.AddFault({.what = "link", .error_number = EEXIST, .takes_effect = true});
  world.AddFault({.what = "sync", .process = "somebody else", .count = 100, .error_number = EIO});
  REQUIRE(world.Run(process, [](Env& env) {
    CHECK(env.files().CreateNew("/ckpt/bad0").ok());
    CHECK(base::ErrnoOf(env.files().CreateNew("/ckpt/bad1").status()) == ENOSPC);
    CHECK(Put(env, "/ckpt/good", "good").ok());
    CHECK(base::ErrnoOf(env.files().CreateNew("/ckpt/bad2").status()) == ENOSPC);
    CHECK(env.files().CreateNew("/ckpt/bad3").ok());
    CHECK(absl::IsAlreadyExists(env.files().Link("/ckpt/good", "/ckpt/link")));
  }) == absl::OkStatus());
  REQUIRE(world.Files().at("/ckpt/link") == "good");
  REQUIRE(world.Files().count("/ckpt/bad1") == 0);
}

TEST_CASE("Every so many opens one meets a stale handle", "[sim]") {
  SimWorld world({.stale_handle_each_opens = 2});
  REQUIRE(world.Run(world.NewProcess("p"), [](Env& env) {
    CHECK(Put(env, "/ckpt/a", "a").ok());
    CHECK(env.files().OpenForRead("/ckpt/a").ok());
    CHECK(base::ErrnoOf(env.files().OpenForRead("/ckpt/a").status()) == ESTALE);
    CHECK(env.files().OpenForRead("/ckpt/a").ok());
  }) == absl::OkStatus());
}

TEST_CASE("Latency is bounded and moves only the clock", "[sim]") {
  SimWorld world({.latency_ns_max = kHourNs});
  REQUIRE(world.Run(world.NewProcess("p"), [](Env& env) { CHECK(Put(env, "/ckpt/a", "a").ok()); }) == absl::OkStatus());
  REQUIRE(world.now_ns() > 1'000'000);
  REQUIRE(world.now_ns() < 3 * kHourNs + 1'000'000);
  REQUIRE(world.Files().at("/ckpt/a") == "a");
}

}  // namespace
}  // namespace lamina::env
