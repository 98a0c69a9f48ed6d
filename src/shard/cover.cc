// How boxes lie to one another: exact covers and splits.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "shard/box.h"

namespace lamina::shard {
namespace {

bool Contains(const Box& box, std::span<const int64_t> element) {
  for (size_t d = 0; d < element.size(); ++d) {
    if (element[d] < box.offset[d] || element[d] - box.offset[d] >= box.extent[d]) return false;
  }
  return true;
}

// A corner as one number whose order is the corners' lexicographic order: coordinates relative to the region, radix extent + 1.
class Corners {
 public:
  Corners(const Box& region, std::vector<size_t> dims, size_t box_count) : region_(region), dims_(std::move(dims)) {
    corners_.reserve((box_count + 1) << dims_.size());
  }

  // Adds the box's corners, each with `sign` for an even number of far ends and -`sign` for an odd one.
  void Add(const Box& box, int32_t sign) {
    for (uint32_t ends = 0; ends < (1u << dims_.size()); ++ends) {
      absl::uint128 key = 0;
      int32_t corner_sign = sign;
      for (size_t i = 0; i < dims_.size(); ++i) {
        const size_t d = dims_[i];
        const bool far = ((ends >> i) & 1u) != 0;
        const int64_t at = box.offset[d] - region_.offset[d] + (far ? box.extent[d] : 0);
        key = key * static_cast<uint64_t>(region_.extent[d] + 1) + static_cast<uint64_t>(at);
        if (far) corner_sign = -corner_sign;
      }
      corners_.push_back({key, corner_sign});
    }
  }

  // The element at the lexicographically first corner that does not cancel; nullopt when all do.
  std::optional<std::vector<int64_t>> FirstLeft() {
    std::sort(corners_.begin(), corners_.end(), [](const Corner& a, const Corner& b) { return a.key < b.key; });
    for (size_t at = 0; at < corners_.size();) {
      const absl::uint128 key = corners_[at].key;
      int64_t weight = 0;
      for (; at < corners_.size() && corners_[at].key == key; ++at) weight += corners_[at].sign;
      if (weight != 0) return ElementAt(key);
    }
    return std::nullopt;
  }

 private:
  struct Corner {
    absl::uint128 key;
    int32_t sign;
  };

  std::vector<int64_t> ElementAt(absl::uint128 key) const {
    std::vector<int64_t> element = region_.offset;
    for (size_t i = dims_.size(); i-- > 0;) {
      const absl::uint128 radix = static_cast<uint64_t>(region_.extent[dims_[i]] + 1);
      element[dims_[i]] += static_cast<int64_t>(absl::Uint128Low64(key % radix));
      key /= radix;
    }
    return element;
  }

