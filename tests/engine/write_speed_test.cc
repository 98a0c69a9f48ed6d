#include "engine/write_speed.h"

#include <catch2/catch.hpp>

#include "base/units.h"

namespace lamina::engine {

TEST_CASE("A write is slow when it takes long and goes at less than a quarter of the speed of those before it", "[engine]") {
  constexpr int64_t kBytes = 1'000'000'000;
  constexpr int64_t kUsualNs = 2 * base::kSecondNs;
  WriteSpeed speed;
  for (int i = 0; i < 2; ++i) REQUIRE(!speed.Judge(kBytes, kUsualNs).has_value());
  SECTION("with too few before it there is nothing to compare with") { REQUIRE(!speed.Judge(kBytes, 100 * kUsualNs).has_value()); }
  SECTION("among many") {
    REQUIRE(!speed.Judge(kBytes, kUsualNs).has_value());
    REQUIRE(!speed.Judge(kBytes, 3 * kUsualNs).has_value());
    REQUIRE(!speed.Judge(kBytes / 1000, base::kSecondNs / 2).has_value());  // slow, and short
    REQUIRE(speed.Judge(kBytes, 5 * kUsualNs) == "1000.0 MB were written at 100.0 MB/s; the writes before went at 500.0 MB/s");
    for (int i = 0; i < 5; ++i) speed.Judge(kBytes, 5 * kUsualNs);
    REQUIRE(!speed.Judge(kBytes, 5 * kUsualNs).has_value());  // that is how fast it is now
  }
}

}  // namespace lamina::engine
