#include "plan/save_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/bytes.h"
#include "base/serial.h"
#include "base/status.h"
#include "shard/box.h"

namespace lamina::plan {
namespace {

// One name: the ranks that have it, ascending, with the ordinal of their entry.
struct NamedEntry {
  std::string_view name;
  std::vector<std::pair<int32_t, int32_t>> holders;
};

// One box of one entry and all who hold it.
struct SharedBox {
  const Box* box = nullptr;
  std::vector<std::pair<int32_t, BoxReference>> holders;  // rank and that rank's reference, ascending
  int64_t bytes = 0;
  bool may_differ = false;
  int32_t owner = 0;
};

// What one rank wrote under an earlier plan: name, offset, extent.
using WrittenBoxes = absl::flat_hash_set<std::tuple<std::string_view, std::vector<int64_t>, std::vector<int64_t>>>;

class Planner {
 public:
  Planner(std::span<const RankDescription> descriptions, std::vector<std::optional<WrittenBoxes>> copied)
      : descriptions_(descriptions), copied_(std::move(copied)), load_(descriptions.size(), 0) {}

  absl::StatusOr<SavePlan> Plan() {
    plan_.ranks.resize(descriptions_.size());
    GroupByName();
    for (const NamedEntry& named : names_)
      LAMINA_RETURN_IF_ERROR(base::Annotate(AddEntry(named), absl::StrCat("entry '", std::string(named.name), "'")));
    ChooseOwners();
    WriteDown();
    plan_.digest = DigestOfPlan();
    return std::move(plan_);
  }

 private:
  const EntryDescription& Entry(int32_t rank, int32_t entry) const {
    return descriptions_[static_cast<size_t>(rank)].entries[static_cast<size_t>(entry)];
  }

  void GroupByName() {
    absl::flat_hash_map<std::string_view, size_t> ordinals;
    for (size_t rank = 0; rank < descriptions_.size(); ++rank) {
      const std::vector<EntryDescription>& entries = descriptions_[rank].entries;
      for (size_t entry = 0; entry < entries.size(); ++entry) {
        const auto [ordinal, added] = ordinals.try_emplace(entries[entry].name, names_.size());
        if (added) names_.push_back({entries[entry].name, {}});
        names_[ordinal->second].holders.emplace_back(static_cast<int32_t>(rank), static_cast<int32_t>(entry));
      }
    }
    std::sort(names_.begin(), names_.end(), [](const NamedEntry& a, const NamedEntry& b) { return a.name < b.name; });
  }

  absl::Status CheckSame(const NamedEntry& named) const {
    const auto [first_rank, first_entry] = named.holders.front();
    const EntryDescription& first = Entry(first_rank, first_entry);
    for (const auto& [rank, entry] : named.holders) {
      const EntryDescription& other = Entry(rank, entry);
      if (other.dtype == first.dtype && other.global_shape == first.global_shape && other.alias_of == first.alias_of) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("ranks ", first_rank, " and ", rank, " differ: ", Summary(first), " and ", Summary(other)));
    }
    return absl::OkStatus();
  }

  static std::string Summary(const EntryDescription& entry) {
    std::string text = absl::StrCat(std::string(DTypeName(entry.dtype)), " of ", shard::ToString(shard::WholeBox(entry.global_shape)));
    if (!entry.alias_of.empty()) absl::StrAppend(&text, ", an alias of '", entry.alias_of, "'");
    return text;
  }

  absl::Status AddEntry(const NamedEntry& named) {
    LAMINA_RETURN_IF_ERROR(CheckSame(named));
    const auto [rank, entry] = named.holders.front();
    const EntryDescription& first = Entry(rank, entry);
    plan_.tensors.push_back({first.name, first.dtype, first.global_shape, first.alias_of, {}});
    first_box_.push_back(boxes_.size());
    return first.alias_of.empty() ? AddBoxes(named, first) : absl::OkStatus();
  }

