#include "shard/box.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"

namespace lamina::shard {
namespace {

constexpr int64_t kElementCountMax = int64_t{1} << 62;

// Appends the boxes of the flat range [begin, end), begin < end, within dimensions `dim` and up; `row` has the dimensions below fixed.
void AppendFlatRange(Box row, size_t dim, std::span<const int64_t> origin, std::span<const int64_t> extent, int64_t begin, int64_t end,
                     std::vector<Box>& boxes) {
  if (dim == extent.size()) {
    boxes.push_back(std::move(row));
    return;
  }
  const int64_t inner = ElementCount(extent.subspan(dim + 1));
  const auto within_row = [&](int64_t ordinal, int64_t row_begin, int64_t row_end) {
    Box fixed = row;
    fixed.offset[dim] = origin[dim] + ordinal;
    fixed.extent[dim] = 1;
    AppendFlatRange(std::move(fixed), dim + 1, origin, extent, row_begin, row_end, boxes);
  };
  const int64_t first = begin / inner;
  const int64_t last = end / inner;
  if (first == last) return within_row(first, begin % inner, end % inner);
  const int64_t whole_begin = begin % inner == 0 ? first : first + 1;
  if (whole_begin != first) within_row(first, begin % inner, inner);
  if (whole_begin < last) {
    Box whole = row;
    whole.offset[dim] = origin[dim] + whole_begin;
    whole.extent[dim] = last - whole_begin;
    boxes.push_back(std::move(whole));
  }
  if (end % inner != 0) within_row(last, 0, end % inner);
}

}  // namespace

int64_t ElementCount(std::span<const int64_t> extent) {
  int64_t count = 1;
  for (const int64_t e : extent) count *= e;
  return count;
}

std::optional<int64_t> CheckedElementCount(std::span<const int64_t> extent) {
  std::optional<int64_t> count = 1;
  bool has_zero = false;
  for (const int64_t e : extent) {
    if (e < 0) return std::nullopt;
    has_zero |= e == 0;
    // A zero anywhere makes the product 0, but the other dimensions must multiply without overflow: strides are made of them.
    if (e > 0) count = base::CheckedMultiply(*count, e);
    if (!count.has_value() || *count > kElementCountMax) return std::nullopt;
  }
  return has_zero ? 0 : *count;
}

absl::Status ValidateBox(const Box& box, std::span<const int64_t> global_shape) {
  bool inside = box.offset.size() == global_shape.size() && box.extent.size() == global_shape.size();
  for (size_t d = 0; inside && d < global_shape.size(); ++d) {
    inside =
        box.offset[d] >= 0 && box.extent[d] >= 0 && box.offset[d] <= global_shape[d] && box.extent[d] <= global_shape[d] - box.offset[d];
  }
  if (inside) return absl::OkStatus();
  Box whole = WholeBox(global_shape);
  return absl::InvalidArgumentError(absl::StrCat("box ", ToString(box), " does not lie in ", ToString(whole)));
}

bool IsEmpty(const Box& box) {
  return std::any_of(box.extent.begin(), box.extent.end(), [](int64_t e) { return e == 0; });
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box common = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    common.offset[d] = begin;
    common.extent[d] = end - begin;
  }
  return common;
}

Box WholeBox(std::span<const int64_t> global_shape) {
  return {std::vector<int64_t>(global_shape.size(), 0), std::vector<int64_t>(global_shape.begin(), global_shape.end())};
}

std::string ToString(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < std::min(box.offset.size(), box.extent.size()); ++d) {
    // Not a sum of the two: a box that is being refused may not have one.
    const std::optional<int64_t> end = base::CheckedAdd(box.offset[d], box.extent[d]);
    absl::StrAppend(&text, d == 0 ? "" : ", ", box.offset[d], ":");
    text += end.has_value() ? absl::StrCat(*end) : absl::StrCat(box.offset[d], "+", box.extent[d]);
  }
  return text + "]";
}

std::vector<int64_t> RowMajorStrides(std::span<const int64_t> extent) {
  std::vector<int64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * extent[d];
  return strides;
}

absl::StatusOr<std::vector<Box>> BoxesOfFlatRange(std::span<const int64_t> origin, std::span<const int64_t> extent, int64_t begin,
                                                  int64_t end) {
  const std::optional<int64_t> count = CheckedElementCount(extent);
  if (origin.size() != extent.size() || !count.has_value() || begin < 0 || end < begin || end > *count) {
    return absl::InvalidArgumentError(
        absl::StrCat("flat range [", begin, ", ", end, ") does not lie in an array of extent ", ToString(WholeBox(extent))));
  }
  std::vector<Box> boxes;
  if (begin == end) return boxes;
  AppendFlatRange({{origin.begin(), origin.end()}, {extent.begin(), extent.end()}}, 0, origin, extent, begin, end, boxes);
  return boxes;
}

void ForEachRun(const Box& common, const Box& source, const Box& target,
                const std::function<void(int64_t source_element, int64_t target_element, int64_t count)>& visit) {
  if (IsEmpty(common)) return;
  // Dimensions from `inner` on are one run: all but the first of them are whole in both.
  size_t inner = common.extent.size();
  int64_t count = 1;
  for (bool whole = true; inner > 0 && whole;) {
    --inner;
    count *= common.extent[inner];
    whole = common.extent[inner] == source.extent[inner] && common.extent[inner] == target.extent[inner];
  }
  const std::vector<int64_t> source_strides = RowMajorStrides(source.extent);
  const std::vector<int64_t> target_strides = RowMajorStrides(target.extent);
  int64_t source_element = 0;
  int64_t target_element = 0;
  for (size_t d = 0; d < common.extent.size(); ++d) {
    source_element += (common.offset[d] - source.offset[d]) * source_strides[d];
    target_element += (common.offset[d] - target.offset[d]) * target_strides[d];
  }
  std::vector<int64_t> at(inner, 0);
  while (true) {
    visit(source_element, target_element, count);
    size_t d = inner;
    for (; d > 0; --d) {  // the next row: an odometer over the outer dimensions
      source_element += source_strides[d - 1];
      target_element += target_strides[d - 1];
      if (++at[d - 1] < common.extent[d - 1]) break;
      source_element -= at[d - 1] * source_strides[d - 1];
      target_element -= at[d - 1] * target_strides[d - 1];
      at[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

}  // namespace lamina::shard
