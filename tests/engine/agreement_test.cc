#include "engine/agreement.h"

#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "env/posix_env.h"
#include "env/sim_env.h"
#include "testing/job.h"

using namespace lamina;
using namespace lamina::engine;

namespace {

// A coordinator whose keys can be looked at.
class OpenMap : public coord::Coordinator {
 public:
  absl::Status Set(const std::string& key, std::string_view value) override {
    map[key] = std::string(value);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override {
    const auto found = map.find(key);
    return found == map.end() ? std::nullopt : std::optional(found->second);
  }
  absl::StatusOr<bool> Check(const std::string& key) override { return map.contains(key); }
  absl::Status Delete(const std::string& key) override {
    map.erase(key);
    return absl::OkStatus();
  }

  std::map<std::string, std::string> map;
};

// Serves nobody for a while from the first word of this kind on, as a thread that needs the GIL while a long call holds it.
class StallingCoordinator : public coord::InProcessCoordinator {
 public:
  StallingCoordinator(env::Env& env, coord::InProcessHub& hub, std::string word, int64_t stall_ns)
      : InProcessCoordinator(env, hub), env_(env), word_(std::move(word)), stall_ns_(stall_ns) {}
  absl::Status Set(const std::string& key, std::string_view value) override {
    if (until_ns_ == 0 && absl::StrContains(key, word_)) until_ns_ = env_.MonotonicNs() + stall_ns_;
    Stall();
    return InProcessCoordinator::Set(key, value);
  }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override {
    Stall();
    return InProcessCoordinator::Get(key);
  }

 private:
  void Stall() {
    while (env_.MonotonicNs() < until_ns_) env_.SleepNs(100 * base::kMillisecondNs);
  }
  env::Env& env_;
  const std::string word_;
  const int64_t stall_ns_;
  int64_t until_ns_ = 0;
};

// Takes no beat for a while from the first one on, and everything else at once.
class BeatlessCoordinator : public coord::InProcessCoordinator {
 public:
  BeatlessCoordinator(env::Env& env, coord::InProcessHub& hub, int64_t stall_ns)
      : InProcessCoordinator(env, hub), env_(env), stall_ns_(stall_ns) {}
  absl::Status Set(const std::string& key, std::string_view value) override {
    if (absl::StrContains(key, "beat/")) env_.SleepNs(std::exchange(stall_ns_, 0));
    return InProcessCoordinator::Set(key, value);
  }

