#include "shard/boxes_of.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "shard/box.h"

namespace lamina::shard {
namespace {

// Indices [begin, end) of one dimension of the global tensor.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Interval&) const = default;
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
  if (!CheckedElementCount(mesh_shape).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("mesh shape ", ToString(WholeBox(mesh_shape)), " has a negative or too large size"));
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

// What is held of each dimension when the shards are cut in the given order of mesh dimensions.
std::vector<Intervals> Cut(std::span<const int64_t> global_shape, std::span<const int64_t> mesh_shape, std::span<const int64_t> coordinate,
                           std::span<const Placement> placements, std::span<const size_t> order) {
  std::vector<Intervals> dims;
  for (const int64_t size : global_shape) dims.push_back(size == 0 ? Intervals{} : Intervals{{0, size}});
  for (const size_t m : order) {
    const Placement& p = placements[m];
    if (p.kind == Placement::Kind::kReplicate) continue;
    Intervals& held = dims[static_cast<size_t>(p.dim)];
    held = Apply(held, p.kind == Placement::Kind::kStridedShard ? p.split_factor : 1, mesh_shape[m], coordinate[m]);
  }
  return dims;
}

// The order of plain shards that the strided shards stand for: a split factor is the number of pieces that later mesh dimensions had cut
// the tensor's dimension into before. nullopt when it is no such number.
std::optional<std::vector<size_t>> TrueOrder(std::span<const int64_t> mesh_shape, std::span<const Placement> placements) {
  std::vector<size_t> order;
  for (size_t m = mesh_shape.size(); m-- > 0;) {
    int64_t pieces = 1;
    size_t at = 0;
    const int64_t wanted = placements[m].kind == Placement::Kind::kStridedShard ? placements[m].split_factor : 1;
    for (; at < order.size() && pieces < wanted; ++at) {
      const Placement& before = placements[order[at]];
      if (before.kind != Placement::Kind::kReplicate && before.dim == placements[m].dim) pieces *= mesh_shape[order[at]];
    }
    if (pieces != wanted) return std::nullopt;
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), m);
  }
  return order;
}

std::vector<size_t> MeshOrder(size_t mesh_dims) {
  std::vector<size_t> order(mesh_dims);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

std::vector<Box> BoxesFrom(const std::vector<Intervals>& dims) {
  std::vector<Box> boxes = Product(dims);
  if (!boxes.empty()) return boxes;
  Box empty;
  for (const Intervals& held : dims) {
    empty.offset.push_back(0);
    empty.extent.push_back(Length(held));
  }
  return {std::move(empty)};
}

bool IsNothing(std::span<const int64_t> shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

// Nothing is nothing in any shape: fully_shard leaves no rows of a parameter that tensor parallelism left no columns of.
bool HasShape(const std::vector<Intervals>& dims, std::span<const int64_t> shape) {
  std::vector<int64_t> held;
  held.reserve(dims.size());
  for (const Intervals& intervals : dims) held.push_back(Length(intervals));
  return std::equal(held.begin(), held.end(), shape.begin(), shape.end()) ||
         (held.size() == shape.size() && IsNothing(held) && IsNothing(shape));
}

}  // namespace

absl::StatusOr<std::vector<Box>> BoxesOf(std::span<const int64_t> global_shape, std::span<const int64_t> mesh_shape,
                                         std::span<const int64_t> coordinate, std::span<const Placement> placements) {
  LAMINA_RETURN_IF_ERROR(Validate(global_shape, mesh_shape, coordinate, placements));
  return BoxesFrom(Cut(global_shape, mesh_shape, coordinate, placements, MeshOrder(mesh_shape.size())));
}

absl::StatusOr<std::vector<Box>> BoxesOfLocal(std::span<const int64_t> global_shape, std::span<const int64_t> mesh_shape,
                                              std::span<const int64_t> coordinate, std::span<const Placement> placements,
                                              std::span<const int64_t> local_shape) {
  LAMINA_RETURN_IF_ERROR(Validate(global_shape, mesh_shape, coordinate, placements));
  std::vector<std::vector<Intervals>> readings{Cut(global_shape, mesh_shape, coordinate, placements, MeshOrder(mesh_shape.size()))};
  if (const auto order = TrueOrder(mesh_shape, placements); order.has_value()) {
    std::vector<Placement> plain(placements.begin(), placements.end());
    for (Placement& p : plain) p.split_factor = 1;
    readings.push_back(Cut(global_shape, mesh_shape, coordinate, plain, *order));
  }
  std::erase_if(readings, [&](const std::vector<Intervals>& dims) { return !HasShape(dims, local_shape); });
  if (readings.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a local tensor of shape ", ToString(WholeBox(local_shape)),
                                                   " is not what the placements give of ", ToString(WholeBox(global_shape))));
  }
  if (IsNothing(local_shape)) {
    const std::vector<int64_t> extent(local_shape.begin(), local_shape.end());
    return std::vector<Box>{{std::vector<int64_t>(extent.size(), 0), extent}};
  }
  if (readings.front() != readings.back()) {
    return absl::InvalidArgumentError(absl::StrCat("strided shards of ", ToString(WholeBox(global_shape)),
                                                   " that do not divide evenly can be read in two ways; make the sizes divide"));
  }
  return BoxesFrom(readings.front());
}

}  // namespace lamina::shard
