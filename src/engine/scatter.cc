#include "engine/scatter.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "shard/box.h"

namespace lamina::engine {
namespace {

// Trailing dimensions that lie packed in memory count as one.
struct PackedTail {
  size_t dimension_count = 0;  // leading dimensions that are not part of it
  int64_t elements = 1;
};

PackedTail PackedTailOf(const BoxView& view) {
  PackedTail tail{view.box.extent.size(), 1};
  while (tail.dimension_count > 0) {
    const size_t dimension = tail.dimension_count - 1;
    if (view.box.extent[dimension] != 1 && view.strides[dimension] != tail.elements) break;
    tail.elements *= view.box.extent[dimension];
    --tail.dimension_count;
  }
  return tail;
}

}  // namespace

bool IsWritable(const BoxView& view) {
  if (shard::IsEmpty(view.box)) return true;
  for (size_t dimension = 0; dimension < view.strides.size(); ++dimension) {
    if (view.strides[dimension] == 0 && view.box.extent[dimension] > 1) return false;
  }
  return true;
}

void Scatter(const BoxView& view, int64_t element_bytes, int64_t element_begin, std::span<const std::byte> source) {
  const PackedTail tail = PackedTailOf(view);
  std::byte* const base = static_cast<std::byte*>(view.data);
  int64_t element = element_begin;
  while (!source.empty()) {
    const int64_t within = element % tail.elements;
    int64_t row = element / tail.elements;
    int64_t memory_element = within;
    for (size_t dimension = tail.dimension_count; dimension-- > 0;) {
      memory_element += (row % view.box.extent[dimension]) * view.strides[dimension];
      row /= view.box.extent[dimension];
    }
    const int64_t left = static_cast<int64_t>(source.size()) / element_bytes;
    const int64_t count = std::min(tail.elements - within, left);
    std::memcpy(base + memory_element * element_bytes, source.data(), static_cast<size_t>(count * element_bytes));
    source = source.subspan(static_cast<size_t>(count * element_bytes));
    element += count;
  }
}

}  // namespace lamina::engine
