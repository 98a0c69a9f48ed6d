#include "engine/agreement.h"

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>

#include "env/posix_env.h"

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

}  // namespace

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