  const Box& region_;
  const std::vector<size_t> dims_;
  std::vector<Corner> corners_;  // sorted at the end, and no table of those that are left: a bound on memory that hostile boxes keep too
};

// The dimensions in which some box does not span the region. The others cannot tell boxes apart.
template <typename BoxOf>
std::vector<size_t> CutDims(const Box& region, size_t count, const BoxOf& box_of) {
  std::vector<bool> cut(region.extent.size());
  for (size_t i = 0; i < count; ++i) {
    const HeldBox& held = box_of(i);
    for (size_t d = 0; d < cut.size(); ++d) cut[d] = cut[d] || (!IsEmpty(held.box) && held.box.extent[d] != region.extent[d]);
  }
  std::vector<size_t> dims;
  for (size_t d = 0; d < cut.size(); ++d) {
    if (cut[d]) dims.push_back(d);
  }
  return dims;
}

// The dimension in which the boxes begin at the most places: it tells them apart best. Some dimension exists.
size_t MostCutDim(std::span<const HeldBox> held) {
  size_t dim = 0;
  size_t most = 0;
  std::vector<int64_t> offsets(held.size());
  for (size_t d = 0; d < held[0].box.offset.size(); ++d) {
    std::transform(held.begin(), held.end(), offsets.begin(), [d](const HeldBox& h) { return h.box.offset[d]; });
    std::sort(offsets.begin(), offsets.end());
    const auto distinct = static_cast<size_t>(std::unique(offsets.begin(), offsets.end()) - offsets.begin());
    if (distinct > most) {
      most = distinct;
      dim = d;
    }
  }
  return dim;
}

// Grows the hole at `element` to a box: to the end of the region, or to the first box in the way.
template <typename BoxOf>
Box HoleAt(const Box& region, size_t count, const BoxOf& box_of, const std::vector<int64_t>& element) {
  Box hole{element, std::vector<int64_t>(element.size(), 1)};
  for (size_t d = element.size(); d-- > 0;) {
    Box grown = hole;
    grown.extent[d] = region.offset[d] + region.extent[d] - element[d];
    for (size_t i = 0; i < count; ++i) {
      const HeldBox& held = box_of(i);
      if (Intersect(grown, held.box).has_value()) grown.extent[d] = std::min(grown.extent[d], held.box.offset[d] - element[d]);
    }
    hole = std::move(grown);
  }
  return hole;
}

absl::Status Overlap(const HeldBox& a, const HeldBox& b) {
  const std::string common = ToString(*Intersect(a.box, b.box));
  if (a.holder == b.holder) return absl::InvalidArgumentError(absl::StrCat(common, " is held twice by rank ", a.holder));
  return absl::InvalidArgumentError(
      absl::StrCat(common, " is held by ranks ", a.holder, " and ", b.holder, ", in boxes ", ToString(a.box), " and ", ToString(b.box)));
}

template <typename BoxOf>
absl::Status FaultAt(const Box& region, size_t count, const BoxOf& box_of, const std::vector<int64_t>& element) {
  std::optional<HeldBox> holder;
  for (size_t i = 0; i < count; ++i) {
    const HeldBox& held = box_of(i);
    if (!Contains(held.box, element)) continue;
    if (holder) return Overlap(*holder, held);
    holder = held;
  }
  return absl::InvalidArgumentError(absl::StrCat(ToString(HoleAt(region, count, box_of, element)), " is held by no rank"));
}

// The sum of the boxes' indicator functions less the region's is 0 everywhere if and only if its mixed differences are, and those of a
// box are its signed corners: so all corners must cancel. At the first corner that does not, in lexicographic order, the difference is the
// function itself, and that element is held by no box or by several. Boxes lie inside the region; those without elements do not count.
template <typename BoxOf>
absl::Status CheckCoverOf(const Box& region, size_t count, const BoxOf& box_of) {
  std::vector<size_t> dims = CutDims(region, count, box_of);
  if (dims.size() > kCutDimsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("boxes cut ", dims.size(), " dimensions of ", ToString(region), ", more than ", kCutDimsMax));
  }
  Corners corners(region, std::move(dims), count);
  if (!IsEmpty(region)) corners.Add(region, -1);
  for (size_t i = 0; i < count; ++i) {
    const HeldBox& held = box_of(i);
    if (!IsEmpty(held.box)) corners.Add(held.box, 1);
  }
  const std::optional<std::vector<int64_t>> left = corners.FirstLeft();
  return left ? FaultAt(region, count, box_of, *left) : absl::OkStatus();
}

template <typename BoxOf>
absl::Status CheckCoverOfShape(std::span<const int64_t> global_shape, size_t count, const BoxOf& box_of) {
  if (!CheckedElementCount(global_shape).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("shape ", ToString(WholeBox(global_shape)), " has a negative or too large size"));
  }
  for (size_t i = 0; i < count; ++i) {
    const HeldBox& held = box_of(i);
    LAMINA_RETURN_IF_ERROR(ValidateBox(held.box, global_shape));
  }
  return CheckCoverOf(WholeBox(global_shape), count, box_of);
}

auto In(std::span<const HeldBox> held) {
  return [held](size_t i) -> const HeldBox& { return held[i]; };
}

}  // namespace

absl::Status CheckCover(std::span<const int64_t> global_shape, std::span<const HeldBox> held) {
  return CheckCoverOfShape(global_shape, held.size(), In(held));
}

absl::Status CheckCover(std::span<const int64_t> global_shape, size_t count, const std::function<HeldBox(size_t)>& box_of) {
  return CheckCoverOfShape(global_shape, count, box_of);
}

