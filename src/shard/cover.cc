// How boxes lie to one another: exact covers and splits.
#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"
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
  Corners(const Box& region, std::vector<size_t> dims) : region_(region), dims_(std::move(dims)) {}

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
      const auto [corner, added] = weights_.try_emplace(key, corner_sign);
      if (!added && (corner->second += corner_sign) == 0) weights_.erase(corner);
    }
  }

  bool AllCancel() const { return weights_.empty(); }

  // The element at the lexicographically first corner that did not cancel.
  std::vector<int64_t> FirstElement() const {
    absl::uint128 key = weights_.begin()->first;
    for (const auto& [other, weight] : weights_) key = std::min(key, other);
    std::vector<int64_t> element = region_.offset;
    for (size_t i = dims_.size(); i-- > 0;) {
      const absl::uint128 radix = static_cast<uint64_t>(region_.extent[dims_[i]] + 1);
      element[dims_[i]] += static_cast<int64_t>(absl::Uint128Low64(key % radix));
      key /= radix;
    }
    return element;
  }

 private:
  const Box& region_;
  const std::vector<size_t> dims_;
  absl::flat_hash_map<absl::uint128, int32_t> weights_;
};

// The dimensions in which some box does not span the region. The others cannot tell boxes apart.
std::vector<size_t> CutDims(const Box& region, std::span<const HeldBox> held) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < region.extent.size(); ++d) {
    const bool cut = std::any_of(held.begin(), held.end(), [&](const HeldBox& h) { return h.box.extent[d] != region.extent[d]; });
    if (cut) dims.push_back(d);
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
Box HoleAt(const Box& region, std::span<const HeldBox> held, const std::vector<int64_t>& element) {
  Box hole{element, std::vector<int64_t>(element.size(), 1)};
  for (size_t d = element.size(); d-- > 0;) {
    Box grown = hole;
    grown.extent[d] = region.offset[d] + region.extent[d] - element[d];
    for (const HeldBox& h : held) {
      if (Intersect(grown, h.box).has_value()) grown.extent[d] = std::min(grown.extent[d], h.box.offset[d] - element[d]);
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

absl::Status FaultAt(const Box& region, std::span<const HeldBox> held, const std::vector<int64_t>& element) {
  std::vector<const HeldBox*> holders;
  for (const HeldBox& h : held) {
    if (Contains(h.box, element)) holders.push_back(&h);
  }
  if (holders.empty()) return absl::InvalidArgumentError(absl::StrCat(ToString(HoleAt(region, held, element)), " is held by no rank"));
  return Overlap(*holders[0], *holders[1]);
}

// The sum of the boxes' indicator functions less the region's is 0 everywhere if and only if its mixed differences are, and those of a
// box are its signed corners: so all corners must cancel. At the first corner that does not, in lexicographic order, the difference is the
// function itself, and that element is held by no box or by several. `held`: without empty boxes, inside the region.
absl::Status CheckCoverOf(const Box& region, std::span<const HeldBox> held) {
  std::vector<size_t> dims = CutDims(region, held);
  if (dims.size() > kCutDimsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("boxes cut ", dims.size(), " dimensions of ", ToString(region), ", more than ", kCutDimsMax));
  }
  Corners corners(region, std::move(dims));
  if (!IsEmpty(region)) corners.Add(region, -1);
  for (const HeldBox& h : held) corners.Add(h.box, 1);
  return corners.AllCancel() ? absl::OkStatus() : FaultAt(region, held, corners.FirstElement());
}

}  // namespace

absl::Status CheckCover(std::span<const int64_t> global_shape, std::span<const HeldBox> held) {
  if (!CheckedElementCount(global_shape).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("shape ", ToString(WholeBox(global_shape)), " has a negative or too large size"));
  }
  std::vector<HeldBox> filled;
  for (const HeldBox& h : held) {
    LAMINA_RETURN_IF_ERROR(ValidateBox(h.box, global_shape));
    if (!IsEmpty(h.box)) filled.push_back(h);
  }
  return CheckCoverOf(WholeBox(global_shape), filled);
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
  LAMINA_RETURN_IF_ERROR(CheckCoverOf(wanted, parts));
  return pieces;
}

absl::StatusOr<std::vector<Piece>> SplitBox(const Box& wanted, std::span<const HeldBox> held) { return BoxIndex(held).Split(wanted); }

}  // namespace lamina::shard
