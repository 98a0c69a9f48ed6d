// Engine::Open and Restore by name: on this machine by threads that stand for processes, and between simulated processes that die.
#include "engine/open.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/units.h"
#include "env/fault_env.h"
#include "env/sim_env.h"
#include "testing/checks.h"
#include "testing/scratch_directory.h"
#include "testing/sim_job.h"
#include "testing/thread_job.h"

namespace lamina {
namespace {

using testing::Moment;
using testing::RankState;
using testing::RequireOk;
using testing::ScratchDirectory;

Options OpenOptions(const ScratchDirectory& scratch, int32_t rank, int32_t rank_count) {
  Options options = testing::JobOptions(scratch.path() + "/root", rank, rank_count);
  options.coordination_dir = scratch.path() + "/meeting";
  return options;
}

// What each of `rank_count` ranks returned, each with an engine of its own.
std::vector<absl::Status> OnRanks(const ScratchDirectory& scratch, int32_t rank_count,
                                  const std::function<absl::Status(Engine&, int32_t)>& body) {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  std::vector<absl::Status> statuses(static_cast<size_t>(rank_count));
  std::vector<std::unique_ptr<env::Task>> tasks;
  for (int32_t rank = 0; rank < rank_count; ++rank) {
    tasks.push_back(env->Start("rank", [&, rank] {
      const absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(OpenOptions(scratch, rank, rank_count));
      statuses[static_cast<size_t>(rank)] = engine.ok() ? body(**engine, rank) : engine.status();
    }));
  }
  for (const std::unique_ptr<env::Task>& task : tasks) task->Join();
  return statuses;
}

absl::Status SaveAt(Engine& engine, RankState& state, const Moment& moment) {
  LAMINA_ASSIGN_OR_RETURN(const std::shared_ptr<SaveHandle> handle, testing::BeginSave(engine, state, moment));
  LAMINA_RETURN_IF_ERROR(engine.Fence());
  return testing::Await(*handle);
}

void SaveOnce(const ScratchDirectory& scratch, int32_t rank_count, const Moment& moment) {
  RequireOk(OnRanks(scratch, rank_count, [&](Engine& engine, int32_t rank) -> absl::Status {
    RankState state(rank, rank_count);
    LAMINA_RETURN_IF_ERROR(SaveAt(engine, state, moment));
    return engine.Close(-1);
  }));
}

class Recorder final : public Hook {
 public:
  void OnEvent(const Event& event) override {
    names_.emplace_back(EventName(event.kind));
    if (event.kind == EventKind::kFallback) fallbacks_.push_back(event.cause);
  }
  std::vector<std::string> names_;
  std::vector<std::string> fallbacks_;
};

}  // namespace

TEST_CASE("Engines that were opened save, and other numbers of ranks restore by name", "[engine]") {
  const ScratchDirectory scratch;
  SaveOnce(scratch, 2, {100, 1});
  for (const int32_t rank_count : {1, 3}) {
    RequireOk(OnRanks(scratch, rank_count, [&](Engine& engine, int32_t rank) -> absl::Status {
      RankState state(rank, rank_count);
      LAMINA_ASSIGN_OR_RETURN(const RestoreInfo info, engine.Restore(state.views()));
      if (info.step != 100 || info.next_step != 101 || info.rank_count != 2 || info.topology != Topology{{"dp", 1}} ||
          info.line != std::vector<int64_t>{100}) {
        return absl::InternalError("the restore tells something else of the step");
      }
      LAMINA_RETURN_IF_ERROR(testing::MomentOf(info.blobs, info.rank_count).status());
      return state.Check({100, 1});
    }));
  }
  REQUIRE(std::filesystem::is_empty(scratch.path() + "/meeting"));
}

TEST_CASE("A coordination directory that hangs does not hang the end of a rank", "[engine]") {
  constexpr int32_t kRanks = 2;
  env::SimWorld world({.seed = 3});
  std::vector<absl::Status> statuses(kRanks, absl::UnknownError("did not end"));
  std::vector<int64_t> closing_ns(kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    world.Start(world.NewProcess(absl::StrCat("rank", rank)), [&, rank](env::Env& sim) {
      env::FaultEnv env(sim);
      statuses[static_cast<size_t>(rank)] = [&]() -> absl::Status {
        Options options = testing::JobOptions(testing::kSimRoot, rank, kRanks);
        options.coordination_dir = "/ckpt/meeting";
        LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, engine::OpenOn(env, options, {}));
        RankState state(rank, kRanks);
        LAMINA_RETURN_IF_ERROR(SaveAt(*engine, state, {1, 1}));
        env.SleepNs(10 * base::kSecondNs);  // until both ranks are done
        env.plan().SetHang("/launch-");
        const int64_t begun_ns = env.MonotonicNs();
        const absl::Status closed = engine->Close(-1);
        engine.reset();
        closing_ns[static_cast<size_t>(rank)] = env.MonotonicNs() - begun_ns;
        // What was left behind ends, on an Env that is still there.
        env.plan().SetHang(std::nullopt);
        env.SleepNs(10 * base::kSecondNs);
        return closed;
      }();
    });
  }
  REQUIRE(world.Run().ok());
  RequireOk(statuses);
  for (const int64_t ns : closing_ns) REQUIRE(ns < 10 * base::kSecondNs);
  REQUIRE(world.NewProcess("reader").files().List("/ckpt/meeting").value().empty());
}