  // Equal boxes become one; all of them cover the shape exactly.
  absl::Status AddBoxes(const NamedEntry& named, const EntryDescription& first) {
    std::vector<std::pair<int32_t, BoxReference>> held;
    bool may_differ = false;
    for (const auto& [rank, entry] : named.holders) {
      const EntryDescription& description = Entry(rank, entry);
      may_differ |= description.replicas_may_differ;
      for (size_t box = 0; box < description.boxes.size(); ++box) {
        if (!shard::IsEmpty(description.boxes[box])) held.push_back({rank, {entry, static_cast<int32_t>(box)}});
      }
    }
    const auto box_of = [&](const std::pair<int32_t, BoxReference>& h) -> const Box& { return BoxAt(h.first, h.second); };
    std::stable_sort(held.begin(), held.end(), [&](const auto& a, const auto& b) { return box_of(a) < box_of(b); });
    std::vector<shard::HeldBox> cover;
    for (const auto& h : held) {
      if (cover.empty() || cover.back().box != box_of(h)) {
        cover.push_back({h.first, box_of(h)});
        const int64_t bytes = shard::ElementCount(box_of(h).extent) * DTypeBytes(first.dtype);
        boxes_.push_back({.box = &box_of(h), .holders = {}, .bytes = bytes, .may_differ = may_differ});
      }
      boxes_.back().holders.push_back(h);
    }
    LAMINA_RETURN_IF_ERROR(shard::CheckCover(first.global_shape, cover));
    return Settle(named);
  }

  // Counts the entry's bytes, and leaves to each of its boxes only holders that can write it.
  absl::Status Settle(const NamedEntry& named) {
    for (size_t i = first_box_.back(); i < boxes_.size(); ++i) {
      const std::optional<int64_t> sum = base::CheckedAdd(plan_.state_bytes, boxes_[i].bytes);
      if (!sum.has_value()) return absl::InvalidArgumentError("the state has more bytes than can be counted");
      plan_.state_bytes = *sum;
      const std::vector<int32_t> writers = Writers(named.name, boxes_[i]);
      if (writers.empty()) {
        return absl::FailedPreconditionError(absl::StrCat("box ", shard::ToString(*boxes_[i].box),
                                                          " was copied by no rank that holds it, first rank ", boxes_[i].holders[0].first));
      }
      boxes_[i].owner = writers[0];
      if (boxes_[i].may_differ || writers.size() == 1) {
        load_[static_cast<size_t>(writers[0])] += boxes_[i].bytes;
      } else {
        open_.push_back(i);
      }
    }
    return absl::OkStatus();
  }

  std::vector<int32_t> Writers(std::string_view name, const SharedBox& shared) const {
    std::vector<int32_t> writers;
    for (const auto& [rank, reference] : shared.holders) {
      const std::optional<WrittenBoxes>& copied = copied_[static_cast<size_t>(rank)];
      if (!copied.has_value() || copied->contains({name, shared.box->offset, shared.box->extent})) writers.push_back(rank);
    }
    return writers;
  }

  // The largest boxes first, each to its writer with the fewest bytes so far.
  void ChooseOwners() {
    std::stable_sort(open_.begin(), open_.end(), [&](size_t a, size_t b) { return boxes_[a].bytes > boxes_[b].bytes; });
    for (const size_t i : open_) {
      const std::vector<int32_t> writers = Writers(NameOf(i), boxes_[i]);
      boxes_[i].owner = *std::min_element(writers.begin(), writers.end(), [&](int32_t a, int32_t b) {
        return load_[static_cast<size_t>(a)] < load_[static_cast<size_t>(b)];  // the first, so the lowest rank, wins a tie
      });
      load_[static_cast<size_t>(boxes_[i].owner)] += boxes_[i].bytes;
    }
  }

  std::string_view NameOf(size_t box) const {
    const auto after = std::upper_bound(first_box_.begin(), first_box_.end(), box);
    return names_[static_cast<size_t>(after - first_box_.begin()) - 1].name;
  }

  // Boxes are in the order of (name, box), and so is every rank's pack.
  void WriteDown() {
    for (size_t tensor = 0; tensor < names_.size(); ++tensor) {
      const size_t last = tensor + 1 < first_box_.size() ? first_box_[tensor + 1] : boxes_.size();
      for (size_t i = first_box_[tensor]; i < last; ++i) WriteDown(boxes_[i], plan_.tensors[tensor]);
    }
  }

