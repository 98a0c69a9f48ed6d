#include "coord/file_meeting.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/units.h"
#include "env/sim_env.h"

namespace lamina::coord {
namespace {

constexpr char kDirectory[] = "/ckpt/meeting";
constexpr char kForeignFile[] = "/ckpt/meeting/notes.txt";

struct Came {
  absl::Status status = absl::UnknownError("did not end");
  std::string nonce;
};

// Starts one rank; `then` runs when it has met the others.
void StartRank(env::SimWorld& world, env::SimProcess& process, const FileMeetingOptions& options, Came& came, bool leave = false) {
  world.Start(process, [&came, options, leave](env::Env& env) {
    absl::StatusOr<std::unique_ptr<FileMeeting>> meeting = FileMeeting::Join(env, options);
    came.status = meeting.status();
    if (!meeting.ok()) return;
    came.nonce = (*meeting)->nonce();
    if (leave) came.status = (*meeting)->Leave();
  });
}

FileMeetingOptions RankOptions(int32_t rank, int32_t rank_count) { return {kDirectory, "job", rank, rank_count, 5}; }

std::vector<Came> Launch(env::SimWorld& world, const std::string& name, int32_t rank_count, bool leave) {
  std::vector<Came> came(static_cast<size_t>(rank_count));
  for (int32_t rank = 0; rank < rank_count; ++rank) {
    StartRank(world, world.NewProcess(name + std::to_string(rank), rank % 2 == 0 ? "host0" : "host1"), RankOptions(rank, rank_count),
              came[static_cast<size_t>(rank)], leave);
  }
  REQUIRE(world.Run().ok());
  return came;
}

TEST_CASE("The ranks of a launch meet, whatever earlier launches left, and leave nothing", "[coord][sim]") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const int64_t stale_ns = seed % 2 == 0 ? 0 : 300 * base::kMillisecondNs;
    env::SimWorld world({.seed = seed, .stale_ns = stale_ns, .latency_ns_max = base::kMillisecondNs, .switch_probability = 0.3});
    const std::vector<Came> killed = Launch(world, "killed", 3, /*leave=*/false);
    const std::vector<Came> next = Launch(world, "next", 3, /*leave=*/true);
    for (const Came& came : killed) {
      INFO(came.status);
      REQUIRE(came.status.ok());
      REQUIRE(came.nonce == killed[0].nonce);
    }
    for (const Came& came : next) {
      INFO(came.status);
      REQUIRE(came.status.ok());
      REQUIRE(came.nonce == next[0].nonce);
      REQUIRE(came.nonce != killed[0].nonce);
    }
    // Ranks that do not see each other leave at the same moment leave it to a later launch.
    if (stale_ns > 0) continue;
    for (const auto& [path, bytes] : world.Files()) REQUIRE(path.find(next[0].nonce) == std::string::npos);
  }
}

TEST_CASE("A launch whose rank 0 dies in the meeting is followed by one that meets", "[coord][sim]") {
  for (int64_t kill = 0; kill < 40; kill += 3) {
    env::SimWorld world({.seed = 11 + static_cast<uint64_t>(kill)});
    std::vector<Came> first(2);
    env::SimProcess& leader = world.NewProcess("first/0");
    env::SimProcess& follower = world.NewProcess("first/1");
    world.KillAtOp(leader, kill);
    StartRank(world, leader, RankOptions(0, 2), first[0]);
    StartRank(world, follower, RankOptions(1, 2), first[1]);
    REQUIRE(world.Run().ok());
    const bool in_time = first[1].status.ok() || absl::IsDeadlineExceeded(first[1].status);
    REQUIRE(in_time);
    const std::vector<Came> next = Launch(world, "next", 2, /*leave=*/true);
    for (const Came& came : next) {
      INFO("kill " << kill << ": " << came.status);
      REQUIRE(came.status.ok());
    }
    REQUIRE(next[0].nonce == next[1].nonce);
  }
}

