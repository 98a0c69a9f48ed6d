// Which boxes of a global tensor one place of a device mesh holds, for every DTensor placement. Our own, because torch's functions are
// wrong for strided shards with replicas and give one box where there are many.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "lamina/tensor_view.h"

namespace lamina::shard {

struct Placement {
  enum class Kind { kReplicate, kShard, kStridedShard };
  Kind kind = Kind::kReplicate;
  int64_t dim = 0;           // of the tensor; for the shards; 0 <= dim < dimensions
  int64_t split_factor = 1;  // for kStridedShard, as torch's _StridedShard has it
};

// One placement per mesh dimension, applied as torch's DTensor applies them: from the first mesh dimension to the last, shards by the ceil
// rule (torch.chunk), strided shards in the order torch's _StridedShard._split_tensor gives. The boxes are in the order of the local
// tensor's rows: laid one after another along the sharded dimension they are the local tensor. Boxes without elements are left out; when
// nothing is left, one empty box is returned, with the local tensor's shape as extent. 0-d tensors may only be replicated. InvalidArgument
// for sizes that do not fit, naming what and where.
absl::StatusOr<std::vector<Box>> BoxesOf(std::span<const int64_t> global_shape, std::span<const int64_t> mesh_shape,
                                         std::span<const int64_t> coordinate, std::span<const Placement> placements);

// As BoxesOf, for memory whose shape is known. A strided shard stands for splits done in another order than the mesh's: rows cut by a later
// mesh dimension first. fully_shard cuts in that order; distribute_tensor goes from first to last by _split_tensor. The two hold the same
// rows except where nested splits are uneven, and there `local_shape` tells which was done; where nothing is held, any shape without
// elements does. InvalidArgument when neither has that shape, or when both have it with different rows.
absl::StatusOr<std::vector<Box>> BoxesOfLocal(std::span<const int64_t> global_shape, std::span<const int64_t> mesh_shape,
                                              std::span<const int64_t> coordinate, std::span<const Placement> placements,
                                              std::span<const int64_t> local_shape);

}  // namespace lamina::shard
