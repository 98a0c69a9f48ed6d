#include "tier/memory_tier.h"

#include <catch2/catch.hpp>

#include "env/posix_env.h"
#include "testing/tier_suite.h"

namespace lamina::tier {

TEST_CASE("MemoryTier keeps what every tier promises", "[tier]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  MemoryTier tier(*env);
  testing::CheckTier(*env, tier);
}

TEST_CASE("MemoryTier shows an object only when it is finished, and the first to finish wins", "[tier]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  MemoryTier tier(*env);
  const std::unique_ptr<ObjectWriter> one = tier.CreateObject("name").value();
  const std::unique_ptr<ObjectWriter> two = tier.CreateObject("name").value();
  REQUIRE(one->Append(base::AsBytes("one")).ok());
  REQUIRE(two->Append(base::AsBytes("two")).ok());
  REQUIRE(absl::IsNotFound(tier.Stat("name").status()));
  REQUIRE(two->Finish().ok());
  REQUIRE(absl::IsAlreadyExists(one->Finish()));
  REQUIRE(testing::TextOf(tier, "name") == "two");
}

}  // namespace lamina::tier
