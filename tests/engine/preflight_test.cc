#include "engine/preflight.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <limits>

#include "env/fault_env.h"
#include "env/posix_env.h"
#include "testing/scratch_directory.h"

namespace lamina::engine {
namespace {

using env::FaultCall;

constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;
constexpr int64_t kMB = 1'000'000;

// A machine whose clock is an hour behind the file server's.
class LateEnv : public env::FaultEnv {
 public:
  using FaultEnv::FaultEnv;
  int64_t WallNs() override { return FaultEnv::WallNs() - kHourNs; }
};

struct Place {
  testing::ScratchDirectory scratch;
  std::unique_ptr<env::Env> posix = env::NewPosixEnv();
  env::FaultEnv env{*posix};
  Options options;

  Place() { options.root = scratch.path() + "/root"; }
  void Fail(FaultCall call, int error_number) {
    env.plan().AddRule({.call = call, .path_part = {}, .error_number = error_number, .first = 1, .count = env::kFaultsForEver});
  }
};

const Finding& Named(const std::vector<Finding>& findings, const std::string& name) {
  const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& each) { return each.name == name; });
  INFO(name);
  REQUIRE(found != findings.end());
  return *found;
}

std::vector<std::string> NotFine(const std::vector<Finding>& findings) {
  std::vector<std::string> names;
  for (const Finding& finding : findings) {
    if (finding.level != FindingLevel::kOk) names.push_back(ToText(finding));
  }
  return names;
}

}  // namespace

TEST_CASE("A fine place passes every check, and is left as it was", "[engine]") {
  Place place;
  const StateSize size{8 * kMB, 8 * kMB};
  const std::vector<Finding> findings = Preflight(place.env, place.options, size);
  CHECK(NotFine(findings) == std::vector<std::string>());
  for (const char* name : {"root", "put-if-absent", "durable-names", "space", "memory", "hold", "clock", "durable"}) {
    CHECK_FALSE(Named(findings, name).found.empty());
  }
  CHECK(std::filesystem::is_empty(place.scratch.path()));
  bool warned = false;
  CHECK(FirstFailure(findings, [&](const std::string&) { warned = true; }).ok());
  CHECK_FALSE(warned);
  CHECK(lamina::Preflight(place.options, {}).size() == findings.size());
}

TEST_CASE("What keeps a root from working is a failure with advice", "[engine]") {
  Place place;
  std::string name;
  absl::StatusCode code = absl::StatusCode::kOk;
  SECTION("No parent") {
    place.options.root += "/run";
    name = "root";
    code = absl::StatusCode::kNotFound;
  }
  SECTION("Read only") {
    place.Fail(FaultCall::kCreate, EROFS);
    name = "root";
    code = absl::StatusCode::kPermissionDenied;
  }
  SECTION("No put-if-absent") {
    place.Fail(FaultCall::kLink, EOPNOTSUPP);
    place.Fail(FaultCall::kRename, EOPNOTSUPP);
    name = "put-if-absent";
    code = absl::StatusCode::kUnimplemented;
  }
  SECTION("Names that are not durable") {
    place.Fail(FaultCall::kSyncDirectory, EIO);
    name = "durable-names";
    code = absl::StatusCode::kUnavailable;
  }
  SECTION("Room that is not told") {
    place.Fail(FaultCall::kCapacity, EIO);
    name = "space";
    code = absl::StatusCode::kUnavailable;
  }
  const std::vector<Finding> findings = Preflight(place.env, place.options, {kMB, kMB});
  const Finding& finding = Named(findings, name);
  CHECK(finding.level == FindingLevel::kFail);
  CHECK_FALSE(finding.advice.empty());
  const absl::Status status = FirstFailure(findings, [](const std::string&) {});
  CHECK(status.code() == code);
  CHECK(std::string(status.message()) == ToText(finding));
  CHECK(std::filesystem::is_empty(place.scratch.path()));
}

TEST_CASE("Writes that fail, or would outlast a save's deadline, are a failure", "[engine]") {
  Place place;
  SECTION("A disk that fails under load") {
    place.env.plan().AddRule({.call = FaultCall::kWrite, .path_part = {}, .error_number = EIO, .first = 4, .count = env::kFaultsForEver});
    const std::vector<Finding> findings = Preflight(place.env, place.options, {kMB, kMB});
    CHECK(Named(findings, "root").level == FindingLevel::kOk);
    CHECK(Named(findings, "durable").code == absl::StatusCode::kUnavailable);
  }
  SECTION("Too slow") {
    place.options.save_timeout_s = 1e-6;
    const std::vector<Finding> findings = Preflight(place.env, place.options, {kMB, kMB});
    CHECK(Named(findings, "durable").code == absl::StatusCode::kDeadlineExceeded);
    CHECK_THAT(Named(findings, "durable").advice, Catch::Contains("set save_timeout_s to 1 or more"));
  }
  CHECK(std::filesystem::is_empty(place.scratch.path()));
}

TEST_CASE("Clocks that differ are a warning", "[engine]") {
  Place place;
  LateEnv late(*place.posix);
  const std::vector<Finding> findings = Preflight(late, place.options, {kMB, kMB});
  CHECK(Named(findings, "clock").level == FindingLevel::kWarn);
  CHECK_THAT(Named(findings, "clock").found, Catch::Contains("s ahead"));
  std::vector<std::string> warnings;
  CHECK(FirstFailure(findings, [&](std::string text) { warnings.push_back(std::move(text)); }).ok());
  CHECK(warnings.size() == 1);
}

