// Storage that does not answer: what waits for it, and for how long.
#include <catch2/catch.hpp>

#include "base/units.h"
#include "testing/checks.h"
#include "testing/sim_job.h"
#include "testing/thread_job.h"

namespace lamina {
namespace {

using testing::All;
using testing::Moment;
using testing::RootIn;
using testing::ScratchDirectory;
using testing::ThreadJob;

}  // namespace

TEST_CASE("A restore whose storage hangs on one rank ends on all, and leaves its targets alone from then on", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3, [](Options& options) { options.restore_seconds_max = 1; });
  REQUIRE(All(job.Save({1, 1})) == absl::OkStatus());
  const std::string where = GENERATE("catalog", "00002.pack");
  job.faults(1).SetHang(where);
  for (const absl::Status& status : job.Restore(std::nullopt)) {
    INFO(status);
    REQUIRE(absl::IsDeadlineExceeded(status));
    REQUIRE(std::string(status.message()).find("rank 1") != std::string::npos);
  }
  job.faults(1).SetHang(std::nullopt);
  REQUIRE(All(job.Restore(std::nullopt)) == absl::OkStatus());
  REQUIRE(All(job.End()) == absl::OkStatus());
}

TEST_CASE("Closing does not wait for a lease that storage does not take back", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 1);
  REQUIRE(All(job.Save({1, 1})) == absl::OkStatus());
  job.faults(0).SetHang("writers/");
  const int64_t begun_ns = job.env().MonotonicNs();
  const absl::Status closed = job.engine(0).Close(-1);
  INFO(closed);
  REQUIRE(absl::IsUnavailable(closed));
  REQUIRE(job.env().MonotonicNs() - begun_ns < 30 * base::kSecondNs);
  job.faults(0).SetHang(std::nullopt);
  for (int tries = 0; tries < 1000 && !job.engine(0).Close(-1).ok(); ++tries) job.env().SleepNs(10 * base::kMillisecondNs);
  REQUIRE(job.engine(0).Close(-1) == absl::OkStatus());
}

TEST_CASE("A claim that hung and comes back is the job's one claim", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 1, [](Options& options) { options.save_timeout_s = options.restore_seconds_max = 0.5; });
  job.faults(0).SetHang(GENERATE("/log", "/LAMINA", "/writers"));
  for (int64_t step = 1; step <= 2; ++step) REQUIRE(absl::IsDeadlineExceeded(All(job.Save({step, 1}))));
  REQUIRE(absl::IsDeadlineExceeded(All(job.Restore(std::nullopt))));
  job.faults(0).SetHang(std::nullopt);
  absl::Status saved = absl::UnknownError("not tried");
  for (int64_t step = 3; step < 30 && !saved.ok(); ++step) saved = All(job.Save({step, 1}));  // one that finds the machine busy runs late
  REQUIRE(saved == absl::OkStatus());
  REQUIRE(All(job.End()) == absl::OkStatus());
  const absl::StatusOr<testing::Found> found = testing::CheckRoot(job.env(), RootIn(scratch));
  REQUIRE(found.ok());
  REQUIRE(found->incarnation == 1);
  REQUIRE(found->line.size() == 1);
}

TEST_CASE("A file system that does not tell its room ends the first save on all ranks", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2, [](Options& options) { options.save_timeout_s = 1; });
  job.faults(0).SetHang("", env::FaultCall::kCapacity);
  for (const absl::Status& status : job.Save({1, 1})) {
    INFO(status);
    REQUIRE(absl::IsDeadlineExceeded(status));
    REQUIRE(std::string(status.message()).find("rank 0") != std::string::npos);
  }
  job.faults(0).SetHang(std::nullopt);
  REQUIRE(All(job.Save({2, 1})) == absl::OkStatus());
  REQUIRE(All(job.End()) == absl::OkStatus());
}

TEST_CASE("A rank whose storage hung through several saves comes back to those of the others", "[engine]") {
  constexpr int64_t kHangNs = 400 * base::kSecondNs;
  env::SimThreads threads;
  env::SimWorld world({.seed = 5, .threads = &threads});
  const auto hub = std::make_shared<coord::InProcessHub>();
  std::vector<absl::Status> last(2, absl::UnknownError("not saved"));
  const int64_t meet_ns = world.now_ns() + 3 * kHangNs;
  for (int32_t rank = 0; rank < 2; ++rank) {
    env::SimProcess& process = world.NewProcess(absl::StrCat("rank", rank));
    world.Start(process, [&world, &last, hub, rank, meet_ns](env::Env& env) {
      Options options = testing::JobOptions(testing::kSimRoot, rank, 2);
      options.save_timeout_s = 20;
      testing::Rank body(env, *hub, options);
      testing::RankState state(rank, 2);
      std::vector<std::shared_ptr<SaveHandle>> handles;
      for (int64_t step = 1; step <= 6; ++step) {
        if (step == 2 && rank == 0) world.AddFault({.what = "write", .path = "00001.pack", .count = 1, .delay_ns = kHangNs});
        if (step == 6) env.SleepNs(meet_ns - world.now_ns());  // all is well again on both
        const absl::StatusOr<std::shared_ptr<SaveHandle>> handle = testing::BeginSave(body.engine(), state, {step, 1});
        last[static_cast<size_t>(rank)] = handle.status();
        if (!handle.ok()) return;
        if (step == 1 || step == 6) last[static_cast<size_t>(rank)] = testing::Await(**handle);
        handles.push_back(*handle);
      }
      body.engine().Close(-1).IgnoreError();
    });
  }
  REQUIRE(world.Run() == absl::OkStatus());
  for (const absl::Status& status : last) {
    INFO(status);
    REQUIRE(status.ok());
  }
}

}  // namespace lamina
