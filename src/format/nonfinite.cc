#include "format/nonfinite.h"

#include <cstring>

namespace lamina::format {
namespace {

template <typename Bits>
uint64_t Count(std::span<const std::byte> raw, Bits mask, Bits nonfinite) {
  uint64_t count = 0;
  for (size_t at = 0; at + sizeof(Bits) <= raw.size(); at += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, raw.data() + at, sizeof(bits));
    count += (bits & mask) == nonfinite;
  }
  return count;
}

// Those whose exponent is all ones.
template <typename Bits>
uint64_t CountExponents(std::span<const std::byte> raw, Bits exponent) {
  return Count<Bits>(raw, exponent, exponent);
}

}  // namespace

uint64_t NonfiniteCount(std::span<const std::byte> raw, DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kComplex32:
      return CountExponents<uint16_t>(raw, 0x7c00);
    case DType::kBfloat16:
      return CountExponents<uint16_t>(raw, 0x7f80);
    case DType::kFloat32:
    case DType::kComplex64:
      return CountExponents<uint32_t>(raw, 0x7f800000);
    case DType::kFloat64:
    case DType::kComplex128:
      return CountExponents<uint64_t>(raw, 0x7ff0000000000000);
    case DType::kFloat8E5m2:
      return CountExponents<uint8_t>(raw, 0x7c);
    case DType::kFloat8E4m3fn:  // no infinities; NaN is all ones but for the sign
      return Count<uint8_t>(raw, 0x7f, 0x7f);
    case DType::kFloat8E4m3fnuz:  // one NaN, where negative zero would be
    case DType::kFloat8E5m2fnuz:
      return Count<uint8_t>(raw, 0xff, 0x80);
    case DType::kFloat8E8m0fnu:
      return Count<uint8_t>(raw, 0xff, 0xff);
    default:
      return 0;
  }
}

}  // namespace lamina::format
