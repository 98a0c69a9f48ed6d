// How many values of a chunk are infinities or NaNs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lamina/tensor_view.h"

namespace lamina::format {

// `raw` holds whole elements. A complex element has two values; a type without infinities and NaNs has none.
uint64_t NonfiniteCount(std::span<const std::byte> raw, DType dtype);

}  // namespace lamina::format
