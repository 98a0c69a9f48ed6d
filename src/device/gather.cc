#include "device/gather.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/bytes.h"
#include "base/status.h"
#include "device/streaming_copy.h"

namespace lamina::device {
namespace {

constexpr int64_t kElementCountMax = int64_t{1} << 58;  // times 16 bytes still fits

bool IsElementSize(int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16; }

absl::StatusOr<int64_t> CountElements(const StridedSource& source) {
  if (!IsElementSize(source.element_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("elements of ", source.element_bytes, " bytes: expected 1, 2, 4, 8 or 16"));
  }
  if (source.extent.size() != source.strides.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a source of ", source.extent.size(), " dimensions has ", source.strides.size(), " strides"));
  }
  for (const int64_t extent : source.extent) {
    if (extent < 0) return absl::InvalidArgumentError(absl::StrCat("an extent of ", extent, ": expected 0 or more"));
  }
  if (std::ranges::count(source.extent, 0) > 0) return 0;
  int64_t count = 1;
  for (const int64_t extent : source.extent) {
    const std::optional<int64_t> product = base::CheckedMultiply(count, extent);
    if (!product.has_value() || *product > kElementCountMax) return absl::InvalidArgumentError("a source has more than 2^58 elements");
    count = *product;
  }
  return count;
}

bool IsContiguous(const StridedSource& source) {
  int64_t packed_stride = 1;
  for (size_t d = source.extent.size(); d-- > 0;) {
    if (source.extent[d] != 1 && source.strides[d] != packed_stride) return false;
    packed_stride *= source.extent[d];
  }
  return true;
}

// A transposed source is read a cache line at a time into this many rows of the target.
constexpr int64_t kRowsAtOnceMax = 16;

struct Rows {
  int64_t count = 1;
  int64_t stride_bytes = 0;
  int64_t elements = 0;  // of each row
  int64_t element_stride_bytes = 0;
};

template <int64_t kElementBytes>
void CopyElements(std::byte* target, const std::byte* source, const Rows& rows) {
  for (int64_t i = 0; i < rows.elements; ++i) {
    for (int64_t row = 0; row < rows.count; ++row) {
      std::memcpy(target + (row * rows.elements + i) * kElementBytes, source + row * rows.stride_bytes + i * rows.element_stride_bytes,
                  kElementBytes);
    }
  }
}

void CopyRows(std::byte* target, const std::byte* source, int64_t element_bytes, const Rows& rows) {
  if (rows.count == 1 && rows.element_stride_bytes == element_bytes) {
    return StreamingCopy(target, source, static_cast<size_t>(rows.elements * element_bytes));
  }
  switch (element_bytes) {
    case 1:
      return CopyElements<1>(target, source, rows);
    case 2:
      return CopyElements<2>(target, source, rows);
    case 4:
      return CopyElements<4>(target, source, rows);
    case 8:
      return CopyElements<8>(target, source, rows);
    default:
      return CopyElements<16>(target, source, rows);
  }
}

}  // namespace

absl::StatusOr<GatherPlan> GatherPlan::Make(const StridedSource& source) {
  LAMINA_ASSIGN_OR_RETURN(const int64_t element_count, CountElements(source));
  if (source.data == nullptr && element_count > 0) {
    return absl::InternalError(absl::StrCat("a null pointer was handed over for ", element_count, " elements"));
  }
  GatherPlan plan;
  plan.data_ = source.data;
  plan.element_bytes_ = source.element_bytes;
  plan.element_count_ = element_count;
  if (element_count > 0 && !IsContiguous(source)) plan.AppendDimensions(source);
  return plan;
}

void GatherPlan::AppendDimensions(const StridedSource& source) {
  for (size_t d = 0; d < source.extent.size(); ++d) {
    const Dimension next{source.extent[d], source.strides[d] * element_bytes_};
    if (next.extent == 1) continue;
    if (!dimensions_.empty() && dimensions_.back().stride_bytes == next.stride_bytes * next.extent) {
      dimensions_.back() = {dimensions_.back().extent * next.extent, next.stride_bytes};
    } else {
      dimensions_.push_back(next);
    }
  }
}

absl::Status GatherPlan::CheckRange(int64_t element_begin, int64_t element_count) const {
  if (element_begin >= 0 && element_count >= 0 && element_begin <= element_count_ && element_count <= element_count_ - element_begin) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("elements from ", element_begin, ", ", element_count, " of them, of a source that has ", element_count_));
}

void GatherPlan::Gather(int64_t element_begin, int64_t element_count, std::byte* target) const {
  if (contiguous()) {
    return StreamingCopy(target, data_ + element_begin * element_bytes_, static_cast<size_t>(element_count * element_bytes_));
  }
  const Dimension inner = dimensions_.back();
  const size_t outer_count = dimensions_.size() - 1;
  int64_t inner_at = element_begin % inner.extent;
  // Where the row of the first element lies, from its row-major ordinal.
  std::vector<int64_t> at(outer_count);
  int64_t row_offset = 0;
  for (int64_t rest = element_begin / inner.extent, d = static_cast<int64_t>(outer_count) - 1; d >= 0; --d) {
    at[d] = rest % dimensions_[d].extent;
    rest /= dimensions_[d].extent;
    row_offset += at[d] * dimensions_[d].stride_bytes;
  }
  const bool transposed = outer_count > 0 && std::abs(dimensions_[outer_count - 1].stride_bytes) < std::abs(inner.stride_bytes);
  while (element_count > 0) {
    Rows rows{1, 0, std::min(element_count, inner.extent - inner_at), inner.stride_bytes};
    if (transposed && rows.elements == inner.extent) {
      const Dimension& next = dimensions_[outer_count - 1];
      rows.count = std::min({kRowsAtOnceMax, next.extent - at[outer_count - 1], element_count / inner.extent});
      rows.stride_bytes = next.stride_bytes;
    }
    CopyRows(target, data_ + (row_offset + inner_at * inner.stride_bytes), element_bytes_, rows);
    target += rows.count * rows.elements * element_bytes_;
    element_count -= rows.count * rows.elements;
    inner_at = 0;
    int64_t steps = rows.count;
    for (size_t d = outer_count; d-- > 0; steps = 1) {
      row_offset += steps * dimensions_[d].stride_bytes;
      at[d] += steps;
      if (at[d] < dimensions_[d].extent) break;
      row_offset -= dimensions_[d].extent * dimensions_[d].stride_bytes;
      at[d] = 0;
    }
  }
}

}  // namespace lamina::device
