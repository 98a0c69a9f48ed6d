#include "format/nonfinite.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/bytes.h"

using namespace lamina;
using namespace lamina::format;

namespace {

template <typename Bits>
uint64_t CountOf(DType dtype, std::initializer_list<Bits> values) {
  return NonfiniteCount(std::as_bytes(std::span(values.begin(), values.size())), dtype);
}

}  // namespace

TEST_CASE("Infinities and NaNs of every type that has them are counted", "[format]") {
  CHECK(CountOf<uint16_t>(DType::kFloat16, {0x7c00, 0xfc01, 0x7bff, 0}) == 2);
  CHECK(CountOf<uint16_t>(DType::kBfloat16, {0x7f80, 0xff81, 0x7f7f, 0x7c00}) == 2);
  CHECK(CountOf<uint32_t>(DType::kFloat32, {0x7f800000, 0xffc00000, 0x7f7fffff}) == 2);
  CHECK(CountOf<uint64_t>(DType::kFloat64, {0x7ff0000000000000, 0xfff8000000000000, 0x7fefffffffffffff}) == 2);
  CHECK(CountOf<uint8_t>(DType::kFloat8E4m3fn, {0x7f, 0xff, 0x7e}) == 2);
  CHECK(CountOf<uint8_t>(DType::kFloat8E5m2, {0x7c, 0xff, 0x7b}) == 2);
  CHECK(CountOf<uint8_t>(DType::kFloat8E4m3fnuz, {0x80, 0x7f, 0}) == 1);
  CHECK(CountOf<uint8_t>(DType::kFloat8E5m2fnuz, {0x80, 0x7f, 0}) == 1);
  CHECK(CountOf<uint8_t>(DType::kFloat8E8m0fnu, {0xff, 0x7f}) == 1);
}

TEST_CASE("A complex element has two values", "[format]") {
  CHECK(CountOf<uint16_t>(DType::kComplex32, {0x7c00, 0x7c00}) == 2);
  CHECK(CountOf<uint32_t>(DType::kComplex64, {0x7f800000, 0}) == 1);
  CHECK(CountOf<uint64_t>(DType::kComplex128, {0, 0x7ff0000000000000}) == 1);
}

TEST_CASE("Whole numbers are all finite", "[format]") {
  CHECK(CountOf<uint64_t>(DType::kInt64, {0x7ff0000000000000}) == 0);
  CHECK(CountOf<uint8_t>(DType::kUint8, {0xff, 0x80}) == 0);
}
