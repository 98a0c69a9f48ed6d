#include "plan/restore_plan.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "shard/box.h"

namespace lamina::plan {
namespace {

constexpr int kNearestMax = 20;  // suggestions in one message; each costs a pass over all names

class RestorePlanner {
 public:
  RestorePlanner(const format::Catalog& catalog, std::span<const EntryDescription> targets) : catalog_(catalog), targets_(targets) {
    for (size_t i = 0; i < catalog.tensors.size(); ++i) by_name_.emplace(catalog.tensors[i].name, static_cast<int32_t>(i));
  }

  absl::StatusOr<std::vector<BoxRead>> Plan() {
    LAMINA_RETURN_IF_ERROR(CheckTargets());
    absl::flat_hash_map<std::string_view, bool> is_target;
    for (const EntryDescription& target : targets_) is_target.emplace(target.name, true);
    for (size_t entry = 0; entry < targets_.size(); ++entry) {
      const EntryDescription& target = targets_[entry];
      // The memory of an alias is filled as its base's.
      if (!target.alias_of.empty() && is_target.contains(target.alias_of)) continue;
      LAMINA_RETURN_IF_ERROR(base::Annotate(AddTarget(static_cast<int32_t>(entry)), absl::StrCat("entry '", target.name, "'")));
    }
    std::sort(reads_.begin(), reads_.end(), [&](const BoxRead& a, const BoxRead& b) { return PlaceOf(a) < PlaceOf(b); });
    return std::move(reads_);
  }

 private:
  const format::CatalogTensor& Tensor(int32_t tensor) const { return catalog_.tensors[static_cast<size_t>(tensor)]; }

  const format::CatalogTensor* Find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &Tensor(found->second);
  }

  std::pair<uint32_t, uint32_t> PlaceOf(const BoxRead& read) const {
    const format::StoredBox stored = Tensor(read.tensor).boxes[static_cast<size_t>(read.stored_box)];
    return {stored.writer, stored.table};
  }

  // Empty when the target fits.
  std::string Misfit(const EntryDescription& target, std::span<const std::string_view> known, int& suggestions) const {
    const format::CatalogTensor* tensor = Find(target.name);
    if (tensor == nullptr) {
      const std::string nearest = suggestions-- > 0 ? NearestName(target.name, known) : "";
      return absl::StrCat("'", target.name, "' is missing", nearest.empty() ? "" : absl::StrCat(" (nearest: '", nearest, "')"));
    }
    if (tensor->dtype == target.dtype && tensor->global_shape == target.global_shape) return {};
    return absl::StrCat("'", target.name, "' is ", Summary(target.dtype, target.global_shape), ", saved as ",
                        Summary(tensor->dtype, tensor->global_shape));
  }

  static std::string Summary(DType dtype, std::span<const int64_t> shape) {
    return absl::StrCat(std::string(DTypeName(dtype)), " of ", shard::ToString(shard::WholeBox(shape)));
  }

  absl::Status CheckTargets() const {
    std::vector<std::string_view> known;
    for (const format::CatalogTensor& tensor : catalog_.tensors) known.push_back(tensor.name);
    int suggestions = kNearestMax;
    int count = 0;
    std::string misfits;
    std::string names;
    for (const EntryDescription& target : targets_) {
      const std::string misfit = Misfit(target, known, suggestions);
      if (misfit.empty()) continue;
      absl::StrAppend(&misfits, count == 0 ? "" : "; ", misfit);
      absl::StrAppend(&names, count == 0 ? "" : "\n", target.name);
      ++count;
    }
    if (count == 0) return absl::OkStatus();
    return base::WithDetail(
        absl::InvalidArgumentError(absl::StrCat(count, " of ", targets_.size(), " entries do not fit the step: ", misfits)),
        base::kMismatchDetail, names);
  }

