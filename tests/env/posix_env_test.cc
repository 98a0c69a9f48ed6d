#include "env/posix_env.h"

#include <linux/ioprio.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <set>
#include <utility>

#include "base/units.h"
#include "env/sync.h"

namespace lamina::env {
namespace {

TEST_CASE("Clocks and sleep agree", "[env]") {
  const std::unique_ptr<Env> env = NewPosixEnv();
  const int64_t before = env->MonotonicNs();
  env->SleepNs(2 * base::kMillisecondNs);
  REQUIRE(env->MonotonicNs() - before >= 2 * base::kMillisecondNs);
  env->SleepNs(-1);
  REQUIRE(env->WallNs() > 1'600'000'000 * base::kSecondNs);
}

TEST_CASE("Random numbers and nonces differ", "[env]") {
  const std::unique_ptr<Env> env = NewPosixEnv();
  std::set<std::string> nonces;
  for (int i = 0; i < 100; ++i) nonces.insert(RandomHex(*env, 20));
  REQUIRE(nonces.size() == 100);
  REQUIRE(nonces.begin()->size() == 20);
  REQUIRE(std::all_of(nonces.begin(), nonces.end(),
                      [](const std::string& text) { return text.find_first_not_of("0123456789abcdef") == std::string::npos; }));
  REQUIRE(RandomHex(*env, 0).empty());
}

TEST_CASE("A task runs once and is joined by its destruction", "[env]") {
  const std::unique_ptr<Env> env = NewPosixEnv();
  int runs = 0;
  {
    const std::unique_ptr<Task> task = env->Start("lamina-test-with-a-long-name", [&runs] { ++runs; });
    task->Join();
    task->Join();
    REQUIRE(runs == 1);
    const std::unique_ptr<Task> other = env->Start("other", [&runs] { ++runs; });
  }
  REQUIRE(runs == 2);
}

TEST_CASE("A task has its name, takes no signals, and the starter's mask stays", "[env]") {
  const std::unique_ptr<Env> env = NewPosixEnv();
  char name[16] = {};
  sigset_t inside;
  int priority = 0;
  env->Start("lamina-io-with-a-long-name",
             [&] {
               pthread_getname_np(pthread_self(), name, sizeof(name));
               pthread_sigmask(SIG_SETMASK, nullptr, &inside);
               priority = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
             })
      ->Join();
  REQUIRE(std::string(name) == "lamina-io-with-");
  REQUIRE(sigismember(&inside, SIGTERM) == 1);
  REQUIRE(sigismember(&inside, SIGSEGV) == 0);
  REQUIRE(priority >= 10);
  sigset_t outside;
  pthread_sigmask(SIG_SETMASK, nullptr, &outside);
  REQUIRE(sigismember(&outside, SIGTERM) == 0);
}

TEST_CASE("What works in the background has low CPU and I/O priority, and nothing that somebody waits for has", "[env]") {
  const std::unique_ptr<Env> env = NewPosixEnv();
  const auto priorities_of = [&](const std::string& name) {
    std::pair<int, int> priorities;
    env->Start(name,
               [&] {
                 priorities = {getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())),
                               static_cast<int>(syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0))};
               })
        ->Join();
    return priorities;
  };
  const std::pair<int, int> usual = priorities_of("lamina-beat");
  for (const char* name : {"lamina-lease", "lamina-hooks", "lamina-restore", "lamina-read", "lamina-reader", "lamina-copy"}) {
    REQUIRE(priorities_of(name) == usual);
  }
  for (const char* name : {"lamina-io-3", "lamina-save", "lamina-retention"}) {
    REQUIRE(priorities_of(name).first >= 10);
    REQUIRE(priorities_of(name).second == IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7));
  }
  REQUIRE(priorities_of("lamina-beat") == usual);
}

TEST_CASE("A condition variable wakes its waiter", "[env]") {
  const std::unique_ptr<Env> env = NewPosixEnv();
  Mutex mutex(*env);
  CondVar changed(*env);
  bool ready = false;
  const std::unique_ptr<Task> task = env->Start("notifier", [&] {
    const MutexLock lock(mutex);
    ready = true;
    changed.NotifyAll();
  });
  const MutexLock lock(mutex);
  while (!ready) changed.Wait(mutex);
  REQUIRE(ready);
}

TEST_CASE("A wait ends at its deadline, past ones at once, and the farthest does not overflow", "[env]") {
  const std::unique_ptr<Env> env = NewPosixEnv();
  Mutex mutex(*env);
  CondVar changed(*env);
  bool ready = false;
  const MutexLock lock(mutex);
  const int64_t deadline = env->MonotonicNs() + base::kMillisecondNs;
  while (changed.WaitUntil(mutex, deadline)) continue;
  REQUIRE(env->MonotonicNs() >= deadline);
  REQUIRE_FALSE(changed.WaitUntil(mutex, INT64_MIN));
  const std::unique_ptr<Task> task = env->Start("notifier", [&] {
    const MutexLock inner(mutex);
    ready = true;
    changed.NotifyAll();
  });
  while (!ready) REQUIRE(changed.WaitUntil(mutex, kForeverNs - 1));
}

TEST_CASE("A process knows itself and tells who is alive", "[env]") {
  const std::unique_ptr<Env> env = NewPosixEnv();
  const ProcessIdentity self = env->Self();
  REQUIRE(self.pid == getpid());
  REQUIRE_FALSE(self.host.empty());
  REQUIRE_FALSE(self.boot_id.empty());
  REQUIRE_FALSE(self.pid_namespace.empty());
  REQUIRE(self.start_ticks > 0);
  REQUIRE(env->Self() == self);
  REQUIRE(env->LivenessOf(self) == Liveness::kAlive);

  SECTION("A reused pid is not the old process") {
    ProcessIdentity older = self;
    older.start_ticks -= 1;
    REQUIRE(env->LivenessOf(older) == Liveness::kDead);
  }
  SECTION("Another host, boot or namespace is unknown, and so is a pid that cannot be") {
    for (std::string ProcessIdentity::*field : {&ProcessIdentity::host, &ProcessIdentity::boot_id, &ProcessIdentity::pid_namespace}) {
      ProcessIdentity other = self;
      other.*field += "x";
      REQUIRE(env->LivenessOf(other) == Liveness::kUnknown);
    }
    for (const int64_t pid : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
      ProcessIdentity other = self;
      other.pid = pid;
      REQUIRE(env->LivenessOf(other) == Liveness::kUnknown);
    }
  }
  SECTION("A child that ended is dead, before and after it was waited for") {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t child = fork();
    if (child == 0) {
      char byte = 0;
      _exit(read(ready[0], &byte, 1) == 1 ? 0 : 1);
    }
    REQUIRE(child > 0);
    ProcessIdentity other = self;
    other.pid = child;
    for (other.start_ticks = self.start_ticks; env->LivenessOf(other) == Liveness::kDead;) ++other.start_ticks;
    REQUIRE(env->LivenessOf(other) == Liveness::kAlive);
    REQUIRE(write(ready[1], "x", 1) == 1);
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
    REQUIRE(env->LivenessOf(other) == Liveness::kDead);
    REQUIRE(waitpid(child, nullptr, 0) == child);
    REQUIRE(env->LivenessOf(other) == Liveness::kDead);
    close(ready[0]);
    close(ready[1]);
  }
}

}  // namespace
}  // namespace lamina::env