  void WriteDown(const SharedBox& shared, format::CatalogTensor& tensor) {
    RankPlan& owner = plan_.ranks[static_cast<size_t>(shared.owner)];
    tensor.boxes.push_back({*shared.box, static_cast<uint32_t>(shared.owner), static_cast<uint32_t>(owner.writes.size())});
    owner.written_bytes += shared.bytes;
    const bool compared = shared.holders.size() > 1;
    const auto group = static_cast<int32_t>(plan_.replica_groups.size());
    if (compared) plan_.replica_groups.push_back({tensor.name, *shared.box, {}, shared.owner, shared.may_differ});
    for (const auto& [rank, reference] : shared.holders) {
      if (rank == shared.owner) owner.writes.push_back(reference);
      if (!compared) continue;
      plan_.replica_groups.back().ranks.push_back(rank);
      plan_.ranks[static_cast<size_t>(rank)].replicas.push_back({reference, group});
    }
  }

  const Box& BoxAt(int32_t rank, const BoxReference& reference) const {
    return Entry(rank, reference.entry).boxes[static_cast<size_t>(reference.box)];
  }

  // Of a digest for each tensor and rank, so that no second copy of the whole plan is made.
  format::Digest DigestOfPlan() const {
    base::Writer all;
    for (const format::CatalogTensor& tensor : plan_.tensors) {
      base::Writer one;
      one.PutText(tensor.name);
      one.PutText(tensor.alias_of);
      one.Put(static_cast<uint8_t>(tensor.dtype));
      PutSizes(one, tensor.global_shape);
      one.Put<uint64_t>(tensor.boxes.size());
      for (const format::StoredBox& stored : tensor.boxes) {
        PutSizes(one, stored.box.offset);
        PutSizes(one, stored.box.extent);
        one.Put(stored.writer);
        one.Put(stored.table);
      }
      all.Put(format::Checksum128(base::AsBytes(one.Take())));
    }
    for (const RankPlan& rank : plan_.ranks) {
      base::Writer one;
      one.Put<uint64_t>(rank.writes.size());
      for (const BoxReference& reference : rank.writes) one.Put(reference);
      for (const ReplicaBox& replica : rank.replicas) one.Put(replica);
      all.Put(format::Checksum128(base::AsBytes(one.Take())));
    }
    return format::Checksum128(base::AsBytes(all.Take()));
  }

  static void PutSizes(base::Writer& writer, const std::vector<int64_t>& sizes) {
    writer.Put<uint64_t>(sizes.size());
    for (const int64_t size : sizes) writer.Put(size);
  }

  const std::span<const RankDescription> descriptions_;
  const std::vector<std::optional<WrittenBoxes>> copied_;  // nullopt: the rank has copied all
  std::vector<NamedEntry> names_;                          // sorted by name
  std::vector<size_t> first_box_;                          // of each name, into boxes_
  std::vector<SharedBox> boxes_;                           // sorted by (name, box)
  std::vector<size_t> open_;                               // boxes with a choice of owner
  std::vector<int64_t> load_;                              // bytes that each rank writes so far
  SavePlan plan_;
};

WrittenBoxes WrittenBy(const RankPlan& plan, const RankDescription& description) {
  WrittenBoxes written;
  for (const BoxReference& reference : plan.writes) {
    const EntryDescription& entry = description.entries[static_cast<size_t>(reference.entry)];
    const Box& box = entry.boxes[static_cast<size_t>(reference.box)];
    written.emplace(entry.name, box.offset, box.extent);
  }
  return written;
}

}  // namespace

absl::StatusOr<SavePlan> PlanSave(std::span<const RankDescription> descriptions, const std::vector<bool>& copied_all,
                                  const SavePlan* previous, std::span<const RankDescription> previous_descriptions) {
  if (!copied_all.empty() && copied_all.size() != descriptions.size()) {
    return absl::InvalidArgumentError(absl::StrCat(copied_all.size(), " ranks said what they copied, expected ", descriptions.size()));
  }
  if (previous != nullptr && previous->ranks.size() != previous_descriptions.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the earlier plan is of ", previous->ranks.size(), " ranks, its descriptions of ", previous_descriptions.size()));
  }
  std::vector<std::optional<WrittenBoxes>> copied(descriptions.size());
  for (size_t rank = 0; rank < copied_all.size(); ++rank) {
    if (copied_all[rank]) continue;
    const bool planned = previous != nullptr && rank < previous->ranks.size();
    copied[rank] = planned ? WrittenBy(previous->ranks[rank], previous_descriptions[rank]) : WrittenBoxes();
  }
  return Planner(descriptions, std::move(copied)).Plan();
}

}  // namespace lamina::plan