  absl::Status AddTarget(int32_t entry) {
    const EntryDescription& target = targets_[static_cast<size_t>(entry)];
    const auto filled = [](const Box& box) { return !shard::IsEmpty(box); };
    if (std::none_of(target.boxes.begin(), target.boxes.end(), filled)) return absl::OkStatus();
    const format::CatalogTensor& named = *Find(target.name);
    const std::string& stored_name = named.alias_of.empty() ? named.name : named.alias_of;
    const auto stored = by_name_.find(stored_name);
    if (stored == by_name_.end())
      return absl::InvalidArgumentError(absl::StrCat("is an alias of '", stored_name, "', which the step lacks"));
    const format::StoredBoxes& boxes = Tensor(stored->second).boxes;
    std::vector<shard::HeldBox> held;
    held.reserve(boxes.size());
    for (const format::StoredBox& box : boxes) held.push_back({static_cast<int32_t>(box.writer), box.box});
    const shard::BoxIndex index(held);
    for (size_t box = 0; box < target.boxes.size(); ++box) {
      LAMINA_ASSIGN_OR_RETURN(std::vector<shard::Piece> pieces, index.Split(target.boxes[box]));
      for (shard::Piece& piece : pieces) {
        ReadOf(stored->second, piece.held_ordinal).parts.push_back({entry, static_cast<int32_t>(box), std::move(piece.box)});
      }
    }
    return absl::OkStatus();
  }

  BoxRead& ReadOf(int32_t tensor, int32_t stored_box) {
    const auto [ordinal, added] = read_of_.try_emplace(std::pair(tensor, stored_box), reads_.size());
    if (added) reads_.push_back({tensor, stored_box, {}});
    return reads_[ordinal->second];
  }

  const format::Catalog& catalog_;
  const std::span<const EntryDescription> targets_;
  absl::flat_hash_map<std::string_view, int32_t> by_name_;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, size_t> read_of_;
  std::vector<BoxRead> reads_;
};

// The boxes of a chunk. The range is cut to the box, so that there always are such.
std::vector<Box> BoxesOfChunk(const Box& stored, int64_t element_begin, int64_t element_count) {
  const int64_t all = shard::ElementCount(stored.extent);
  const int64_t begin = std::clamp<int64_t>(element_begin, 0, all);
  const int64_t end = begin + std::clamp<int64_t>(element_count, 0, all - begin);
  return shard::BoxesOfFlatRange(stored.offset, stored.extent, begin, end).value_or(std::vector<Box>{});
}

}  // namespace

absl::StatusOr<std::vector<BoxRead>> PlanRestore(const format::Catalog& catalog, std::span<const EntryDescription> targets) {
  return RestorePlanner(catalog, targets).Plan();
}

bool ChunkTouches(const Box& stored, int64_t element_begin, int64_t element_count, const Box& common) {
  const std::vector<Box> boxes = BoxesOfChunk(stored, element_begin, element_count);
  return std::any_of(boxes.begin(), boxes.end(), [&](const Box& box) { return shard::Intersect(box, common).has_value(); });
}

void ForEachRunOfChunk(const Box& stored, int64_t element_begin, int64_t element_count, const Box& common, const Box& target_box,
                       const std::function<void(int64_t chunk_element, int64_t target_element, int64_t count)>& visit) {
  // Runs go on from one box of the chunk to the next, so each waits for what follows it.
  int64_t chunk_element = 0;
  int64_t target_element = 0;
  int64_t waiting = 0;
  for (const Box& box : BoxesOfChunk(stored, element_begin, element_count)) {
    const std::optional<Box> part = shard::Intersect(box, common);
    if (!part.has_value()) continue;
    shard::ForEachRun(*part, stored, target_box, [&](int64_t source, int64_t target, int64_t count) {
      const int64_t at = source - element_begin;
      if (waiting > 0 && at == chunk_element + waiting && target == target_element + waiting) {
        waiting += count;
        return;
      }
      if (waiting > 0) visit(chunk_element, target_element, waiting);
      chunk_element = at;
      target_element = target;
      waiting = count;
    });
  }
  if (waiting > 0) visit(chunk_element, target_element, waiting);
}

}  // namespace lamina::plan
