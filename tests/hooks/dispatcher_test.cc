#include "hooks/dispatcher.h"

#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "env/posix_env.h"
#include "env/sim_env.h"

namespace lamina::hooks {
namespace {

// Keeps the steps it is told of. Read after Stop.
class Recorder final : public Hook {
 public:
  void OnEvent(const Event& event) override { events.push_back(event); }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const Event& event : events) steps.push_back(event.step);
    return steps;
  }

  std::vector<Event> events;
};

template <typename Thrown>
class Thrower final : public Hook {
 public:
  explicit Thrower(Thrown thrown) : thrown_(thrown) {}
  void OnEvent(const Event& event) override {
    ++calls;
    if (event.step == 2) throw thrown_;
  }

  int calls = 0;

 private:
  const Thrown thrown_;
};

Event EventOf(EventKind kind, int64_t step) {
  Event event;
  event.kind = kind;
  event.step = step;
  return event;
}

TEST_CASE("Dispatcher delivers to every hook, in order, and all of it before Stop returns", "[hooks]") {
  const auto env = env::NewPosixEnv();
  const auto a = std::make_shared<Recorder>();
  const auto b = std::make_shared<Recorder>();
  std::vector<int64_t> expected;
  Dispatcher dispatcher(*env, 1000, [](std::string) { FAIL(); });
  dispatcher.AddHook(a);
  dispatcher.AddHook(b);
  dispatcher.Post(EventOf(EventKind::kSaveBegin, 0));  // waits for Start
  REQUIRE(dispatcher.Start() == absl::OkStatus());
  expected.push_back(0);
  for (int64_t step = 1; step < 1000; ++step) {
    dispatcher.Post(EventOf(EventKind::kSaveBegin, step));
    expected.push_back(step);
  }
  dispatcher.Stop();
  dispatcher.Stop();
  CHECK(a->Steps() == expected);
  CHECK(b->Steps() == expected);
  CHECK(dispatcher.dropped_count() == 0);
  for (size_t i = 1; i < a->events.size(); ++i) REQUIRE(a->events[i - 1].monotonic_ns <= a->events[i].monotonic_ns);
  CHECK(a->events[0].monotonic_ns > 0);
  CHECK(a->events[0].wall_ns > 0);
}

TEST_CASE("Dispatcher drops and counts what is too much, but never how a save or restore ended", "[hooks]") {
  const auto env = env::NewPosixEnv();
  const auto recorder = std::make_shared<Recorder>();
  Dispatcher dispatcher(*env, 2, [](std::string) { FAIL(); });
  dispatcher.AddHook(recorder);
  for (int64_t step = 0; step < 5; ++step) dispatcher.Post(EventOf(EventKind::kSnapshotDone, step));
  const std::vector<EventKind> kept = {EventKind::kCommitted, EventKind::kSaveFailed, EventKind::kSaveSkipped, EventKind::kRestoreDone,
                                       EventKind::kFenced};
  for (const EventKind kind : kept) dispatcher.Post(EventOf(kind, 9));
  CHECK(dispatcher.dropped_count() == 3);
  REQUIRE(dispatcher.Start() == absl::OkStatus());
  dispatcher.Stop();
  CHECK(recorder->Steps() == std::vector<int64_t>{0, 1, 9, 9, 9, 9, 9});
  dispatcher.Post(EventOf(EventKind::kCommitted, 10));
  CHECK(dispatcher.dropped_count() == 4);
  CHECK(recorder->events.size() == 7);
}

TEST_CASE("Dispatcher reports a hook that throws once, removes it and keeps the others", "[hooks]") {
  const auto env = env::NewPosixEnv();
  const auto with_message = std::make_shared<Thrower<std::runtime_error>>(std::runtime_error("no room in the log"));
  const auto without = std::make_shared<Thrower<int>>(7);
  const auto recorder = std::make_shared<Recorder>();
  std::vector<std::string> reports;
  Dispatcher dispatcher(*env, 100, [&](std::string line) { reports.push_back(line); });
  dispatcher.AddHook(with_message);
  dispatcher.AddHook(without);
  dispatcher.AddHook(recorder);
  REQUIRE(dispatcher.Start() == absl::OkStatus());
  for (int64_t step = 0; step < 5; ++step) dispatcher.Post(EventOf(EventKind::kCommitted, step));
  dispatcher.Stop();
  CHECK(with_message->calls == 3);
  CHECK(without->calls == 3);
  CHECK(recorder->events.size() == 5);
  REQUIRE(reports.size() == 2);
  CHECK(reports[0] == "a hook failed at Committed of step 2 and gets no further events: no room in the log");
  CHECK(reports[1] == "a hook failed at Committed of step 2 and gets no further events: an exception of an unknown type");
}

// Uses its Env, so that a simulated death can strike inside it.
class Sleeper final : public Hook {
 public:
  explicit Sleeper(env::Env& env) : env_(env) {}
  void OnEvent(const Event& event) override {
    env_.SleepNs(1000);
    steps.push_back(event.step);
  }

  std::vector<int64_t> steps;

 private:
  env::Env& env_;
};

TEST_CASE("Dispatcher ends cleanly when its simulated process dies at any operation", "[hooks][sim]") {
  int64_t op_count = 1;
  for (int64_t cut = -1; cut < op_count; ++cut) {
    env::SimWorld world({.seed = static_cast<uint64_t>(100 + cut), .power_cut_at_op = cut});
    std::vector<std::string> reports;
    std::vector<int64_t> steps;
    bool stopped = false;
    env::SimProcess& process = world.NewProcess("trainer");
    world.Start(process, [&](env::Env& env) {
      const auto sleeper = std::make_shared<Sleeper>(env);
      Dispatcher dispatcher(env, 100, [&](std::string line) { reports.push_back(line); });
      dispatcher.AddHook(sleeper);
      dispatcher.Start().IgnoreError();
      for (int64_t step = 0; step < 3; ++step) {
        dispatcher.Post(EventOf(EventKind::kCommitted, step));
        env.Operation("train");
      }
      dispatcher.Stop();
      env.Operation("stopped");  // a dead process comes no further
      steps = sleeper->steps;
      stopped = true;
    });
    REQUIRE(world.Run().ok());
    if (cut < 0) op_count = world.op_count();
    REQUIRE(reports == std::vector<std::string>());  // death is no fault of the hook
    REQUIRE(stopped == !world.power_was_cut());
    if (stopped) REQUIRE(steps == std::vector<int64_t>{0, 1, 2});
  }
  REQUIRE(op_count > 3);
}

}  // namespace
}  // namespace lamina::hooks
