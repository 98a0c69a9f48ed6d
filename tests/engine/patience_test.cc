// A restore over files that a network file system loses track of for a while.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "base/units.h"
#include "env/fault_env.h"
#include "testing/sim_job.h"

namespace lamina {
namespace {

using base::kSecondNs;
using testing::Moment;

struct Lost {
  env::FaultCall call;
  std::string path_part;
  int32_t rank = 0;
  int error_number = ESTALE;
};

struct Ended {
  std::vector<absl::Status> statuses;
  std::vector<std::optional<Moment>> restored;
  int64_t took_ns = 0;
};

// Restores with two ranks, of which one has lost a file from the start on for so long.
Ended RestoreWith(env::SimWorld& world, const Lost& lost, int64_t lost_ns) {
  const auto hub = std::make_shared<coord::InProcessHub>();
  Ended outcome{std::vector<absl::Status>(2, absl::UnknownError("did not end")), std::vector<std::optional<Moment>>(2), 0};
  for (int32_t rank = 0; rank < 2; ++rank) {
    world.Start(world.NewProcess(absl::StrCat("again/", rank)), [&outcome, hub, lost, lost_ns, rank](env::Env& base) {
      env::FaultEnv env(base);
      const int64_t begun_ns = base.MonotonicNs();
      if (rank == lost.rank) {
        env.plan().AddRule({lost.call, lost.path_part, lost.error_number, 1, env::kFaultsForEver});
      }
      const std::unique_ptr<env::Task> back = base.Start("back", [&] {
        base.SleepNs(lost_ns);
        env.plan().RemoveRule(0);
      });
      Options options = testing::JobOptions(testing::kSimRoot, rank, 2);
      options.restore_retry_s = Options().restore_retry_s;
      options.begin_timeout_s = 300;
      testing::Rank body(env, *hub, options);
      testing::RankState state(rank, 2);
      const absl::StatusOr<Moment> moment = testing::RestoreAndCheck(body.engine(), state, std::nullopt);
      outcome.took_ns = std::max(outcome.took_ns, base.MonotonicNs() - begun_ns);
      outcome.statuses[static_cast<size_t>(rank)] = moment.status();
      if (moment.ok()) outcome.restored[static_cast<size_t>(rank)] = *moment;
      body.engine().Close(-1).IgnoreError();
      back->Join();
    });
  }
  REQUIRE(world.Run() == absl::OkStatus());
  return outcome;
}

}  // namespace

TEST_CASE("A restore waits for files that are lost for less than restore_retry_s, and names one that is lost for longer (FC-19)",
          "[engine][sim]") {
  using env::FaultCall;
  const Lost lost = GENERATE(values<Lost>({
      {FaultCall::kRead, "/LAMINA"},
      {FaultCall::kOpen, "/LAMINA"},
      {FaultCall::kList, "/log"},
      {FaultCall::kRead, "/log/0"},
      {FaultCall::kStat, "/log/0"},
      {FaultCall::kSyncDirectory, "/log"},
      {FaultCall::kRead, "/000000000200/", 0},
      {FaultCall::kRead, "/000000000200/", 1},
      {FaultCall::kOpen, "/000000000200/", 1},
      {FaultCall::kStat, "/000000000200/1-1/00001.pack", 1},
      {FaultCall::kRead, "/000000000200/1-1/00001.pack", 1},
      {FaultCall::kOpen, "/000000000200/1-1/00001.pack", 1, ENOENT},
      {FaultCall::kOpen, "/LAMINA", 0, ENOENT},
  }));
  CAPTURE(lost.path_part, lost.rank, lost.error_number, static_cast<int>(lost.call));
  env::SimWorld world({.seed = 1});
  const testing::SimJob job(world, "job", 2, {.saves = {100, 200}});
  REQUIRE(world.Run() == absl::OkStatus());
  REQUIRE(job.AllOk());

  const Ended survived = RestoreWith(world, lost, 25 * kSecondNs);
  for (size_t rank = 0; rank < 2; ++rank) {
    INFO(survived.statuses[rank]);
    REQUIRE(survived.restored[rank] == Moment{200, 1});
  }
  REQUIRE(survived.took_ns >= 25 * kSecondNs);

  const Ended raised = RestoreWith(world, lost, 200 * kSecondNs);
  REQUIRE(raised.took_ns >= 30 * kSecondNs);
  REQUIRE(raised.took_ns < 45 * kSecondNs);
  for (size_t rank = 0; rank < 2; ++rank) {
    INFO(raised.statuses[rank]);
    if (lost.error_number == ENOENT && lost.path_part == "/000000000200/1-1/00001.pack") {
      // What stays away is damage, and an older step is taken.
      REQUIRE(raised.restored[rank] == Moment{100, 1});
      continue;
    }
    REQUIRE((lost.error_number == ENOENT ? absl::IsDataLoss(raised.statuses[rank]) : absl::IsUnavailable(raised.statuses[rank])));
    REQUIRE(absl::StrContains(raised.statuses[rank].message(), lost.path_part.substr(1)));
    if (lost.error_number == ESTALE) REQUIRE(absl::StrContains(raised.statuses[rank].message(), "for 30 s"));
  }
}

}  // namespace lamina