TEST_CASE("Closing does not wait for a last beat that hangs in the coordination directory", "[engine]") {
  constexpr int32_t kRanks = 2;
  env::SimWorld world({.seed = 3});
  std::vector<absl::Status> statuses(kRanks, absl::UnknownError("did not end"));
  std::vector<int64_t> closing_ns(kRanks);
  std::array<bool, kRanks> hangs{};
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const auto mine = static_cast<size_t>(rank);
    world.Start(world.NewProcess(absl::StrCat("rank", rank)), [&, rank, mine](env::Env& sim) {
      env::FaultEnv env(sim);
      statuses[mine] = [&]() -> absl::Status {
        Options options = testing::JobOptions(testing::kSimRoot, rank, kRanks);
        options.coordination_dir = "/ckpt/meeting";
        LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, engine::OpenOn(env, options, {}));
        RankState state(rank, kRanks);
        env.plan().SetHang("beat");
        LAMINA_RETURN_IF_ERROR(SaveAt(*engine, state, {1, 1}));
        const int64_t begun_ns = env.MonotonicNs();
        const absl::Status closed = engine->Close(-1);
        closing_ns[mine] = env.MonotonicNs() - begun_ns;
        hangs[mine] = env.plan().hang_count() > 0;
        env.plan().SetHang(std::nullopt);  // the engine is destroyed here, and waits for it
        return closed;
      }();
      env.SleepNs(10 * base::kSecondNs);  // what was left behind ends, on an Env that is still there
    });
  }
  REQUIRE(world.Run().ok());
  RequireOk(statuses);
  for (const int64_t ns : closing_ns) REQUIRE(ns < 15 * base::kSecondNs);
  REQUIRE(hangs == std::array{true, true});
}

