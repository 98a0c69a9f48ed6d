#include "hooks/verdicts.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/units.h"
#include "env/posix_env.h"

namespace lamina::hooks {
namespace {

class Refuser final : public VerdictHook {
 public:
  explicit Refuser(int64_t step) : step_(step) {}
  std::optional<std::string> MayCommit(int64_t step) override {
    if (step == step_) return "not this one";
    return std::nullopt;
  }

 private:
  const int64_t step_;
};

class Thrower final : public VerdictHook {
 public:
  std::optional<std::string> MayRestore(int64_t) override {
    ++calls;
    throw std::runtime_error("boom");
  }
  int calls = 0;
};

// Does not answer before it is let go.
class Staller final : public VerdictHook {
 public:
  explicit Staller(env::Env& env) : env_(env) {}
  std::optional<std::string> MayCommit(int64_t) override {
    while (!released) env_.SleepNs(base::kMillisecondNs);
    return "too late";
  }
  std::atomic<bool> released = false;

 private:
  env::Env& env_;
};

}  // namespace

TEST_CASE("A refusal names the hook and the reason, and only where it refuses", "[hooks]") {
  const auto env = env::NewPosixEnv();
  Verdicts verdicts(*env, 60 * base::kSecondNs, [](std::string) { FAIL(); });
  REQUIRE(verdicts.Refusal(VerdictKind::kMayCommit, 1) == std::nullopt);
  verdicts.Add("first", std::make_shared<Refuser>(1));
  verdicts.Add("second", std::make_shared<Refuser>(2));
  REQUIRE(verdicts.Refusal(VerdictKind::kMayCommit, 2) == "may_commit of step 2: second: not this one");
  REQUIRE(verdicts.Refusal(VerdictKind::kMayCommit, 1) == "may_commit of step 1: first: not this one");
  REQUIRE(verdicts.Refusal(VerdictKind::kMayCommit, 3) == std::nullopt);
  REQUIRE(verdicts.Refusal(VerdictKind::kMayRestore, 1) == std::nullopt);
}

TEST_CASE("A hook that throws does not refuse, is reported, and is asked no more", "[hooks]") {
  const auto env = env::NewPosixEnv();
  std::vector<std::string> lines;
  Verdicts verdicts(*env, 60 * base::kSecondNs, [&](std::string line) { lines.push_back(std::move(line)); });
  const auto thrower = std::make_shared<Thrower>();
  verdicts.Add("thrower", thrower);
  for (int64_t step = 1; step <= 3; ++step) REQUIRE(verdicts.Refusal(VerdictKind::kMayRestore, step) == std::nullopt);
  REQUIRE(thrower->calls == 1);
  REQUIRE(lines.size() == 1);
  REQUIRE(lines[0].find("thrower threw boom at may_restore of step 1") != std::string::npos);
}

TEST_CASE("A hook that does not answer in time does not refuse, and others are asked on", "[hooks]") {
  const auto env = env::NewPosixEnv();
  std::vector<std::string> lines;
  const auto staller = std::make_shared<Staller>(*env);
  Verdicts verdicts(*env, 2 * base::kSecondNs, [&](std::string line) { lines.push_back(std::move(line)); });
  verdicts.Add("staller", staller);
  verdicts.Add("refuser", std::make_shared<Refuser>(2));
  REQUIRE(verdicts.Refusal(VerdictKind::kMayCommit, 1) == std::nullopt);
  REQUIRE(lines.size() == 1);
  REQUIRE(lines[0].find("staller did not answer within 2000 ms") != std::string::npos);
  staller->released = true;
  REQUIRE(verdicts.Refusal(VerdictKind::kMayCommit, 2) == "may_commit of step 2: refuser: not this one");
  REQUIRE(lines.size() == 1);
}

}  // namespace lamina::hooks
