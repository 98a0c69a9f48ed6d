// The fuzzers' targets without a fuzzer: what was found once, and seeds damaged at random. A run is known by its target and number, and a
// failure names both. LAMINA_FUZZ_RUNS: random runs of each target.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "base/bytes.h"
#include "fuzz/targets.h"

namespace lamina::fuzz {
namespace {

using Random = std::mt19937_64;

int64_t Runs() {
  const char* text = std::getenv("LAMINA_FUZZ_RUNS");
  return text == nullptr ? 2000 : std::atoll(text);
}

size_t Below(Random& random, size_t end) { return end == 0 ? 0 : random() % end; }

uint64_t Nasty(Random& random, size_t bytes) {
  const std::array<uint64_t, 12> values{0,          1,          2,          bytes,      bytes - 1,       bytes / 8,
                                        0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX, UINT64_MAX >> 1, uint64_t{1} << 62};
  return values[Below(random, values.size())];
}

// One small change: a bit, a number, a run copied elsewhere, another length.
void DamageOnce(Random& random, std::string& bytes) {
  if (bytes.empty()) return bytes.append(1, '\0'), void();
  const size_t at = Below(random, bytes.size());
  switch (Below(random, 6)) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(random, 8)));
      break;
    case 1:
      bytes[at] = static_cast<char>(random());
      break;
    case 2:
    case 3: {
      const uint64_t value = Nasty(random, bytes.size());
      const size_t width = size_t{4} << Below(random, 2);
      if (at / 4 * 4 + width <= bytes.size()) bytes.replace(at / 4 * 4, width, reinterpret_cast<const char*>(&value), width);
      break;
    }
    case 4: {
      const size_t length = 1 + Below(random, std::min<size_t>(32, bytes.size() - at));
      const std::string run = bytes.substr(at, length);
      bytes.replace(Below(random, bytes.size() - run.size() + 1), run.size(), run);
      break;
    }
    default:
      bytes.resize(Below(random, 8) == 0 ? at : bytes.size(), '\0');
  }
}

void RequireHarmless(const Target& target, const std::string& input, const std::string& what) {
  const std::string block(input);  // of its own, so that a sanitizer sees a read beyond it
  const absl::Status status = target.attack(base::AsBytes(block));
  if (!status.ok()) FAIL(target.name << ", " << what << ": " << status.ToString());
}

std::string BytesOf(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("The root that the fuzzer edits is sound", "[fuzz]") { CHECK(CheckSoundRoot().ok()); }

TEST_CASE("Seeds damaged at random are refused or mean what they say", "[fuzz]") {
  for (const Target& target : AllTargets()) {
    for (const std::string& seed : target.seeds) RequireHarmless(target, seed, "a seed");
    for (int64_t run = 0; run < Runs(); ++run) {
      Random random(static_cast<uint64_t>(run));
      std::string input = target.seeds[Below(random, target.seeds.size())];
      for (size_t count = 1 + Below(random, 6); count > 0; --count) DamageOnce(random, input);
      RequireHarmless(target, input, "run " + std::to_string(run));
    }
  }
}

TEST_CASE("What the fuzzers kept is refused or means what it says", "[fuzz]") {
  for (const Target& target : AllTargets()) {
    const std::filesystem::path folder = std::filesystem::path(LAMINA_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
    int64_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      RequireHarmless(target, BytesOf(entry.path()), entry.path().filename());
      ++count;
    }
    CHECK(count > 0);
  }
}

}  // namespace lamina::fuzz