TEST_CASE("In a forked child an engine is inert, and the parent goes on", "[engine]") {
  const ScratchDirectory scratch;
  std::unique_ptr<Engine> engine = Engine::Open(OpenOptions(scratch, 0, 1)).value();
  RankState state(0, 1);
  const std::string parent = absl::StrCat("belongs to process ", getpid(), ",");
  REQUIRE(SaveAt(*engine, state, {1, 1}).ok());
  std::shared_ptr<SaveHandle> handle = testing::BeginSave(*engine, state, {2, 1}).value();
  const pid_t child = fork();
  if (child == 0) {
    const auto inert = [&](const absl::Status& status) {
      return absl::IsFailedPrecondition(status) && std::string(status.message()).find(parent) != std::string::npos;
    };
    bool is_inert = inert(testing::BeginSave(*engine, state, {3, 1}).status()) && inert(engine->BeginRestore(std::nullopt).status()) &&
                    inert(engine->Restore(state.views()).status()) && inert(engine->Fence()) && inert(engine->Close(-1)) &&
                    inert(handle->Wait(-1).status()) && handle->Done();
    engine->Abandon();
    handle.reset();
    engine.reset();  // waits for no thread
    _exit(is_inert ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = -1;
  for (int tries = 0; tries < 3000 && waitpid(child, &status, WNOHANG) == 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!WIFEXITED(status)) kill(child, SIGKILL);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  REQUIRE(testing::Await(*handle) == absl::OkStatus());
  REQUIRE(SaveAt(*engine, state, {3, 1}).ok());
  REQUIRE(engine->Close(-1).ok());
}

TEST_CASE("An engine that reads takes nothing over and does not save", "[engine]") {
  const ScratchDirectory scratch;
  const std::unique_ptr<Engine> trainer = Engine::Open(OpenOptions(scratch, 0, 1)).value();
  RankState state(0, 1);
  REQUIRE(SaveAt(*trainer, state, {100, 1}).ok());
  Options options = OpenOptions(scratch, 0, 1);
  options.mode = Mode::kRead;
  const std::unique_ptr<Engine> reader = Engine::Open(options).value();
  RankState copy(0, 1);
  REQUIRE(reader->Restore(copy.views()).value().step == 100);
  REQUIRE(copy.Check({100, 1}).ok());
  REQUIRE(absl::IsFailedPrecondition(testing::BeginSave(*reader, copy, {101, 1}).status()));
  REQUIRE(SaveAt(*trainer, state, {101, 1}).ok());
  REQUIRE(reader->Restore(copy.views(), 100).value().line == std::vector<int64_t>{101, 100});
  REQUIRE(reader->Close(-1).ok());
  REQUIRE(absl::IsFailedPrecondition(reader->Fence()));
}

TEST_CASE("A restore of an empty root finds nothing, on all ranks", "[engine]") {
  const ScratchDirectory scratch;
  RequireOk(OnRanks(scratch, 2, [](Engine& engine, int32_t rank) -> absl::Status {
    RankState state(rank, 2);
    LAMINA_ASSIGN_OR_RETURN(const RestoreInfo info, engine.Restore(state.views()));
    const bool nothing = !info.step.has_value() && info.next_step == 0 && info.line.empty() && state.IsPoisoned();
    return nothing ? absl::OkStatus() : absl::InternalError("found something");
  }));
}

TEST_CASE("Restore by name tells all that does not fit, on all ranks, and touches nothing", "[engine]") {
  const ScratchDirectory scratch;
  SaveOnce(scratch, 2, {100, 1});
  const std::vector<absl::Status> statuses = OnRanks(scratch, 2, [](Engine& engine, int32_t rank) -> absl::Status {
    RankState state(rank, 2);
    std::vector<TensorView> targets = state.views();
    std::erase_if(targets, [](const TensorView& view) { return view.name == "s" || view.name == "tied"; });
    if (rank == 1) {
      std::erase_if(targets, [](const TensorView& view) { return view.name == "v"; });  // rank 0 has it: expected
      targets[1].name = "rr";
    } else {
      targets[0].dtype = DType::kInt32;
    }
    const absl::Status status = engine.Restore(targets).status();
    return state.IsPoisoned() ? status : absl::InternalError("was touched");
  });
  for (const absl::Status& status : statuses) {
    REQUIRE(absl::IsInvalidArgument(status));
    const std::string text(status.message());
    CHECK_THAT(text, Catch::Contains("'w' is int32"));
    CHECK_THAT(text, Catch::Contains("missing in the checkpoint: 'rr' (nearest: 'r')"));
    CHECK_THAT(text, Catch::Contains("unexpected in the checkpoint: 's'"));
    CHECK_THAT(text, !Catch::Contains("tied") && !Catch::Contains("unexpected in the checkpoint: 'v'"));
  }
  REQUIRE(statuses[0].message() == statuses[1].message());
}

TEST_CASE("An engine without a place to meet, and a rank that does not come, are told", "[engine]") {
  const ScratchDirectory scratch;
  Options options = OpenOptions(scratch, 0, 2);
  options.begin_timeout_s = 0.1;
  const absl::Status late = Engine::Open(options).status();
  REQUIRE(absl::IsDeadlineExceeded(late));
  options.coordination_dir.clear();
  const absl::Status nowhere = Engine::Open(options).status();
  REQUIRE(absl::IsInvalidArgument(nowhere));
  REQUIRE_THAT(std::string(nowhere.message()), Catch::Contains("coordination_dir"));
  options.root = "relative";
  REQUIRE(absl::IsInvalidArgument(Engine::Open(options).status()));
}

TEST_CASE("Hooks hear of a save, and destruction waits for it", "[engine]") {
  const ScratchDirectory scratch;
  const auto recorder = std::make_shared<Recorder>();
  std::shared_ptr<SaveHandle> handle;
  {
    const std::unique_ptr<Engine> engine = Engine::Open(OpenOptions(scratch, 0, 1), {recorder}).value();
    RankState state(0, 1);
    handle = testing::BeginSave(*engine, state, {7, 1}).value();
  }
  REQUIRE(handle->Wait(0).value().step == 7);
  REQUIRE(recorder->names_ == std::vector<std::string>{"SaveBegin", "SnapshotDone", "WriteDone", "Committed"});
}

TEST_CASE("A second save waits for the first only where the memory budget holds one copy, which one line says", "[engine]") {
  constexpr int64_t kStateBytes = 4 * base::kMiB;
  const ScratchDirectory scratch;
  const std::unique_ptr<env::Env> posix = env::NewPosixEnv();
  env::FaultEnv env(*posix);
  const auto recorder = std::make_shared<Recorder>();
  Options options = testing::JobOptions(scratch.path() + "/root", 0, 1);
  const bool budget_holds_two = GENERATE(true, false);
  options.memory_bytes = budget_holds_two ? 0 : kStateBytes + base::kMiB;
  const std::unique_ptr<Engine> engine = engine::OpenOn(env, options, {recorder}).value();
  std::vector<std::byte> bytes(kStateBytes);
  TensorView view{"w", DType::kUint8, {kStateBytes}, {}, "", false};
  view.boxes.push_back({{{0}, {kStateBytes}}, bytes.data(), {1}});
  const auto save = [&](int64_t step) { return engine->Save({step, {&view, 1}, {}, {{"dp", 1}}}).value(); };
  env.plan().SetWriteBytesPerSecond(8 * base::kMiB);
  const std::shared_ptr<SaveHandle> first = save(1);
  const std::shared_ptr<SaveHandle> second = save(2);
  const bool waited = first->Done();
  env.plan().SetWriteBytesPerSecond(0);
  REQUIRE(testing::Await(*first) == absl::OkStatus());
  REQUIRE(testing::Await(*second) == absl::OkStatus());
  REQUIRE(engine->Close(-1) == absl::OkStatus());
  REQUIRE(waited == !budget_holds_two);
  REQUIRE(recorder->fallbacks_.size() == (budget_holds_two ? 0 : 1));
  if (!budget_holds_two) REQUIRE_THAT(recorder->fallbacks_[0], Catch::Contains("save() waits while another save is under way"));
}

TEST_CASE("A write that stands still is told once, and the save goes on", "[engine]") {
  const auto recorder = std::make_shared<Recorder>();
  absl::Status status = absl::UnknownError("did not end");
  env::SimWorld world({});
  world.Start(world.NewProcess("trainer"), [&](env::Env& env) {
    status = [&]() -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                              engine::OpenOn(env, testing::JobOptions(testing::kSimRoot, 0, 1), {recorder}));
      RankState state(0, 1);
      LAMINA_RETURN_IF_ERROR(SaveAt(*engine, state, {1, 1}));
      world.AddFault({.what = "write", .path = "00000.pack", .count = 1, .delay_ns = 100 * base::kSecondNs});
      LAMINA_RETURN_IF_ERROR(SaveAt(*engine, state, {2, 1}));
      return engine->Close(-1);
    }();
  });
  REQUIRE(world.Run().ok());
  INFO(status);
  REQUIRE(status.ok());
  REQUIRE(std::count(recorder->names_.begin(), recorder->names_.end(), "IoSlow") == 1);
}

