#include "hooks/dispatcher.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/units.h"
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

constexpr int64_t kLimitNs = 60 * base::kSecondNs;

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
  Dispatcher dispatcher(*env, 1000, kLimitNs);
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
  Dispatcher dispatcher(*env, 2, kLimitNs);
  dispatcher.AddHook(recorder);
  for (int64_t step = 0; step < 5; ++step) dispatcher.Post(EventOf(EventKind::kSnapshotDone, step));
  const std::vector<EventKind> kept = {EventKind::kCommitted, EventKind::kSaveFailed, EventKind::kSaveSkipped, EventKind::kRestoreDone,
                                       EventKind::kFenced};
  for (const EventKind kind : kept) dispatcher.Post(EventOf(kind, 9));
  CHECK(dispatcher.dropped_count() == 3);
  REQUIRE(dispatcher.Start() == absl::OkStatus());
  dispatcher.Stop();
  REQUIRE(recorder->events.size() == 8);
  CHECK(recorder->events[0].kind == EventKind::kFallback);
  CHECK(recorder->events[0].cause == "3 events were dropped: hooks do not take them as fast as they come");
  recorder->events.erase(recorder->events.begin());
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
  Dispatcher dispatcher(*env, 100, kLimitNs);
  dispatcher.AddHook(with_message);
  dispatcher.AddHook(without);
  dispatcher.AddHook(recorder);
  REQUIRE(dispatcher.Start() == absl::OkStatus());
  for (int64_t step = 0; step < 5; ++step) dispatcher.Post(EventOf(EventKind::kCommitted, step));
  dispatcher.Stop();
  CHECK(with_message->calls == 3);
  CHECK(without->calls == 3);
  std::vector<std::string> reports;
  for (const Event& event : recorder->events) {
    if (event.kind == EventKind::kFallback) reports.push_back(event.cause);
  }
  CHECK(recorder->events.size() == 7);
  REQUIRE(reports.size() == 2);
  CHECK(reports[0] == "a hook that was told Committed of step 2 failed: no room in the log; it gets no further events");
  CHECK(reports[1] == "a hook that was told Committed of step 2 failed: an exception of an unknown type; it gets no further events");
}

// At one event it stays until it is let go.
class Staller final : public Hook {
 public:
  Staller(env::Env& env, int64_t at_step, std::shared_ptr<std::atomic<bool>> released)
      : env_(env), at_step_(at_step), released_(std::move(released)) {}
  void OnEvent(const Event& event) override {
    steps.push_back(event.step);
    while (event.step == at_step_ && !*released_) env_.SleepNs(base::kMillisecondNs);
  }

  std::vector<int64_t> steps;

 private:
  env::Env& env_;
  const int64_t at_step_;
  const std::shared_ptr<std::atomic<bool>> released_;
};

TEST_CASE("Dispatcher leaves a hook behind that does not return, and the others get all events", "[hooks]") {
  const int64_t stalled_step = GENERATE(1, 4);  // in the middle, and the last one, while the dispatcher stops
  env::SimWorld world({});
  std::vector<Event> first;
  std::vector<Event> last;
  std::vector<int64_t> stalled;
  int64_t stopping_ns = -1;
  bool left_behind = false;
  bool still_left_behind = true;
  world.Start(world.NewProcess("trainer"), [&](env::Env& env) {
    const auto released = std::make_shared<std::atomic<bool>>(false);
    const auto before = std::make_shared<Recorder>();
    const auto staller = std::make_shared<Staller>(env, stalled_step, released);
    const auto after = std::make_shared<Recorder>();
    Dispatcher dispatcher(env, 100, kLimitNs);
    for (const std::shared_ptr<Hook>& hook : std::vector<std::shared_ptr<Hook>>{before, staller, after}) dispatcher.AddHook(hook);
    if (!dispatcher.Start().ok()) return;
    for (int64_t step = 0; step < 5; ++step) {
      dispatcher.Post(EventOf(EventKind::kCommitted, step));
      env.SleepNs(2 * kLimitNs / 3);
    }
    const int64_t begun_ns = env.MonotonicNs();
    dispatcher.Stop();
    stopping_ns = env.MonotonicNs() - begun_ns;
    left_behind = dispatcher.LeavesBehind();
    *released = true;
    env.SleepNs(base::kSecondNs);
    still_left_behind = dispatcher.LeavesBehind();
    first = before->events;
    last = after->events;
    stalled = staller->steps;
  });
  REQUIRE(world.Run().ok());
  CHECK(stopping_ns >= 0);
  CHECK(stopping_ns <= 2 * kLimitNs);
  CHECK(left_behind);
  CHECK(!still_left_behind);
  CHECK(stalled.back() == stalled_step);
  for (std::vector<Event>* events : {&first, &last}) {
    REQUIRE(events->size() == 6);
    const auto told = std::find_if(events->begin(), events->end(), [](const Event& event) { return event.kind == EventKind::kFallback; });
    REQUIRE(told != events->end());
    CHECK(told->cause == absl::StrCat("a hook that was told Committed of step ", stalled_step,
                                      " has not returned within 60000 ms; it gets no further events"));
    events->erase(told);
    for (size_t step = 0; step < events->size(); ++step) CHECK((*events)[step].step == static_cast<int64_t>(step));
  }
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
    std::vector<int64_t> steps;
    bool stopped = false;
    env::SimProcess& process = world.NewProcess("trainer");
    world.Start(process, [&](env::Env& env) {
      const auto sleeper = std::make_shared<Sleeper>(env);
      Dispatcher dispatcher(env, 100, kLimitNs);
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
    REQUIRE(stopped == !world.power_was_cut());
    if (stopped) REQUIRE(steps == std::vector<int64_t>{0, 1, 2});
  }
  REQUIRE(op_count > 3);
}

}  // namespace
}  // namespace lamina::hooks
