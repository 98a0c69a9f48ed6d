// Copies a strided rectangle to packed bytes, on the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "device/device.h"

namespace lamina::device {

// A StridedSource in its simplest form: dimensions of one element dropped, neighbours that follow each other in memory merged. Borrows the
// memory, not the spans. A contiguous source needs no allocation.
class GatherPlan {
 public:
  // InvalidArgument for a rectangle that makes no sense; Internal for a null pointer with elements behind it.
  static absl::StatusOr<GatherPlan> Make(const StridedSource& source);

  bool contiguous() const { return dimensions_.empty(); }
  const std::byte* data() const { return data_; }
  int64_t element_bytes() const { return element_bytes_; }
  int64_t element_count() const { return element_count_; }

  // InvalidArgument unless [element_begin, element_begin + element_count) lies in the source.
  absl::Status CheckRange(int64_t element_begin, int64_t element_count) const;
  // Elements [element_begin, element_begin + element_count) in row-major order, packed, to `target`. The range was checked.
  void Gather(int64_t element_begin, int64_t element_count, std::byte* target) const;

 private:
  struct Dimension {
    int64_t extent = 0;
    int64_t stride_bytes = 0;
  };

  void AppendDimensions(const StridedSource& source);

  const std::byte* data_ = nullptr;
  int64_t element_bytes_ = 1;
  int64_t element_count_ = 0;
  std::vector<Dimension> dimensions_;  // outermost first; empty: contiguous
};

}  // namespace lamina::device
