// Strided memory of every shape a trainer may hand over, with a slow and obvious way to read it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace lamina::testing {

struct RandomSource {
  std::vector<std::byte> storage;
  int64_t first_byte = 0;  // of the first element, in `storage`
  int64_t element_bytes = 1;
  std::vector<int64_t> extent;
  std::vector<int64_t> strides;  // in elements

  const std::byte* data() const { return storage.data() + first_byte; }

  int64_t ElementCount() const { return std::accumulate(extent.begin(), extent.end(), int64_t{1}, std::multiplies<>()); }

  // The packed bytes, found by one index computation an element.
  std::vector<std::byte> Packed() const {
    const int64_t count = ElementCount();
    std::vector<std::byte> packed(static_cast<size_t>(count * element_bytes));
    for (int64_t ordinal = 0; ordinal < count; ++ordinal) {
      int64_t element = 0;
      int64_t rest = ordinal;
      for (size_t d = extent.size(); d-- > 0; rest /= extent[d]) element += rest % extent[d] * strides[d];
      std::memcpy(packed.data() + ordinal * element_bytes, data() + element * element_bytes, static_cast<size_t>(element_bytes));
    }
    return packed;
  }
};

inline void FillRandom(std::vector<std::byte>& bytes, std::mt19937_64& random) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + at, &value, std::min(sizeof(value), bytes.size() - at));
  }
}

// Dimensions in a random order in memory, with gaps, expanded (stride 0), reversed (negative stride), empty or 0-d.
inline RandomSource MakeRandomSource(std::mt19937_64& random, int64_t element_bytes, int64_t extent_max) {
  const auto below = [&random](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  RandomSource source;
  source.element_bytes = element_bytes;
  const auto dimensions = static_cast<size_t>(below(5));
  std::vector<size_t> order(dimensions);
  std::iota(order.begin(), order.end(), size_t{0});
  if (below(2) == 0) std::shuffle(order.begin(), order.end(), random);
  const bool plain = below(4) == 0;
  source.extent.resize(dimensions);
  source.strides.resize(dimensions);
  for (int64_t& extent : source.extent) extent = below(20) == 0 ? 0 : 1 + below(extent_max);
  int64_t span = 1;  // elements that the dimensions laid so far reach over
  int64_t first = below(3);
  for (size_t i = dimensions; i-- > 0;) {
    const size_t d = order[i];
    int64_t stride = span;
    if (!plain && below(3) == 0) stride += below(4);
    if (!plain && below(6) == 0) stride = 0;
    const int64_t reach = stride * std::max<int64_t>(0, source.extent[d] - 1);
    span += reach;
    if (!plain && below(4) == 0) {
      first += reach;
      stride = -stride;
    }
    source.strides[d] = stride;
  }
  source.first_byte = first * element_bytes;
  source.storage.resize(static_cast<size_t>((first + span + 1) * element_bytes));
  FillRandom(source.storage, random);
  return source;
}

}  // namespace lamina::testing
