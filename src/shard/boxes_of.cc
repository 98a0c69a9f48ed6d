#include "shard/boxes_of.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "shard/box.h"

namespace lamina::shard {
namespace {

// Indices [begin, end) of one dimension of the global tensor.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
};
// What is held of one dimension, in the order of the local tensor. Splits of different dimensions are independent of one another.
using Intervals = std::vector<Interval>;

int64_t Length(const Intervals& held) {
  int64_t length = 0;
  for (const Interval& i : held) length += i.end - i.begin;
  return length;
}

// Appends the indices at positions [begin, end) of `held`, joining what touches.
void AppendSlice(const Intervals& held, int64_t begin, int64_t end, Intervals& slice) {
  for (const Interval& i : held) {
    const int64_t length = i.end - i.begin;
    const Interval part{i.begin + std::clamp<int64_t>(begin, 0, length), i.begin + std::clamp<int64_t>(end, 0, length)};
    begin -= length;
    end -= length;
    if (part.begin >= part.end) continue;
    if (!slice.empty() && slice.back().end == part.begin) {
      slice.back().end = part.end;
    } else {
      slice.push_back(part);
    }
  }
}

// Chunk `ordinal` of `count` of a range, as torch.chunk cuts it: all but the last as long as the division rounded up; surplus chunks are
// empty.
Interval Chunk(Interval range, int64_t count, int64_t ordinal) {
  const int64_t length = range.end - range.begin;
  const int64_t chunk = length / count + (length % count == 0 ? 0 : 1);
  // Compared before multiplying, which could overflow: beyond the last chunk all is empty.
  const int64_t begin = chunk == 0 || ordinal > length / chunk ? length : ordinal * chunk;
  return {range.begin + begin, range.begin + std::min(length, begin + chunk)};
}

// A strided shard cuts into split_factor pieces first and takes its chunk of each; a plain shard is the case of one piece.
Intervals Apply(const Intervals& held, int64_t split_factor, int64_t mesh_size, int64_t coordinate) {
  Intervals local;
  const int64_t length = Length(held);
  for (int64_t piece = 0; piece < split_factor; ++piece) {
    const Interval outer = Chunk({0, length}, split_factor, piece);
    if (outer.begin >= length) break;
    const Interval inner = Chunk(outer, mesh_size, coordinate);
    AppendSlice(held, inner.begin, inner.end, local);
  }
  return local;
}

absl::Status Validate(std::span<const int64_t> global_shape, std::span<const int64_t> mesh_shape, std::span<const int64_t> coordinate,
                      std::span<const Placement> placements) {
  if (!CheckedElementCount(global_shape).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("shape ", ToString(WholeBox(global_shape)), " has a negative or too large size"));
  }
  if (mesh_shape.size() != placements.size() || mesh_shape.size() != coordinate.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a mesh of ", mesh_shape.size(), " dimensions has ", placements.size(),
                                                   " placements and a coordinate of ", coordinate.size(), " dimensions"));
  }
  for (size_t m = 0; m < mesh_shape.size(); ++m) {
    if (coordinate[m] < 0 || coordinate[m] >= mesh_shape[m]) {
      return absl::InvalidArgumentError(
          absl::StrCat("coordinate ", coordinate[m], " of mesh dimension ", m, " is not in [0, ", mesh_shape[m], ")"));
    }
    const Placement& placement = placements[m];
    if (placement.kind == Placement::Kind::kReplicate) continue;
    if (placement.dim < 0 || placement.dim >= static_cast<int64_t>(global_shape.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh dimension ", m, " shards dimension ", placement.dim, " of a tensor of ", global_shape.size(), " dimensions"));
    }
    if (placement.kind == Placement::Kind::kStridedShard && placement.split_factor < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh dimension ", m, " has a strided shard of split factor ", placement.split_factor, ", expected at least 1"));
    }
  }
  return absl::OkStatus();
}

// Every combination of one interval a dimension, the last dimension fastest.
std::vector<Box> Product(const std::vector<Intervals>& dims) {
  std::vector<Box> boxes(1);
  for (const Intervals& intervals : dims) {
    std::vector<Box> longer;
    longer.reserve(boxes.size() * intervals.size());
    for (const Box& box : boxes) {
      for (const Interval& i : intervals) {
        longer.push_back(box);
        longer.back().offset.push_back(i.begin);
        longer.back().extent.push_back(i.end - i.begin);
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

}  // namespace

absl::StatusOr<std::vector<Box>> BoxesOf(std::span<const int64_t> global_shape, std::span<const int64_t> mesh_shape,
                                         std::span<const int64_t> coordinate, std::span<const Placement> placements) {
  if (absl::Status valid = Validate(global_shape, mesh_shape, coordinate, placements); !valid.ok()) return valid;
  std::vector<Intervals> dims;
  for (const int64_t size : global_shape) dims.push_back(size == 0 ? Intervals{} : Intervals{{0, size}});
  for (size_t m = 0; m < mesh_shape.size(); ++m) {
    const Placement& p = placements[m];
    if (p.kind == Placement::Kind::kReplicate) continue;
    Intervals& held = dims[static_cast<size_t>(p.dim)];
    held = Apply(held, p.kind == Placement::Kind::kStridedShard ? p.split_factor : 1, mesh_shape[m], coordinate[m]);
  }
  std::vector<Box> boxes = Product(dims);
  if (!boxes.empty()) return boxes;
  Box empty;
  for (const Intervals& held : dims) {
    empty.offset.push_back(0);
    empty.extent.push_back(Length(held));
  }
  return std::vector<Box>{std::move(empty)};
}

}  // namespace lamina::shard
