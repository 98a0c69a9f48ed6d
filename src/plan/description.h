// What one rank hands over, without the memory: the only input of planning. Ranks exchange it once, as bytes, and compare digests
// afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "format/chunk.h"
#include "lamina/tensor_view.h"

namespace lamina::plan {

struct EntryDescription {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> global_shape;
  std::vector<Box> boxes;  // in the order of TensorView::boxes
  std::string alias_of;
  bool replicas_may_differ = false;
  bool operator==(const EntryDescription&) const = default;
};

struct RankDescription {
  std::vector<EntryDescription> entries;  // in the order of the caller's views
  std::vector<std::pair<std::string, int64_t>> topology;
  bool operator==(const RankDescription&) const = default;
};

// Validates the views (boxes in bounds and disjoint, strides as many as dimensions, no name twice, alias_of present, itself no
// alias, with the same dtype, shape and boxes unless the alias lists none, a null pointer only without elements) and describes them.
// InvalidArgument names the entry; Internal for a null pointer with elements.
absl::StatusOr<RankDescription> Describe(std::span<const TensorView> tensors, std::span<const std::pair<std::string, int64_t>> topology);

std::string EncodeDescription(const RankDescription& description);
absl::StatusOr<RankDescription> DecodeDescription(std::span<const std::byte> bytes);  // hostile input is InvalidArgument
format::Digest DigestOf(const RankDescription& description);

}  // namespace lamina::plan
