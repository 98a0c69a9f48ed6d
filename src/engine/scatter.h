// Copies packed elements into a strided view of the trainer's memory: the reverse of a device's gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lamina/tensor_view.h"

namespace lamina::engine {

// True when no two elements of the view share memory through a stride of 0; the strides of a view without elements say nothing.
bool IsWritable(const BoxView& view);

// Writes the packed elements of `source` to the view's elements from row-major ordinal `element_begin` on. All lie in the view.
void Scatter(const BoxView& view, int64_t element_bytes, int64_t element_begin, std::span<const std::byte> source);

}  // namespace lamina::engine
