// States of random shapes, laid out over ranks at random.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "env/sim_random.h"
#include "testing/job_state.h"

namespace lamina::sim {

// A few small tensors of up to three dimensions, some empty; the last is sometimes an alias of the first.
inline std::vector<StoredTensor> RandomTensors(env::SimRandom& random) {
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kBfloat16, DType::kInt64, DType::kBool, DType::kComplex128};
  std::vector<StoredTensor> tensors;
  const int64_t count = 2 + random.Below(3);
  for (int64_t i = 0; i < count; ++i) {
    StoredTensor& tensor = tensors.emplace_back(StoredTensor{absl::StrCat("t", i), kDTypes[random.Below(std::ssize(kDTypes))], {}, ""});
    tensor.global_shape.resize(static_cast<size_t>(random.Below(4)));
    for (int64_t& extent : tensor.global_shape) extent = random.Chance(0.05) ? 0 : 1 + random.Below(5);
  }
  if (random.Chance(0.3)) tensors.push_back({"tied", tensors[0].dtype, tensors[0].global_shape, "t0"});
  return tensors;
}

// Who holds what: a tensor is cut at random into boxes, and each box is held by one rank or by several.
inline std::vector<testing::LaidOutTensor> RandomLayout(env::SimRandom& random, const std::vector<StoredTensor>& tensors,
                                                        int32_t rank_count) {
  std::vector<testing::LaidOutTensor> layout;
  for (const StoredTensor& tensor : tensors) {
    testing::LaidOutTensor& laid_out = layout.emplace_back();
    laid_out.tensor = tensor;
    laid_out.boxes.resize(static_cast<size_t>(rank_count));
    laid_out.column_major = random.Chance(0.3);
    if (!tensor.alias_of.empty()) continue;
    std::vector<Box> pieces{shard::WholeBox(tensor.global_shape)};
    const int64_t cuts = tensor.global_shape.empty() ? 0 : random.Below(2 * rank_count);
    for (int64_t cut = 0; cut < cuts; ++cut) {
      const size_t piece = static_cast<size_t>(random.Below(std::ssize(pieces)));
      const size_t dimension = static_cast<size_t>(random.Below(std::ssize(tensor.global_shape)));
      const int64_t extent = pieces[piece].extent[dimension];
      if (extent < 2) continue;
      Box rest = pieces[piece];
      const int64_t at = 1 + random.Below(extent - 1);
      pieces[piece].extent[dimension] = at;
      rest.offset[dimension] += at;
      rest.extent[dimension] -= at;
      pieces.push_back(std::move(rest));
    }
    const double replicated = random.Chance(0.5) ? 0 : 0.5;
    for (const Box& piece : pieces) {
      const int64_t owner = random.Below(rank_count);
      for (int32_t rank = 0; rank < rank_count; ++rank) {
        if (rank == owner || random.Chance(replicated)) laid_out.boxes[static_cast<size_t>(rank)].push_back(piece);
      }
    }
  }
  return layout;
}

}  // namespace lamina::sim
