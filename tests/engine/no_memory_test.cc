// Memory that runs out on a thread of the engine's: it costs one save or one restore, and never the process.
#include <atomic>
#include <catch2/catch.hpp>
#include <new>

#include "base/units.h"
#include "testing/checks.h"
#include "testing/sim_job.h"
#include "testing/thread_job.h"

namespace lamina {
namespace {

using testing::All;
using testing::Checked;
using testing::Found;
using testing::Moment;
using testing::RequireOk;
using testing::RootIn;
using testing::ScratchDirectory;
using testing::ThreadJob;

bool Tells(const absl::Status& status) { return std::string(status.message()).find("there is not enough memory") != std::string::npos; }

// Has no memory for its n-th call from `FailAt` on.
class ForgetfulCoordinator final : public coord::Coordinator {
 public:
  explicit ForgetfulCoordinator(coord::Coordinator& base) : base_(base) {}
  void FailAt(int64_t call) { left_ = call; }
  bool hit() const { return left_ <= 0; }

  absl::Status Set(const std::string& key, std::string_view value) override {
    Count();
    return base_.Set(key, value);
  }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override {
    Count();
    return base_.Get(key);
  }
  absl::StatusOr<bool> Check(const std::string& key) override {
    Count();
    return base_.Check(key);
  }
  absl::Status Delete(const std::string& key) override {
    Count();
    return base_.Delete(key);
  }

 private:
  void Count() {
    if (--left_ == 0) throw std::bad_alloc();
  }

  coord::Coordinator& base_;
  std::atomic<int64_t> left_ = INT64_MAX;
};

}  // namespace

TEST_CASE("Memory that runs out while a rank's pack is written is told on all ranks", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3);
  RequireOk(job.Save({1, 1}));
  const env::FaultCall call = GENERATE(env::FaultCall::kCreate, env::FaultCall::kWrite, env::FaultCall::kSync);
  job.faults(1).AddRule({.call = call, .path_part = "00001.pack", .error_number = env::kNoMemory, .first = 1, .count = 1});
  for (const absl::Status& status : job.Save({2, 1})) {
    INFO(status);
    REQUIRE(absl::IsResourceExhausted(status));
    REQUIRE(Tells(status));
    REQUIRE(base::DetailOf(status, base::kRankDetail) == "1");
  }
  RequireOk(job.Save({3, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(job.env(), RootIn(scratch)).line == std::vector<Moment>{{3, 1}, {1, 1}});
}

TEST_CASE("Memory that runs out at any call of a save, to a file or to another rank, fails that save at most", "[engine]") {
  constexpr size_t kRanks = 2;
  constexpr int64_t kMeetNs = 1000 * base::kSecondNs;  // by then a rank that heard nothing has asked the log
  env::SimThreads threads;
  const int32_t victim = GENERATE(0, 1);
  const bool in_files = GENERATE(true, false);
  bool hit = true;
  bool failed = false;
  for (int64_t call = 1; hit; ++call) {
    INFO("no memory at call " << call << (in_files ? " to a file" : " to the coordinator") << " of rank " << victim);
    env::SimWorld world({.seed = static_cast<uint64_t>(call), .threads = &threads});
    const auto hub = std::make_shared<coord::InProcessHub>();
    std::vector<absl::Status> statuses(kRanks, absl::UnknownError("did not end"));
    std::vector<absl::Status> others(kRanks, absl::UnknownError("did not end"));
    for (int32_t rank = 0; rank < std::ssize(statuses); ++rank) {
      world.Start(world.NewProcess(absl::StrCat("rank", rank)), [&, hub, rank](env::Env& sim) {
        env::FaultEnv env(sim);
        Options options = testing::JobOptions(testing::kSimRoot, rank, kRanks);
        options.save_timeout_s = 20;
        coord::InProcessCoordinator sound(env, *hub);
        ForgetfulCoordinator forgetful(sound);
        testing::Rank body(env, *hub, options, 1, tier::kRecordsKept, &forgetful);
        testing::RankState state(rank, kRanks);
        const auto save = [&](int64_t step) -> absl::Status {
          LAMINA_ASSIGN_OR_RETURN(const std::shared_ptr<SaveHandle> handle, testing::BeginSave(body.engine(), state, {step, 1}));
          return testing::Await(*handle);
        };
        absl::Status& other = others[static_cast<size_t>(rank)];
        other = save(1);
        if (!other.ok()) return;
        if (rank == victim && in_files) {
          env.plan().AddRule({.call = {}, .path_part = "/run/", .error_number = env::kNoMemory, .first = call, .count = 1});
        } else if (rank == victim) {
          forgetful.FailAt(call);
        }
        statuses[static_cast<size_t>(rank)] = save(2);
        if (rank == victim) {
          hit = forgetful.hit() || env.plan().fault_count() > 0;
          env.plan().RemoveRule(0);
          forgetful.FailAt(INT64_MAX);
        }
        env.SleepNs(kMeetNs - world.now_ns());
        other = save(3);
        other.Update(body.engine().Close(-1));
      });
    }
    REQUIRE(world.Run() == absl::OkStatus());
    RequireOk(others);
    INFO(statuses[0]);
    INFO(statuses[1]);
    REQUIRE((hit || All(statuses).ok()));
    const Found found = Checked(world.NewProcess("reader"), testing::kSimRoot);
    for (const absl::Status& status : statuses) {
      // A rank may not know the outcome; it never takes a failure for a commit or the reverse.
      if (status.ok()) REQUIRE(found.Has({2, 1}));
      if (absl::IsResourceExhausted(status)) REQUIRE(!found.Has({2, 1}));
    }
    failed = failed || absl::IsResourceExhausted(statuses[0]);
    REQUIRE(found.line.front() == Moment{3, 1});
    REQUIRE(found.line.back() == Moment{1, 1});
  }
  REQUIRE(failed);
}

TEST_CASE("Memory that runs out at any call of a restore fails that restore at most, on all ranks", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  RequireOk(job.Save({1, 1}));
  const int32_t rank = GENERATE(0, 1);
  const std::string where = GENERATE("/log", "/steps/");
  bool failed = false;
  bool hit = true;
  int64_t faults = 0;
  for (int64_t call = 1; hit; ++call) {
    INFO("no memory at call " << call << " of rank " << rank);
    const int64_t rule =
        job.faults(rank).AddRule({.call = {}, .path_part = where, .error_number = env::kNoMemory, .first = call, .count = 1});
    const std::vector<absl::Status> statuses = job.Restore(1);
    job.faults(rank).RemoveRule(rule);
    hit = job.faults(rank).fault_count() > faults;
    faults = job.faults(rank).fault_count();
    INFO(statuses[0]);
    INFO(statuses[1]);
    REQUIRE(statuses[0].ok() == statuses[1].ok());
    REQUIRE((hit || statuses[0].ok()));
    for (const absl::Status& status : statuses) REQUIRE((status.ok() || absl::IsResourceExhausted(status)));
    failed = failed || !statuses[0].ok();
  }
  REQUIRE((failed || (rank == 1 && where == "/log")));  // the leader alone asks the log
  RequireOk(job.Restore(1));
  RequireOk(job.Save({2, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(job.env(), RootIn(scratch)).line == std::vector<Moment>{{2, 1}, {1, 1}});
}

}  // namespace lamina
