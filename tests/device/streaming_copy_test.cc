#include "device/streaming_copy.h"

#include <catch2/catch.hpp>

#include "testing/random_source.h"

namespace lamina::device {
namespace {

TEST_CASE("StreamingCopy copies every size at every alignment and nothing beside", "[device]") {
  std::mt19937_64 random(31);
  std::vector<std::byte> source(70'000);
  testing::FillRandom(source, random);
  for (const size_t bytes : {0, 1, 63, 64, 1000, 32'767, 32'768, 32'769, 33'023, 65'536, 65'999}) {
    for (size_t shift = 0; shift < 64; shift += 7) {
      std::vector<std::byte> target(bytes + 130, std::byte{0x5A});
      StreamingCopy(target.data() + shift, source.data() + (shift * 3) % 64, bytes);
      const auto from = source.begin() + static_cast<std::ptrdiff_t>((shift * 3) % 64);
      const auto to = target.begin() + static_cast<std::ptrdiff_t>(shift);
      REQUIRE(std::equal(to, to + static_cast<std::ptrdiff_t>(bytes), from));
      REQUIRE(std::count(target.begin(), to, std::byte{0x5A}) == static_cast<std::ptrdiff_t>(shift));
      REQUIRE(std::count(to + static_cast<std::ptrdiff_t>(bytes), target.end(), std::byte{0x5A}) ==
              static_cast<std::ptrdiff_t>(130 - shift));
    }
  }
}

}  // namespace
}  // namespace lamina::device
