#include "coord/coordinator.h"

#include <catch2/catch.hpp>

#include "base/units.h"
#include "coord/in_process.h"
#include "env/posix_env.h"

namespace lamina::coord {
namespace {

TEST_CASE("Await returns a value that is there, deadline or not", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  InProcessHub hub;
  InProcessCoordinator coordinator(*env, hub);
  REQUIRE(coordinator.Set("key", "value").ok());
  REQUIRE(Await(*env, coordinator, "key", 0).value() == "value");
  REQUIRE(Await(*env, coordinator, "key", env::kForeverNs).value() == "value");
}

TEST_CASE("Await sees a value that another rank sets later", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  InProcessHub hub;
  InProcessCoordinator waiter(*env, hub);
  InProcessCoordinator setter(*env, hub);
  absl::StatusOr<std::string> value;
  const std::unique_ptr<env::Task> task = env->Start("waiter", [&] { value = Await(*env, waiter, "key", env::kForeverNs); });
  REQUIRE(setter.Set("key", "value").ok());
  task->Join();
  REQUIRE(value.value() == "value");
}

TEST_CASE("Await names the key that did not come", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  InProcessHub hub;
  InProcessCoordinator coordinator(*env, hub);
  const int64_t deadline = env->MonotonicNs() + 3 * base::kMillisecondNs;
  const absl::Status status = Await(*env, coordinator, "rank 3's vote", deadline).status();
  REQUIRE(absl::IsDeadlineExceeded(status));
  REQUIRE_THAT(std::string(status.message()), Catch::Contains("rank 3's vote"));
  REQUIRE(env->MonotonicNs() >= deadline);
  REQUIRE(absl::IsDeadlineExceeded(Await(*env, coordinator, "key", INT64_MIN).status()));
}

TEST_CASE("Await ends at once when the store is gone", "[coord]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  InProcessHub hub;
  hub.SetGone(true);
  InProcessCoordinator coordinator(*env, hub);
  REQUIRE(absl::IsUnavailable(Await(*env, coordinator, "key", env::kForeverNs).status()));
}

}  // namespace
}  // namespace lamina::coord
