#include "tier/patient_tier.h"

#include <catch2/catch.hpp>

#include <cerrno>

#include "base/status.h"
#include "base/units.h"
#include "env/posix_env.h"
#include "env/sim_env.h"
#include "testing/tier_suite.h"
#include "tier/memory_tier.h"

namespace lamina::tier {
namespace {

using base::kSecondNs;

// Fails to list with an errno until a moment.
class LostTier final : public MemoryTier {
 public:
  explicit LostTier(env::Env& env) : MemoryTier(env), env_(env) {}
  absl::StatusOr<std::vector<std::string>> ListNames(std::string_view prefix) override {
    ++asked;
    if (env_.MonotonicNs() < back_ns) return base::ErrnoStatus(error_number, "list", std::string(prefix));
    return MemoryTier::ListNames(prefix);
  }
  int error_number = ESTALE;
  int64_t back_ns = 0;
  int64_t asked = 0;

 private:
  env::Env& env_;
};

// Runs the body with a tier that has lost its lists for `lost_s` and one that asks it again for 30 s.
void WithLost(double lost_s, const std::function<void(env::Env&, LostTier&, PatientTier&)>& body) {
  env::SimWorld world({.seed = 1});
  const auto run = [&](env::Env& env) {
    LostTier lost(env);
    lost.back_ns = env.MonotonicNs() + static_cast<int64_t>(lost_s * static_cast<double>(kSecondNs));
    PatientTier patient(env, lost, {.retry_ns = 30 * kSecondNs});
    body(env, lost, patient);
  };
  REQUIRE(world.Run(world.NewProcess("reader"), run) == absl::OkStatus());
}

}  // namespace

TEST_CASE("PatientTier keeps what every tier promises", "[tier]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  MemoryTier tier(*env);
  PatientTier patient(*env, tier, {.retry_ns = kSecondNs});
  testing::CheckTier(*env, patient);
}

TEST_CASE("What is stale is asked for again, what fails otherwise is not", "[tier][sim]") {
  WithLost(20, [](env::Env& env, LostTier& lost, PatientTier& patient) {
    REQUIRE(patient.ListNames("log").ok());
    REQUIRE(env.MonotonicNs() >= lost.back_ns);
    lost.back_ns = env.MonotonicNs() + 20 * kSecondNs;  // a second time: its patience is whole again
    REQUIRE(patient.ListNames("log").ok());
    lost.error_number = GENERATE(EIO, EACCES, ENOENT);
    lost.back_ns = env.MonotonicNs() + 20 * kSecondNs;
    lost.asked = 0;
    REQUIRE_FALSE(patient.ListNames("log").ok());
    REQUIRE(lost.asked == 1);
  });
}

TEST_CASE("Patience is over once for each name", "[tier][sim]") {
  WithLost(100, [](env::Env& env, LostTier& lost, PatientTier& patient) {
    const int64_t begun_ns = env.MonotonicNs();
    for (int tries = 0; tries < 5; ++tries) {
      const absl::Status status = patient.ListNames("log").status();
      INFO(status);
      REQUIRE(absl::IsUnavailable(status));
      REQUIRE(base::ErrnoOf(status) == ESTALE);
      REQUIRE(std::string(status.message()).find("'log' was asked for again for 30 s") == 0);
    }
    REQUIRE(env.MonotonicNs() - begun_ns < 31 * kSecondNs);
    REQUIRE_FALSE(patient.ListNames("steps").ok());
    REQUIRE(env.MonotonicNs() - begun_ns > 60 * kSecondNs);
    env.SleepNs(lost.back_ns - env.MonotonicNs());
    REQUIRE(patient.ListNames("log").ok());
  });
}

TEST_CASE("Who reads the log waits for LAMINA where there are records, and not in an empty root", "[tier][sim]") {
  env::SimWorld world({.seed = 1});
  const auto run = [](env::Env& env) {
    MemoryTier tier(env);
    PatientTier patient(env, tier, LogPatience(tier, 30 * kSecondNs));
    const int64_t begun_ns = env.MonotonicNs();
    REQUIRE(absl::IsNotFound(patient.OpenObject("LAMINA").status()));
    REQUIRE(env.MonotonicNs() - begun_ns < kSecondNs);
    REQUIRE(tier.PutIfAbsent("log/000000000001", "record").ok());
    REQUIRE(absl::IsNotFound(patient.OpenObject("log/000000000002").status()));
    REQUIRE(env.MonotonicNs() - begun_ns < kSecondNs);
    REQUIRE(absl::IsNotFound(patient.OpenObject("LAMINA").status()));
    REQUIRE(env.MonotonicNs() - begun_ns >= 30 * kSecondNs);
  };
  REQUIRE(world.Run(world.NewProcess("reader"), run) == absl::OkStatus());
}

}  // namespace lamina::tier
