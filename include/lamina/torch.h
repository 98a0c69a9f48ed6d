// Tensors of libtorch as Lamina takes them: views of their memory, nothing copied. Target lamina::torch.
//
// A tensor must live, and keep its memory, until the call that was given its view says so: Save until it returns, Restore and Fill
// likewise. Refused by name: undefined, sparse, quantised and nested tensors, those of a device other than the CPU (Unimplemented), and
// views that only stand for another value, conjugated or negated (InvalidArgument).
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lamina/tensor_view.h"

namespace lamina {

// The dtype of a tensor; Unimplemented for one that Lamina does not store.
inline absl::StatusOr<DType> DTypeOf(at::ScalarType type) {
  // By name, since which of them there are depends on the release of libtorch.
  constexpr std::array<std::pair<std::string_view, DType>, 22> kTypes = {{
      {"Bool", DType::kBool},
      {"Byte", DType::kUint8},
      {"UInt16", DType::kUint16},
      {"UInt32", DType::kUint32},
      {"UInt64", DType::kUint64},
      {"Char", DType::kInt8},
      {"Short", DType::kInt16},
      {"Int", DType::kInt32},
      {"Long", DType::kInt64},
      {"Half", DType::kFloat16},
      {"BFloat16", DType::kBfloat16},
      {"Float", DType::kFloat32},
      {"Double", DType::kFloat64},
      {"ComplexHalf", DType::kComplex32},
      {"ComplexFloat", DType::kComplex64},
      {"ComplexDouble", DType::kComplex128},
      {"Float8_e4m3fn", DType::kFloat8E4m3fn},
      {"Float8_e5m2", DType::kFloat8E5m2},
      {"Float8_e4m3fnuz", DType::kFloat8E4m3fnuz},
      {"Float8_e5m2fnuz", DType::kFloat8E5m2fnuz},
      {"Float8_e8m0fnu", DType::kFloat8E8m0fnu},
      {"Float4_e2m1fn_x2", DType::kFloat4E2m1fnX2},
  }};
  const std::string_view name = c10::toString(type);
  const auto* const found = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& each) { return each.first == name; });
  if (found != kTypes.end()) return found->second;
  return absl::UnimplementedError("tensors of the type " + std::string(name) + " are not stored");
}

// Part of a global tensor, and the tensor that holds it: as large as the box.
struct TensorPart {
  Box box;
  at::Tensor tensor;
};

// A view of what this rank holds of the global tensor `name`: one part or more, of one dtype. A rank that holds nothing gives a part with
// an extent of 0. That boxes lie inside and apart is checked by Save and Restore.
inline absl::StatusOr<TensorView> ViewOfParts(std::string name, std::vector<int64_t> global_shape, std::span<const TensorPart> parts) {
  const auto because = [&](const char* why) { return "tensor '" + name + "' " + why; };
  if (parts.empty()) return absl::InvalidArgumentError(because("has no part: a rank that holds nothing gives one with an extent of 0"));
  TensorView view;
  for (const TensorPart& part : parts) {
    const at::Tensor& tensor = part.tensor;
    if (!tensor.defined()) return absl::InvalidArgumentError(because("is undefined"));
    if (tensor.is_nested()) return absl::UnimplementedError(because("is nested, which is not stored"));
    if (tensor.layout() != at::kStrided) return absl::UnimplementedError(because("is sparse, which is not stored"));
    if (tensor.is_quantized()) return absl::UnimplementedError(because("is quantised: hand over its codes and its scales"));
    if (!tensor.device().is_cpu()) return absl::UnimplementedError(because("is not in host memory"));
    if (tensor.is_conj() || tensor.is_neg())
      return absl::InvalidArgumentError(because("is a lazy view: resolve_conj() and resolve_neg() it"));
    const absl::StatusOr<DType> dtype = DTypeOf(tensor.scalar_type());
    if (!dtype.ok()) return absl::Status(dtype.status().code(), because(std::string(dtype.status().message()).c_str()));
    if (!view.boxes.empty() && view.dtype != *dtype) return absl::InvalidArgumentError(because("has parts of several dtypes"));
    if (!std::equal(tensor.sizes().begin(), tensor.sizes().end(), part.box.extent.begin(), part.box.extent.end())) {
      return absl::InvalidArgumentError(because("has a part whose tensor is not as large as its box"));
    }
    view.dtype = *dtype;
    void* const data = tensor.numel() > 0 ? tensor.data_ptr() : nullptr;
    view.boxes.push_back({part.box, data, std::vector<int64_t>(tensor.strides().begin(), tensor.strides().end())});
  }
  view.name = std::move(name);
  view.global_shape = std::move(global_shape);
  return view;
}

// A view of a tensor that this rank holds whole: alone, or as a replica of the other ranks'.
inline absl::StatusOr<TensorView> ViewOf(std::string name, const at::Tensor& tensor) {
  if (!tensor.defined()) return absl::InvalidArgumentError("tensor '" + name + "' is undefined");
  if (tensor.is_nested()) return absl::UnimplementedError("tensor '" + name + "' is nested, which is not stored");
  const std::vector<int64_t> shape(tensor.sizes().begin(), tensor.sizes().end());
  const TensorPart whole{{std::vector<int64_t>(shape.size(), 0), shape}, tensor};
  return ViewOfParts(std::move(name), shape, std::span<const TensorPart>(&whole, 1));
}

// Tells autograd that a restore has written the tensor, so that a graph which saved its old value does not use the new one unnoticed.
inline void WasWritten(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace lamina