// Is still at the first event when it is let go.
class StallingHook final : public Hook {
 public:
  explicit StallingHook(env::Env& env) : env_(env) {}
  void OnEvent(const Event&) override {
    while (!released_) env_.SleepNs(base::kSecondNs);
  }
  std::atomic<bool> released_ = false;

 private:
  env::Env& env_;
};

TEST_CASE("A hook that does not return holds up neither a save nor the end, and is told of to the others", "[engine]") {
  const auto recorder = std::make_shared<Recorder>();
  absl::Status status = absl::UnknownError("did not end");
  int64_t closing_ns = -1;
  env::SimWorld world({});
  world.Start(world.NewProcess("trainer"), [&](env::Env& env) {
    const auto stalling = std::make_shared<StallingHook>(env);
    status = [&]() -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                              engine::OpenOn(env, testing::JobOptions(testing::kSimRoot, 0, 1), {stalling, recorder}));
      RankState state(0, 1);
      LAMINA_RETURN_IF_ERROR(SaveAt(*engine, state, {1, 1}));
      const int64_t begun_ns = env.MonotonicNs();
      LAMINA_RETURN_IF_ERROR(engine->Close(-1));
      engine.reset();
      closing_ns = env.MonotonicNs() - begun_ns;
      return absl::OkStatus();
    }();
    stalling->released_ = true;
    env.SleepNs(10 * base::kSecondNs);
  });
  REQUIRE(world.Run().ok());
  INFO(status);
  REQUIRE(status.ok());
  REQUIRE(closing_ns < 60 * base::kSecondNs);
  REQUIRE(recorder->names_ == std::vector<std::string>{"SaveBegin", "SnapshotDone", "WriteDone", "Committed", "Fallback"});
  REQUIRE_THAT(recorder->fallbacks_[0], Catch::Contains("SaveBegin of step 1 has not returned within 30000 ms"));
}