 private:
  env::Env& env_;
  int64_t stall_ns_;
};

// Runs a job of two ranks on one root, and gives what each was told.
std::array<testing::Told, 2> RunTwoRanks(const std::function<void(int32_t, env::Env&, coord::InProcessHub&, testing::Told&)>& body) {
  env::SimThreads threads;
  env::SimWorldOptions options;
  options.threads = &threads;
  env::SimWorld world(options);
  coord::InProcessHub hub;
  std::array<testing::Told, 2> told;
  for (int32_t rank = 0; rank < 2; ++rank) {
    world.Start(world.NewProcess(absl::StrCat("rank ", rank)),
                [&, rank](env::Env& env) { body(rank, env, hub, told[static_cast<size_t>(rank)]); });
  }
  REQUIRE(world.Run().ok());
  REQUIRE(world.Names("/ckpt/run/writers").empty());
  return told;
}

}  // namespace

TEST_CASE("A rank whose coordinator is not served for longer than all timeouts does not fail the save", "[engine]") {
  const std::string word = GENERATE("/first/begin/", "/ready/", "/vote/");
  const int32_t stalled = GENERATE(0, 1);
  const auto told = RunTwoRanks([&](int32_t rank, env::Env& env, coord::InProcessHub& hub, testing::Told& mine) {
    StallingCoordinator coordinator(env, hub, word, rank == stalled ? 40 * base::kSecondNs : 0);
    Options options = testing::JobOptions("/ckpt/run", rank, 2);  // beat_timeout_s is 2
    options.begin_timeout_s = 5;
    testing::Rank body(env, hub, options, 1, tier::kRecordsKept, &coordinator);
    mine.status = testing::RunScript(body, {.saves = {1, 2}}, mine);
  });
  for (const testing::Told& each : told) {
    INFO(each.status);
    REQUIRE(each.status.ok());
    for (const auto& [step, status] : each.saves) {
      INFO(status);
      REQUIRE(status.ok());
    }
  }
}

TEST_CASE("Closing does not wait for a beat that the coordinator does not take", "[engine]") {
  constexpr int64_t kStallNs = 60 * base::kSecondNs;
  std::array<bool, 2> hung{};   // when it had closed
  std::array<bool, 2> hangs{};  // when it ended
  const auto told = RunTwoRanks([&](int32_t rank, env::Env& env, coord::InProcessHub& hub, testing::Told& mine) {
    BeatlessCoordinator coordinator(env, hub, rank == 1 ? kStallNs : 0);
    testing::Rank body(env, hub, testing::JobOptions("/ckpt/run", rank, 2), 1, tier::kRecordsKept, &coordinator);
    const int64_t begun_ns = env.MonotonicNs();
    mine.status = testing::RunScript(body, {.saves = {1}}, mine);
    hung[static_cast<size_t>(rank)] = body.engine().BeatHangs() && env.MonotonicNs() - begun_ns < kStallNs / 2;
    env.SleepNs(kStallNs);
    hangs[static_cast<size_t>(rank)] = body.engine().BeatHangs();
  });
  for (const testing::Told& each : told) {
    INFO(each.status);
    REQUIRE(each.status.ok());
    REQUIRE(each.saves == std::vector<std::pair<int64_t, absl::Status>>{{1, absl::OkStatus()}});
  }
  REQUIRE(hung == std::array{false, true});
  REQUIRE(hangs == std::array{false, false});
}

TEST_CASE("A rank is silent when neither its beats nor its sign of life move", "[engine]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  OpenMap map;
  Options options;
  options.beat_s = 0.01;
  options.beat_timeout_s = 0.1;
  const bool moves = GENERATE(false, true);
  int64_t asked = 0;
  Agreement agreement(*env, map, options, [&](int32_t) { return std::optional<int64_t>(moves ? ++asked : 7); });
  const absl::Status heard = agreement.Hear("key", 0, {.what = "a word", .deadline_ns = DeadlineAfter(*env, 2)}).status();
  INFO(heard);
  REQUIRE(absl::IsDeadlineExceeded(heard) == moves);
  REQUIRE(absl::IsUnavailable(heard) == !moves);
}

TEST_CASE("A message of any size is said, looked at and forgotten without a rest", "[engine]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  OpenMap map;
  Agreement agreement(*env, map, Options{});
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{512} << 10, (size_t{512} << 10) + 1, size_t{3} << 20}) {
    std::string said(bytes, 'x');
    if (bytes > 0) said.back() = 'y';
    REQUIRE(agreement.Say("description/0", said).ok());
    REQUIRE(map.map.size() == (bytes <= (size_t{512} << 10) ? 1 : 1 + (bytes + (size_t{512} << 10) - 1) / (size_t{512} << 10)));
    REQUIRE(agreement.Look("description/0").value() == said);
    agreement.Forget("description/0");
    REQUIRE(map.map.empty());
    REQUIRE_FALSE(agreement.Look("description/0")->has_value());
  }
}

TEST_CASE("A rank that falls silent is named with its last beat", "[engine]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  OpenMap map;
  Options options;
  options.rank_count = 2;
  options.beat_s = 0.01;
  options.beat_timeout_s = 0.05;
  Agreement waiting(*env, map, options);
  options.rank = 1;
  Agreement silent(*env, map, options);
  const Patience patience{.what = "the vote"};
  const absl::Status unheard = waiting.Hear("vote/1", 1, patience).status();
  CHECK(base::DetailOf(unheard, base::kRankDetail) == "1");
  CHECK(!base::DetailOf(unheard, base::kPhaseDetail).has_value());
  silent.Beat("asking hooks", 7);
  const absl::Status status = waiting.Hear("vote/1", 1, patience).status();
  INFO(status);
  REQUIRE(absl::IsUnavailable(status));
  REQUIRE(std::string(status.message()).find("rank 1 was last heard of asking hooks, with 7 bytes done") != std::string::npos);
  REQUIRE(base::DetailOf(status, base::kRankDetail) == "1");
  REQUIRE(base::DetailOf(status, base::kPhaseDetail) == "asking hooks");
}

TEST_CASE("A key that holds no message is an Internal status", "[engine]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  OpenMap map;
  Agreement agreement(*env, map, Options{});
  REQUIRE(agreement.Say("k", "x").ok());
  for (const char* head : {"", "p", "pp", "p-1", "p0", "q3", "p99999999999999999999"}) {
    map.map.begin()->second = head;
    CHECK(agreement.Look("k").status().code() == absl::StatusCode::kInternal);
  }
  map.map.begin()->second = "p2";
  CHECK(agreement.Look("k").status().code() == absl::StatusCode::kUnavailable);
}
