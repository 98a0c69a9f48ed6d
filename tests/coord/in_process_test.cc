#include "coord/in_process.h"

#include <catch2/catch.hpp>

#include "base/units.h"
#include "env/posix_env.h"
#include "testing/coordinator_suite.h"

namespace lamina::coord {
namespace {

TEST_CASE("The in-process coordinator does what every Coordinator must", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  InProcessHub hub;
  InProcessCoordinator one(*env, hub);
  InProcessCoordinator two(*env, hub);
  testing::CheckCoordinator(one, two);
}

TEST_CASE("A hub that is gone says so and keeps its keys", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  InProcessHub hub;
  InProcessCoordinator coordinator(*env, hub);
  REQUIRE(coordinator.Set("key", "value").ok());
  hub.SetGone(true);
  REQUIRE(absl::IsUnavailable(coordinator.Set("key", "other")));
  REQUIRE(absl::IsUnavailable(coordinator.Get("key").status()));
  REQUIRE(absl::IsUnavailable(coordinator.Check("key").status()));
  REQUIRE(absl::IsUnavailable(coordinator.Delete("key")));
  hub.SetGone(false);
  REQUIRE(coordinator.Get("key").value() == "value");
  REQUIRE(hub.key_count() == 1);
}

TEST_CASE("A slow hub takes its time for each operation", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  InProcessHub hub;
  InProcessCoordinator coordinator(*env, hub);
  hub.SetDelayNs(base::kMillisecondNs);
  const int64_t before = env->MonotonicNs();
  REQUIRE(coordinator.Set("key", "value").ok());
  REQUIRE(coordinator.Check("key").value());
  REQUIRE(env->MonotonicNs() - before >= 2 * base::kMillisecondNs);
}

TEST_CASE("A value above 1 MiB is refused, naming its key", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  InProcessHub hub;
  InProcessCoordinator coordinator(*env, hub);
  const absl::Status status = coordinator.Set("large", std::string((1 << 20) + 1, 'x'));
  REQUIRE(absl::IsInvalidArgument(status));
  REQUIRE_THAT(std::string(status.message()), Catch::Contains("'large'"));
  REQUIRE(hub.key_count() == 0);
}

}  // namespace
}  // namespace lamina::coord
