// Slow and obvious references for boxes: every element by itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lamina/tensor_view.h"

namespace lamina::testing {

// The row-major ordinals, in the array of shape `global_shape`, of the elements of `box`, in the box's row-major order.
inline std::vector<int64_t> ElementsOf(const Box& box, std::span<const int64_t> global_shape) {
  std::vector<int64_t> elements{0};
  for (size_t d = 0; d < global_shape.size(); ++d) {
    std::vector<int64_t> longer;
    for (const int64_t element : elements) {
      for (int64_t i = 0; i < box.extent[d]; ++i) longer.push_back(element * global_shape[d] + box.offset[d] + i);
    }
    elements = std::move(longer);
  }
  return elements;
}

// A uniform number in [low, high].
template <typename Generator>
int64_t Draw(Generator& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

}  // namespace lamina::testing
