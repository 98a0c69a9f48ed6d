#include "coord/file_coordinator.h"

#include <catch2/catch.hpp>
#include <cerrno>

#include "base/units.h"
#include "env/fault_env.h"
#include "env/posix_env.h"
#include "env/sim_env.h"
#include "testing/coordinator_suite.h"
#include "testing/scratch_directory.h"

namespace lamina::coord {
namespace {

std::vector<std::string> NamesIn(env::Env& env, const std::string& directory) {
  std::vector<std::string> names;
  const std::vector<env::DirectoryEntry> entries = env.files().List(directory).value();
  for (const env::DirectoryEntry& entry : entries) names.push_back(entry.name);
  return names;
}

TEST_CASE("The file coordinator does what every Coordinator must", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  const testing::ScratchDirectory scratch;
  FileCoordinator one(*env, scratch.path());
  FileCoordinator two(*env, scratch.path());
  testing::CheckCoordinator(one, two);
}

TEST_CASE("The file coordinator does so between simulated processes", "[coord][sim]") {
  env::SimWorld world({.seed = 3, .latency_ns_max = base::kMillisecondNs, .short_writes = true});
  FileCoordinator one(world.NewProcess("one"), "/ckpt");
  FileCoordinator two(world.NewProcess("two", "host1"), "/ckpt");
  testing::CheckCoordinator(one, two);
}

TEST_CASE("Keys never become paths, and none is mistaken for another", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  const testing::ScratchDirectory scratch;
  const std::string inner = scratch.path() + "/inner";
  REQUIRE(env->files().MakeDirectory(inner).ok());
  FileCoordinator coordinator(*env, inner);
  const std::vector<std::string> keys = {
      "..", "../a", "/a", "a+b", "a/b", "a~", "a~1", "a%2b", "", ".tmp-0000000000000000", std::string("\0\xff\n", 3)};
  for (const std::string& key : keys) REQUIRE(coordinator.Set(key, "value of " + key).ok());
  for (const std::string& key : keys) REQUIRE(coordinator.Get(key).value() == "value of " + key);
  REQUIRE(NamesIn(*env, scratch.path()) == std::vector<std::string>{"inner"});
  REQUIRE(NamesIn(*env, inner).size() == keys.size());
  REQUIRE(absl::IsInvalidArgument(coordinator.Set(std::string(201, 'k'), "")));
  REQUIRE(absl::IsInvalidArgument(coordinator.Set("large", std::string((1 << 20) + 1, 'x'))));
  REQUIRE(coordinator.DeleteAll().ok());
  REQUIRE(NamesIn(*env, inner).empty());
}

TEST_CASE("A key that is set again and again is there at every look, whole, and goes only forwards", "[coord][sim]") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    env::SimWorld world({.seed = seed, .latency_ns_max = base::kMillisecondNs, .short_writes = true, .switch_probability = 0.5});
    env::SimProcess& setter = world.NewProcess("setter");
    env::SimProcess& getter = world.NewProcess("getter", "host1");
    const auto value = [](int round) { return std::string(100, static_cast<char>('a' + round)); };
    REQUIRE(FileCoordinator(setter, "/ckpt").Set("key", value(0)).ok());
    absl::Status set;
    std::vector<std::string> seen;
    world.Start(setter, [&](env::Env& env) {
      FileCoordinator coordinator(env, "/ckpt");
      for (int round = 1; round < 8 && set.ok(); ++round) set = coordinator.Set("key", value(round));
    });
    world.Start(getter, [&](env::Env& env) {
      FileCoordinator coordinator(env, "/ckpt");
      for (int look = 0; look < 16; ++look) {
        const absl::StatusOr<std::optional<std::string>> found = coordinator.Get("key");
        seen.push_back(found.ok() && found->has_value() ? **found : "");
      }
    });
    REQUIRE(world.Run().ok());
    REQUIRE(set.ok());
    REQUIRE(std::is_sorted(seen.begin(), seen.end()));
    for (const std::string& text : seen) REQUIRE(text == value(text.empty() ? 0 : text[0] - 'a'));
    REQUIRE(world.Files().size() == 1);
  }
}

TEST_CASE("A rank that dies while it sets leaves the value before or its own, never a part", "[coord][sim]") {
  const std::string before(64, 'b');
  const std::string after(64, 'a');
  bool finished = false;
  for (int64_t cut = 0; !finished; ++cut) {
    env::SimWorld world({.seed = 5, .lose_all_unsynced = true, .short_writes = true});
    env::SimProcess& setter = world.NewProcess("setter");
    env::SimProcess& other = world.NewProcess("other", "host1");
    REQUIRE(FileCoordinator(other, "/ckpt").Set("key", before).ok());
    world.set_on_op([&](const env::SimOp& op) {
      if (&op.process == &setter && op.number_in_process == cut) world.KillHost("host0");
    });
    absl::Status set = absl::UnknownError("did not end");
    world.Start(setter, [&](env::Env& env) { set = FileCoordinator(env, "/ckpt").Set("key", after); });
    REQUIRE(world.Run().ok());
    const std::string found = FileCoordinator(other, "/ckpt").Get("key").value().value_or("");
    REQUIRE((found == after || (found == before && !set.ok())));
    finished = set.ok();
  }
}

TEST_CASE("A stale handle is asked for again, an answer that is lost is no failure", "[coord][sim]") {
  env::SimWorld world({.seed = 2});
  env::SimProcess& process = world.NewProcess("rank");
  FileCoordinator coordinator(process, "/ckpt");
  absl::Status set;
  absl::StatusOr<std::optional<std::string>> found;
  world.AddFault({.what = "link", .error_number = EEXIST, .takes_effect = true});
  world.AddFault({.what = "list", .error_number = ESTALE});
  world.AddFault({.what = "open", .error_number = ESTALE});
  world.AddFault({.what = "read", .error_number = ESTALE});
  REQUIRE(world
              .Run(process,
                   [&](env::Env&) {
                     set = coordinator.Set("key", "value");
                     found = coordinator.Get("key");
                   })
              .ok());
  REQUIRE(set.ok());
  REQUIRE(found.value() == "value");
}

TEST_CASE("A directory that is gone makes the coordinator unavailable", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  const testing::ScratchDirectory scratch;
  FileCoordinator coordinator(*env, scratch.path() + "/gone");
  REQUIRE(absl::IsUnavailable(coordinator.Set("key", "value")));
  REQUIRE(absl::IsUnavailable(coordinator.Get("key").status()));
  REQUIRE(absl::IsUnavailable(coordinator.Delete("key")));
}

}  // namespace
}  // namespace lamina::coord