absl::Status CheckDisjoint(std::span<const HeldBox> held) {
  std::vector<const HeldBox*> order;
  for (const HeldBox& h : held) {
    if (!IsEmpty(h.box)) order.push_back(&h);
  }
  if (order.size() < 2) return absl::OkStatus();
  if (order[0]->box.offset.empty()) return Overlap(*order[0], *order[1]);
  const size_t d = MostCutDim(held);
  std::stable_sort(order.begin(), order.end(), [d](const HeldBox* a, const HeldBox* b) { return a->box.offset[d] < b->box.offset[d]; });
  std::vector<const HeldBox*> open;  // those that reach to where the next begins
  for (const HeldBox* h : order) {
    std::erase_if(open, [&](const HeldBox* o) { return o->box.offset[d] + o->box.extent[d] <= h->box.offset[d]; });
    for (const HeldBox* o : open) {
      if (Intersect(o->box, h->box).has_value()) return Overlap(*o, *h);
    }
    open.push_back(h);
  }
  return absl::OkStatus();
}

BoxIndex::BoxIndex(std::span<const HeldBox> held) : held_(held), order_(held.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  const size_t dim_count = held.empty() ? 0 : held[0].box.offset.size();
  same_dims_ = std::all_of(held.begin(), held.end(),
                           [&](const HeldBox& h) { return h.box.offset.size() == dim_count && h.box.extent.size() == dim_count; });
  if (!same_dims_ || dim_count == 0) return;
  dim_ = MostCutDim(held);
  const auto begin_of = [&](int32_t ordinal) { return held_[static_cast<size_t>(ordinal)].box.offset[dim_]; };
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return begin_of(a) < begin_of(b); });
  int64_t end = 0;
  for (const int32_t ordinal : order_) {
    end = std::max(end, begin_of(ordinal) + held_[static_cast<size_t>(ordinal)].box.extent[dim_]);
    ends_.push_back(end);
  }
}

// Ordinals, ascending, of the boxes that have an element of `wanted`, equal boxes once.
std::vector<int32_t> BoxIndex::Touching(const Box& wanted) const {
  auto first = order_.begin();
  auto last = order_.end();
  if (!ends_.empty()) {
    const int64_t begin = wanted.offset[dim_];
    first += std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    last = std::partition_point(
        first, last, [&](int32_t ordinal) { return held_[static_cast<size_t>(ordinal)].box.offset[dim_] < begin + wanted.extent[dim_]; });
  }
  std::vector<int32_t> touching;
  std::copy_if(first, last, std::back_inserter(touching), [&](int32_t ordinal) {
    const Box& box = held_[static_cast<size_t>(ordinal)].box;
    return !IsEmpty(box) && Intersect(box, wanted).has_value();
  });
  const auto box_of = [&](int32_t ordinal) -> const Box& { return held_[static_cast<size_t>(ordinal)].box; };
  std::stable_sort(touching.begin(), touching.end(), [&](int32_t a, int32_t b) {
    const auto order = box_of(a) <=> box_of(b);
    return order != 0 ? order < 0 : a < b;
  });
  touching.erase(std::unique(touching.begin(), touching.end(), [&](int32_t a, int32_t b) { return box_of(a) == box_of(b); }),
                 touching.end());
  std::sort(touching.begin(), touching.end());
  return touching;
}

absl::StatusOr<std::vector<Piece>> BoxIndex::Split(const Box& wanted) const {
  if (!same_dims_ || (!held_.empty() && held_[0].box.offset.size() != wanted.offset.size())) {
    return absl::InvalidArgumentError(absl::StrCat("boxes that hold ", ToString(wanted), " have other numbers of dimensions"));
  }
  std::vector<Piece> pieces;
  if (IsEmpty(wanted)) return pieces;
  std::vector<HeldBox> parts;
  for (const int32_t ordinal : Touching(wanted)) {
    const HeldBox& h = held_[static_cast<size_t>(ordinal)];
    pieces.push_back({ordinal, *Intersect(h.box, wanted)});
    parts.push_back({h.holder, pieces.back().box});
  }
  LAMINA_RETURN_IF_ERROR(CheckCoverOf(wanted, parts.size(), In(parts)));
  return pieces;
}

absl::StatusOr<std::vector<Piece>> SplitBox(const Box& wanted, std::span<const HeldBox> held) { return BoxIndex(held).Split(wanted); }

}  // namespace lamina::shard
