#include "base/bytes.h"

#include <catch2/catch.hpp>
#include <limits>

namespace lamina::base {
namespace {

TEST_CASE("Checked arithmetic tells of an overflow", "[base]") {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  REQUIRE(CheckedAdd<int64_t>(kMax - 1, 1) == kMax);
  REQUIRE_FALSE(CheckedAdd<int64_t>(kMax, 1).has_value());
  REQUIRE_FALSE(CheckedAdd<int64_t>(kMin, -1).has_value());
  REQUIRE_FALSE(CheckedAdd<uint32_t>(0xffffffffu, 1u).has_value());
  REQUIRE(CheckedMultiply<int64_t>(kMax / 2, 2) == kMax - 1);
  REQUIRE_FALSE(CheckedMultiply<int64_t>(kMax / 2 + 1, 2).has_value());
  REQUIRE_FALSE(CheckedMultiply<int64_t>(kMin, -1).has_value());
  REQUIRE(CheckedMultiply<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 31) == uint64_t{1} << 63);
  REQUIRE_FALSE(CheckedMultiply<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 32).has_value());
}

TEST_CASE("AlignUp gives the next multiple and leaves multiples alone", "[base]") {
  REQUIRE(AlignUp(0, 4096) == 0);
  REQUIRE(AlignUp(1, 4096) == 4096);
  REQUIRE(AlignUp(4096, 4096) == 4096);
  REQUIRE(AlignUp(4097, 64) == 4160);
}

TEST_CASE("ReadAt reads little-endian values that lie wholly inside, at any alignment", "[base]") {
  const std::string text("\x01\x02\x03\x04\x05", 5);
  REQUIRE(ReadAt<uint32_t>(AsBytes(text), 0) == 0x04030201u);
  REQUIRE(ReadAt<uint32_t>(AsBytes(text), 1) == 0x05040302u);
  REQUIRE_FALSE(ReadAt<uint32_t>(AsBytes(text), 2).has_value());
  REQUIRE_FALSE(ReadAt<uint8_t>(AsBytes(text), 5).has_value());
  REQUIRE_FALSE(ReadAt<uint8_t>(AsBytes(text), SIZE_MAX).has_value());
  REQUIRE_FALSE(ReadAt<uint8_t>({}, 0).has_value());
}

TEST_CASE("Hex writes two lower-case digits a byte, first byte first", "[base]") {
  REQUIRE(Hex({}).empty());
  REQUIRE(Hex(AsBytes(std::string_view("\x00\x0f\xa5\xff", 4))) == "000fa5ff");
}

TEST_CASE("Text and bytes are two views of the same memory", "[base]") {
  const std::string text("a\0b", 3);
  REQUIRE(AsText(AsBytes(text)) == text);
  REQUIRE(static_cast<const void*>(AsBytes(text).data()) == text.data());
}

}  // namespace
}  // namespace lamina::base
