#include <catch2/catch.hpp>

#include "lamina/tensor_view.h"

using namespace lamina;

TEST_CASE("Every dtype number comes back from its name and has a size", "[shard]") {
  int known = 0;
  for (int number = 0; number < 256; ++number) {
    const std::optional<DType> dtype = DTypeFromNumber(static_cast<uint8_t>(number));
    if (!dtype.has_value()) continue;
    ++known;
    CHECK(static_cast<int>(*dtype) == number);
    CHECK(DTypeFromName(DTypeName(*dtype)) == dtype);
    const int64_t bytes = DTypeBytes(*dtype);
    CHECK((bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16));
  }
  CHECK(known == 22);
}

TEST_CASE("Dtypes have the names and sizes of PyTorch", "[shard]") {
  CHECK(DTypeName(DType::kBfloat16) == "bfloat16");
  CHECK(DTypeBytes(DType::kBfloat16) == 2);
  CHECK(DTypeName(DType::kFloat8E4m3fn) == "float8_e4m3fn");
  CHECK(DTypeBytes(DType::kComplex128) == 16);
  CHECK(DTypeName(DType::kFloat4E2m1fnX2) == "float4_e2m1fn_x2");
}

TEST_CASE("A number or name that is no dtype is refused", "[shard]") {
  CHECK(DTypeName(static_cast<DType>(0)) == "unknown");
  CHECK(DTypeBytes(static_cast<DType>(23)) == 0);
  CHECK(!DTypeFromName("torch.float32").has_value());
  CHECK(!DTypeFromName("").has_value());
}
