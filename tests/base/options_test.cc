#include "base/options.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

namespace lamina {
namespace {

Options GoodOptions() {
  Options options;
  options.root = "/ckpt/run1";
  return options;
}

std::string ValidationOf(const Options& options) {
  const absl::Status status = options.Validate();
  REQUIRE((status.ok() || status.code() == absl::StatusCode::kInvalidArgument));
  return std::string(status.message());
}

// A variable that is there for the test alone.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST_CASE("Options are valid once they have a root", "[base]") {
  CHECK(ValidationOf(GoodOptions()).empty());
  CHECK(ValidationOf(Options()) == "option root is '': expected text, an absolute path");
}

TEST_CASE("Options::Validate names the option, its value and its range", "[base]") {
  const auto refusal = [](auto member, auto value) {
    Options options = GoodOptions();
    options.*member = value;
    return ValidationOf(options);
  };
  CHECK(refusal(&Options::root, "ckpt") == "option root is 'ckpt': expected text, an absolute path");
  CHECK(refusal(&Options::rank, 1) == "option rank is '1': expected int, 0 or more and less than rank_count");
  CHECK(refusal(&Options::rank, -1) == "option rank is '-1': expected int, 0 or more and less than rank_count");
  CHECK(refusal(&Options::rank_count, 0) == "option rank_count is '0': expected int, 1 or more");
  CHECK(refusal(&Options::keep, -1) == "option keep is '-1': expected int, 0 or more");
  CHECK(refusal(&Options::gc_grace_s, -1.0) == "option gc_grace_s is '-1': expected float, 0 to 1e9");
  CHECK(refusal(&Options::abandoned_grace_s, 2e9) == "option abandoned_grace_s is '2e+09': expected float, 0 to 1e9");
  CHECK(refusal(&Options::memory_bytes, -1) == "option memory_bytes is '-1': expected int, 0 to 2^46");
  CHECK(refusal(&Options::failures_tolerated, -1) == "option failures_tolerated is '-1': expected int, 0 or more");
  CHECK(refusal(&Options::save_timeout_s, -0.5) == "option save_timeout_s is '-0.5': expected float, 0 to 1e9");
  CHECK(refusal(&Options::begin_timeout_s, 0.0) == "option begin_timeout_s is '0': expected float, more than 0, to 1e9");
  CHECK(refusal(&Options::exit_grace_s, std::nan("")) == "option exit_grace_s is 'nan': expected float, 0 to 1e9");
  CHECK(refusal(&Options::beat_s, 20.0) == "option beat_timeout_s is '20': expected float, more than beat_s, to 1e9");
  CHECK(refusal(&Options::beat_timeout_s, 2.0) == "option beat_timeout_s is '2': expected float, more than beat_s, to 1e9");
  CHECK(refusal(&Options::restore_retry_s, std::numeric_limits<double>::infinity()) ==
        "option restore_retry_s is 'inf': expected float, 0 to 1e9");
  CHECK(refusal(&Options::saves_in_flight_max, 3) == "option saves_in_flight_max is '3': expected int, 1 or 2");
  CHECK(refusal(&Options::io_threads, 65) == "option io_threads is '65': expected int, 1 to 64");
}

TEST_CASE("SetOption takes values of every type that can stand for the option's own", "[base]") {
  Options options;
  const auto set = [&](std::string_view name, const base::OptionValue& value) { return base::SetOption(options, name, value); };
  CHECK(set("root", std::string("/a")).ok());
  CHECK(set("mode", std::string("read")).ok());
  CHECK(set("takeover", true).ok());
  CHECK(set("memory_bytes", int64_t{1} << 40).ok());
  CHECK(set("rank_count", std::string("8")).ok());
  CHECK(set("beat_s", int64_t{3}).ok());
  CHECK(set("save_timeout_s", 2.5).ok());
  CHECK(set("begin_timeout_s", std::string("1e2")).ok());
  CHECK(options.root == "/a");
  CHECK(options.mode == Mode::kRead);
  CHECK(options.takeover);
  CHECK(options.memory_bytes == int64_t{1} << 40);
  CHECK(options.rank_count == 8);
  CHECK(options.beat_s == 3);
  CHECK(options.save_timeout_s == 2.5);
  CHECK(options.begin_timeout_s == 100);
}

TEST_CASE("SetOption refuses what is not the option's type and leaves the option as it was", "[base]") {
  Options options;
  const auto refusal = [&](std::string_view name, const base::OptionValue& value) {
    const absl::Status status = base::SetOption(options, name, value);
    REQUIRE(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  CHECK(refusal("rank", std::string("7x")) == "option rank is '7x': expected int, 0 or more and less than rank_count");
  CHECK(refusal("rank", 1.5) == "option rank is '1.5': expected int, 0 or more and less than rank_count");
  CHECK(refusal("rank", true) == "option rank is 'true': expected int, 0 or more and less than rank_count");
  CHECK(refusal("rank", int64_t{1} << 32) == "option rank is '4294967296': expected int, 0 or more and less than rank_count");
  CHECK(refusal("io_threads", std::string()) == "option io_threads is '': expected int, 1 to 64");
  CHECK(refusal("takeover", std::string("yes")) == "option takeover is 'yes': expected bool");
  CHECK(refusal("mode", std::string("write")) == "option mode is 'write': expected text, train or read");
  CHECK(refusal("run_id", int64_t{4}) == "option run_id is '4': expected text");
  CHECK(refusal("beat_s", std::string("2 s")) == "option beat_s is '2 s': expected float, more than 0, to 1e9");
  CHECK(refusal("beats", 1.0) == "no option is named 'beats'");
  for (const base::OptionInfo& info : base::OptionList()) CHECK(base::SetOption(options, info.name, info.default_value).ok());
  CHECK(options.rank == 0);
}

TEST_CASE("Options::FromEnvironment reads LAMINA_ variables and names the one it cannot read", "[base]") {
  Options options = GoodOptions();
  {
    const Variable threads("LAMINA_IO_THREADS", "5");
    const Variable takeover("LAMINA_TAKEOVER", "1");
    REQUIRE(options.FromEnvironment().ok());
  }
  CHECK(options.io_threads == 5);
  CHECK(options.takeover);
  CHECK(options.root == "/ckpt/run1");
  const Variable beat("LAMINA_BEAT_S", "often");
  CHECK(std::string(options.FromEnvironment().message()) == "LAMINA_BEAT_S: option beat_s is 'often': expected float, more than 0, to 1e9");
  CHECK(options.beat_s == 2);
}

// The cells of one line of a table in Markdown.
std::vector<std::string> CellsOf(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, '|');) {
    const size_t begin = cell.find_first_not_of(" `");
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, cell.find_last_not_of(" `") + 1 - begin));
  }
  return cells;
}

TEST_CASE("docs/options.md lists every option with its type, default and range", "[base]") {
  std::ifstream document(LAMINA_SOURCE_DIR "/docs/options.md");
  REQUIRE(document.good());
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("| `")) rows.push_back(CellsOf(line));
  }
  const std::vector<base::OptionInfo> known = base::OptionList();
  REQUIRE(rows.size() == known.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    REQUIRE(rows[i].size() >= 5);
    CHECK(rows[i][1] == known[i].name);
    CHECK(rows[i][2] == known[i].type);
    CHECK(rows[i][3] == known[i].default_value);
    CHECK(rows[i][4] == known[i].range);
  }
}

}  // namespace
}  // namespace lamina