TEST_CASE("Room is judged by the state's bytes and the ranks' files", "[engine]") {
  Place place;
  const auto level = [&](int64_t bytes, int64_t inodes, int64_t job_bytes, const char* name) {
    env::FileSystemInfo room{.bytes_total = 1000 * kMB, .bytes_available = bytes, .inodes_total = 1'000'000, .inodes_available = inodes};
    return Named(JudgeRoom(room, "/r", place.options, {job_bytes, job_bytes}), name).level;
  };
  CHECK(level(300 * kMB, 1'000'000, 100 * kMB, "space") == FindingLevel::kOk);
  CHECK(level(299 * kMB, 1'000'000, 100 * kMB, "space") == FindingLevel::kWarn);
  CHECK(level(99 * kMB, 1'000'000, 100 * kMB, "space") == FindingLevel::kFail);
  CHECK(level(2000 * kMB, 1'000'000, 0, "space") == FindingLevel::kOk);
  CHECK(level(99 * kMB, 1'000'000, 0, "space") == FindingLevel::kWarn);
  place.options.saves_in_flight_max = 1;
  CHECK(level(299 * kMB, 1'000'000, 100 * kMB, "space") == FindingLevel::kOk);
  CHECK(level(300 * kMB, 6000, kMB, "inodes") == FindingLevel::kOk);
  CHECK(level(300 * kMB, 5999, kMB, "inodes") == FindingLevel::kWarn);
  CHECK(level(300 * kMB, 5, kMB, "inodes") == FindingLevel::kFail);
  CHECK(JudgeRoom({.bytes_total = 10, .bytes_available = 5}, "/r", place.options, {4, 4}).size() == 1);
}

TEST_CASE("Room that holds the next saves and not what keep will need is a warning with the figures", "[engine]") {
  Place place;
  place.options.keep = 5;
  const auto space = [&](int64_t bytes, int64_t steps_held) {
    const env::FileSystemInfo room{.bytes_total = 1000 * kMB, .bytes_available = bytes};
    return JudgeRoom(room, "/r", place.options, {100 * kMB, 100 * kMB}, steps_held).front();
  };
  CHECK(space(800 * kMB, 0).level == FindingLevel::kOk);  // 5 kept, 2 in flight, 1 that waits for grace
  const Finding few = space(799 * kMB, 0);
  REQUIRE(few.level == FindingLevel::kWarn);
  CHECK(few.found.find("room for 7 saves") != std::string::npos);
  CHECK(few.expected ==
        "room for 8 saves of 100.0 MB: the 5 that keep leaves, 2 in flight, and one whose files stay for gc_grace_s (600 s)");
  CHECK(few.advice.find("lower keep") != std::string::npos);
  CHECK(space(400 * kMB, 4).level == FindingLevel::kOk);
  const Finding fewer = space(399 * kMB, 4);
  CHECK(fewer.level == FindingLevel::kWarn);
  CHECK(fewer.expected.find("less 4 steps that are there already") != std::string::npos);
  CHECK(space(300 * kMB, 100).level == FindingLevel::kOk);  // a job that goes on
  CHECK(space(99 * kMB, 100).level == FindingLevel::kFail);
  place.options.gc_grace_s = 0;
  CHECK(space(700 * kMB, 0).level == FindingLevel::kOk);
  CHECK(space(699 * kMB, 0).level == FindingLevel::kWarn);
  place.options.keep = std::numeric_limits<int32_t>::max();
  CHECK(space(699 * kMB, 0).level == FindingLevel::kWarn);
}

TEST_CASE("Memory is judged by the copies that the ranks of a machine hold", "[engine]") {
  Place place;
  CHECK(JudgeMemory(place.env, place.options, {kMB, kMB}).level == FindingLevel::kOk);
  CHECK(JudgeMemory(place.env, place.options, {}).level == FindingLevel::kOk);
  place.options.memory_bytes = kMB;
  CHECK(JudgeMemory(place.env, place.options, {kMB, kMB}).level == FindingLevel::kOk);
  CHECK(JudgeMemory(place.env, place.options, {2 * kMB, 2 * kMB}).code == absl::StatusCode::kResourceExhausted);
  place.options.memory_bytes = int64_t{1} << 45;
  CHECK(JudgeMemory(place.env, place.options, {kMB, kMB}).level == FindingLevel::kWarn);
  place.options.memory_bytes = 0;
  const Finding finding = JudgeMemory(place.env, place.options, {int64_t{1} << 50, int64_t{1} << 50});
  CHECK(finding.code == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(finding.found, Catch::Contains("40 % of the free memory"));
}

TEST_CASE("A hold of many seconds is a warning", "[engine]") {
  Place place;
  const std::vector<Finding> findings = Preflight(place.env, place.options, {int64_t{1} << 50, int64_t{1} << 50});
  const Finding& finding = Named(findings, "hold");
  CHECK(finding.level == FindingLevel::kWarn);
}

}  // namespace lamina::engine