TEST_CASE("A rank that waits is taken by the rank 0 that comes in place of a dead one", "[coord][sim]") {
  env::SimWorld world({.seed = 4});
  Came follower;
  Came dead;
  Came leader;
  env::SimProcess& dying = world.NewProcess("dead/0");
  world.KillAtOp(dying, 8);  // it has called
  StartRank(world, dying, RankOptions(0, 2), dead);
  REQUIRE(world.Run().ok());
  REQUIRE(!world.Files().empty());
  StartRank(world, world.NewProcess("1"), RankOptions(1, 2), follower);
  env::SimProcess& late = world.NewProcess("0");
  world.Start(late, [&](env::Env& env) {
    env.SleepNs(base::kSecondNs);
    const absl::StatusOr<std::unique_ptr<FileMeeting>> meeting = FileMeeting::Join(env, RankOptions(0, 2));
    leader.status = meeting.status();
    if (meeting.ok()) leader.nonce = (*meeting)->nonce();
  });
  REQUIRE(world.Run().ok());
  REQUIRE(leader.status.ok());
  REQUIRE(follower.status.ok());
  REQUIRE(follower.nonce == leader.nonce);
}

TEST_CASE("A rank that does not come is named", "[coord][sim]") {
  env::SimWorld world({.seed = 6});
  std::vector<Came> came(3);
  for (const int32_t rank : {0, 2}) StartRank(world, world.NewProcess("rank"), RankOptions(rank, 3), came[static_cast<size_t>(rank)]);
  REQUIRE(world.Run().ok());
  REQUIRE(absl::IsDeadlineExceeded(came[0].status));
  REQUIRE_THAT(std::string(came[0].status.message()), Catch::EndsWith("within 5 s: 1"));
  REQUIRE(absl::IsDeadlineExceeded(came[2].status));
  REQUIRE_THAT(std::string(came[2].status.message()), Catch::Contains("rank 2") && Catch::Contains("by rank 0"));
}

TEST_CASE("Ranks that disagree on how many they are do not meet", "[coord][sim]") {
  env::SimWorld world({.seed = 7});
  std::vector<Came> came(2);
  StartRank(world, world.NewProcess("0"), RankOptions(0, 2), came[0]);
  StartRank(world, world.NewProcess("1"), RankOptions(1, 3), came[1]);
  REQUIRE(world.Run().ok());
  REQUIRE(absl::IsInvalidArgument(came[1].status));
  REQUIRE_THAT(std::string(came[1].status.message()), Catch::Contains("rank_count 2") && Catch::Contains("with 3"));
}

TEST_CASE("Jobs of other names use the directory at the same time", "[coord][sim]") {
  env::SimWorld world({.seed = 8});
  std::vector<Came> came(4);
  for (int32_t process = 0; process < 4; ++process) {
    FileMeetingOptions options = RankOptions(process % 2, 2);
    options.job = process < 2 ? "a" : "b";
    StartRank(world, world.NewProcess(options.job), options, came[static_cast<size_t>(process)], /*leave=*/true);
  }
  REQUIRE(world.Run().ok());
  for (const Came& each : came) REQUIRE(each.status.ok());
  REQUIRE(came[0].nonce == came[1].nonce);
  REQUIRE(came[2].nonce == came[3].nonce);
  REQUIRE(came[0].nonce != came[2].nonce);
  REQUIRE(world.Files().empty());
}

TEST_CASE("What a killed launch left goes after a week, and foreign files stay", "[coord][sim]") {
  env::SimWorld world({.seed = 9});
  env::SimProcess& foreign = world.NewProcess("foreign");
  Launch(world, "killed", 2, /*leave=*/false);
  REQUIRE(foreign.files().Touch(kForeignFile).ok());
  const size_t left = world.Files().size();
  Launch(world, "soon", 2, /*leave=*/true);
  REQUIRE(world.Files().size() == left - 1);  // without the call that it answered with its own
  foreign.SleepNs(8 * 24 * 3600 * base::kSecondNs);
  Launch(world, "late", 2, /*leave=*/true);
  REQUIRE(world.Files().size() == 1);
  REQUIRE(world.Files().count(kForeignFile) == 1);
}

}  // namespace
}  // namespace lamina::coord
