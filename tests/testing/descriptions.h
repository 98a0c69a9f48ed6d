// Descriptions of ranks, for tests of planning: what each place of a mesh hands over.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/description.h"
#include "shard/boxes_of.h"

namespace lamina::testing {

inline plan::EntryDescription Entry(std::string name, std::vector<int64_t> shape, std::vector<Box> boxes, DType dtype = DType::kFloat32) {
  return {std::move(name), dtype, std::move(shape), std::move(boxes), "", false};
}

// Adds the tensor to every place of the mesh, in rank order.
inline void AddSharded(std::vector<plan::RankDescription>& ranks, const std::string& name, const std::vector<int64_t>& shape,
                       const std::vector<int64_t>& mesh, const std::vector<shard::Placement>& placements, DType dtype = DType::kFloat32) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<int64_t> coordinate(mesh.size());
    auto rest = static_cast<int64_t>(rank);
    for (size_t m = mesh.size(); m-- > 0; rest /= mesh[m]) coordinate[m] = rest % mesh[m];
    ranks[rank].entries.push_back(Entry(name, shape, shard::BoxesOf(shape, mesh, coordinate, placements).value(), dtype));
  }
}

inline constexpr shard::Placement kReplicate{};
constexpr shard::Placement Shard(int64_t dim) { return {shard::Placement::Kind::kShard, dim, 1}; }
constexpr shard::Placement StridedShard(int64_t dim, int64_t split_factor) {
  return {shard::Placement::Kind::kStridedShard, dim, split_factor};
}

}  // namespace lamina::testing
