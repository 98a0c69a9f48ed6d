// Algebra of boxes. All pure; sizes are checked where the box comes from outside (Validate), and trusted afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lamina/tensor_view.h"

namespace lamina::shard {

// The number of elements; 1 for 0-d. The box or shape is valid.
int64_t ElementCount(std::span<const int64_t> extent);
// nullopt when a dimension is negative or the product does not fit 2^62.
std::optional<int64_t> CheckedElementCount(std::span<const int64_t> extent);
// InvalidArgument when the box does not lie in `global_shape` or the numbers of dimensions differ.
absl::Status ValidateBox(const Box& box, std::span<const int64_t> global_shape);
bool IsEmpty(const Box& box);                              // has no element; never true for 0-d
std::optional<Box> Intersect(const Box& a, const Box& b);  // nullopt when no element is common
Box WholeBox(std::span<const int64_t> global_shape);
std::string ToString(const Box& box);  // "[0:4, 8:16]"; "[]" for 0-d
std::vector<int64_t> RowMajorStrides(std::span<const int64_t> extent);

// The boxes, at most 2N - 1 of them, ordered, that make up the row-major flat range [begin, end) of an array of shape `extent`
// placed at `origin` (same length). Empty range: no boxes. InvalidArgument when the range does not lie in the array.
absl::StatusOr<std::vector<Box>> BoxesOfFlatRange(std::span<const int64_t> origin, std::span<const int64_t> extent, int64_t begin,
                                                  int64_t end);

// One contiguous piece of a rectangular copy between two row-major arrays or views.
// Calls `visit(source_element, target_element, count)` for each maximal run of `common` (a box inside both), in row-major order, where
// the element numbers are row-major ordinals within `source` and `target`. Runs are merged over trailing dimensions that are whole in both.
void ForEachRun(const Box& common, const Box& source, const Box& target,
                const std::function<void(int64_t source_element, int64_t target_element, int64_t count)>& visit);

struct HeldBox {
  int32_t holder = 0;  // what the caller likes: rank, writer, ordinal
  Box box;
};

// Dimensions in which boxes of one tensor may divide it. Deciding a cover takes 2^dimensions steps a box, so the number is bounded.
inline constexpr size_t kCutDimsMax = 8;

// Checks that the boxes cover `global_shape` exactly once, in time near linear in their number. Empty boxes are ignored.
// InvalidArgument names a hole or the holders of an overlap, as "[0:2, 0:4] is held by no rank" / "... is held by ranks 1 and 3, in boxes
// ...".
absl::Status CheckCover(std::span<const int64_t> global_shape, std::span<const HeldBox> held);
// The same, for boxes that are made when they are asked for, some times each. Holds 32 × 2^d bytes a box, where they cut d dimensions.
absl::Status CheckCover(std::span<const int64_t> global_shape, size_t count, const std::function<HeldBox(size_t)>& box_of);

// Checks that no two boxes share an element; InvalidArgument names the two, as CheckCover does. The boxes are valid, with equal numbers of
// dimensions. O(n log n) as long as few boxes meet in the dimension with the most cuts.
absl::Status CheckDisjoint(std::span<const HeldBox> held);

// Splits `wanted` over the boxes that hold it, ordered by (holder's position in `held`). Pieces are disjoint; where boxes overlap the first
// wins only when they are equal. InvalidArgument naming the hole when they do not cover `wanted`.
struct Piece {
  int32_t held_ordinal = 0;  // into `held`
  Box box;                   // global indices
};
absl::StatusOr<std::vector<Piece>> SplitBox(const Box& wanted, std::span<const HeldBox> held);

// Many splits over the same boxes: O(n log n) once, then each split costs about as much as it has pieces. `held` must outlive it.
class BoxIndex {
 public:
  explicit BoxIndex(std::span<const HeldBox> held);
  absl::StatusOr<std::vector<Piece>> Split(const Box& wanted) const;  // as SplitBox

 private:
  std::vector<int32_t> Touching(const Box& wanted) const;

  const std::span<const HeldBox> held_;
  bool same_dims_ = true;
  size_t dim_ = 0;              // of the tensor; the boxes are sorted by where they begin in it
  std::vector<int32_t> order_;  // ordinals into held_
  std::vector<int64_t> ends_;   // the furthest end in dim_ of the boxes so far in order_
};

}  // namespace lamina::shard
