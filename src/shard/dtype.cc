#include <array>

#include "lamina/tensor_view.h"

namespace lamina {
namespace {

struct DTypeRow {
  DType dtype;
  int64_t bytes;
  std::string_view name;
};

constexpr std::array<DTypeRow, 22> kDTypes = {{
    {DType::kBool, 1, "bool"},
    {DType::kUint8, 1, "uint8"},
    {DType::kUint16, 2, "uint16"},
    {DType::kUint32, 4, "uint32"},
    {DType::kUint64, 8, "uint64"},
    {DType::kInt8, 1, "int8"},
    {DType::kInt16, 2, "int16"},
    {DType::kInt32, 4, "int32"},
    {DType::kInt64, 8, "int64"},
    {DType::kFloat16, 2, "float16"},
    {DType::kBfloat16, 2, "bfloat16"},
    {DType::kFloat32, 4, "float32"},
    {DType::kFloat64, 8, "float64"},
    {DType::kComplex32, 4, "complex32"},
    {DType::kComplex64, 8, "complex64"},
    {DType::kComplex128, 16, "complex128"},
    {DType::kFloat8E4m3fn, 1, "float8_e4m3fn"},
    {DType::kFloat8E5m2, 1, "float8_e5m2"},
    {DType::kFloat8E4m3fnuz, 1, "float8_e4m3fnuz"},
    {DType::kFloat8E5m2fnuz, 1, "float8_e5m2fnuz"},
    {DType::kFloat8E8m0fnu, 1, "float8_e8m0fnu"},
    {DType::kFloat4E2m1fnX2, 1, "float4_e2m1fn_x2"},
}};

// Rows stand at their number less one, so that a lookup is an access.
constexpr bool RowsAreInOrder() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(RowsAreInOrder());

const DTypeRow* FindRow(uint8_t number) { return number >= 1 && number <= kDTypes.size() ? &kDTypes[number - 1u] : nullptr; }

}  // namespace

int64_t DTypeBytes(DType dtype) {
  const DTypeRow* row = FindRow(static_cast<uint8_t>(dtype));
  return row == nullptr ? 0 : row->bytes;
}

std::string_view DTypeName(DType dtype) {
  const DTypeRow* row = FindRow(static_cast<uint8_t>(dtype));
  return row == nullptr ? "unknown" : row->name;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromNumber(uint8_t number) {
  const DTypeRow* row = FindRow(number);
  return row == nullptr ? std::nullopt : std::optional(row->dtype);
}

}  // namespace lamina
