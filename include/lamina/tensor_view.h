// Tensors as a trainer hands them over: memory that it owns, described in plain values. Nothing here owns or reads memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lamina {

// The numbers are part of the format (docs/format.md) and never change their meaning.
enum class DType : uint8_t {
  kBool = 1,
  kUint8 = 2,
  kUint16 = 3,
  kUint32 = 4,
  kUint64 = 5,
  kInt8 = 6,
  kInt16 = 7,
  kInt32 = 8,
  kInt64 = 9,
  kFloat16 = 10,
  kBfloat16 = 11,
  kFloat32 = 12,
  kFloat64 = 13,
  kComplex32 = 14,
  kComplex64 = 15,
  kComplex128 = 16,
  kFloat8E4m3fn = 17,
  kFloat8E5m2 = 18,
  kFloat8E4m3fnuz = 19,
  kFloat8E5m2fnuz = 20,
  kFloat8E8m0fnu = 21,
  kFloat4E2m1fnX2 = 22,  // two values a byte; an element is the byte
};

// Bytes of one element: 1, 2, 4, 8 or 16; 0 for a number that names no dtype.
int64_t DTypeBytes(DType dtype);
// The name PyTorch uses, without "torch."; "unknown" for a number that names no dtype.
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);
// The dtype with that number in a file; nullopt for a number that names none.
std::optional<DType> DTypeFromNumber(uint8_t number);

// An N-d interval [offset, offset + extent) in the index space of a global tensor. 0-d: both empty, one element.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;
  bool operator==(const Box&) const = default;
  auto operator<=>(const Box&) const = default;
};

// One box of a shard and the memory that holds it. Borrowed: must live until the call that takes it says so.
struct BoxView {
  Box box;
  void* data = nullptr;          // of the box's first element; may be null only for a box without elements
  std::vector<int64_t> strides;  // of the box's own array, in elements, one per dimension; may be 0 or negative
};

// What one rank holds of one named tensor.
struct TensorView {
  std::string name;  // a path of typed components in text, such as  model.layers.0."a.b".weight
  DType dtype = DType::kFloat32;
  std::vector<int64_t> global_shape;
  std::vector<BoxView> boxes;        // disjoint; empty or without elements where this rank holds nothing
  std::string alias_of;              // another entry with the same memory: stored once under that name. Empty: none
  bool replicas_may_differ = false;  // buffers of data-parallel replicas: the lowest rank's copy is the one that is kept
};

// Plain bytes that a rank hands over beside its tensors.
struct BlobView {
  std::string name;  // "tree": the plain values (one copy counts); "place": what belongs to this place alone
  std::string bytes;
};

}  // namespace lamina