TEST_CASE("A lease that is not renewed is told once until it is, and no save fails by it", "[engine]") {
  const auto recorder = std::make_shared<Recorder>();
  absl::Status status = absl::UnknownError("did not end");
  std::vector<size_t> told;
  env::SimWorld world({});
  world.Start(world.NewProcess("trainer"), [&](env::Env& env) {
    env::FaultEnv faulty(env);
    status = [&]() -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                              engine::OpenOn(faulty, testing::JobOptions(testing::kSimRoot, 0, 1), {recorder}));
      RankState state(0, 1);
      // Until the claim's own touch, and the first one of the task, have gone well.
      LAMINA_RETURN_IF_ERROR(SaveAt(*engine, state, {1, 1}));
      env.SleepNs(base::kSecondNs);
      for (int64_t step = 2; step <= 4; ++step) {
        faulty.plan().AddRule({.call = env::FaultCall::kTouch, .path_part = "/writers/", .error_number = EIO, .first = 1, .count = 5});
        LAMINA_RETURN_IF_ERROR(SaveAt(*engine, state, {step, 1}));
        env.SleepNs(100 * base::kSecondNs);
        told.push_back(recorder->fallbacks_.size());
      }
      return engine->Close(-1);
    }();
  });
  REQUIRE(world.Run().ok());
  INFO(status);
  REQUIRE(status.ok());
  REQUIRE(told == std::vector<size_t>{1, 2, 3});
  REQUIRE_THAT(recorder->fallbacks_[0], Catch::Contains("lease") && Catch::Contains("EIO"));
}

TEST_CASE("A rank of a job that meets in a directory may die at any operation: the next launch goes on", "[sim]") {
  constexpr int32_t kRanks = 2;
  int64_t op_count = 1;
  for (int64_t kill = 0; kill < op_count; kill += 7) {
    INFO("killed at operation " << kill);
    env::SimWorld world({.seed = 100 + static_cast<uint64_t>(kill)});
    std::vector<int64_t> committed(kRanks, -1);
    const auto launch = [&](int64_t step, env::SimProcess* victim) {
      std::vector<absl::Status> statuses(kRanks, absl::UnknownError("did not end"));
      for (int32_t rank = 0; rank < kRanks; ++rank) {
        env::SimProcess& process = rank == 0 && victim != nullptr ? *victim : world.NewProcess(absl::StrCat(step, "/", rank));
        world.Start(process, [&, rank, step](env::Env& env) {
          Options options = testing::JobOptions(testing::kSimRoot, rank, kRanks);
          options.coordination_dir = "/ckpt/meeting";
          statuses[static_cast<size_t>(rank)] = [&]() -> absl::Status {
            LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, engine::OpenOn(env, options, {}));
            RankState state(rank, kRanks);
            LAMINA_RETURN_IF_ERROR(testing::RestoreAndCheck(*engine, state, std::nullopt).status());
            LAMINA_RETURN_IF_ERROR(SaveAt(*engine, state, {step, 1}));
            committed[static_cast<size_t>(rank)] = step;
            return engine->Close(-1);
          }();
        });
      }
      REQUIRE(world.Run().ok());
      return statuses;
    };
    env::SimProcess& victim = world.NewProcess("victim");
    world.KillAtOp(victim, kill);
    launch(100, &victim);
    if (!victim.dead()) break;
    op_count = kill + 8;
    const int64_t acknowledged = std::max(committed[0], committed[1]);
    RequireOk(launch(200, nullptr));
    const absl::StatusOr<testing::Found> found = testing::CheckRoot(world.NewProcess("reader"), testing::kSimRoot);
    INFO(found.status());
    REQUIRE(found.ok());
    REQUIRE(found->line.front() == Moment{200, 1});
    REQUIRE((acknowledged < 0 || found->Has({acknowledged, 1})));
  }
  REQUIRE(op_count > 100);
}

}  // namespace lamina
