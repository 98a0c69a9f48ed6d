// A small sharded state whose true bytes anyone can compute: every bit follows from the entry's name, the element, the step and the life of
// the job that saved it, so that a mixture of two saves shows.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lamina/engine.h"
#include "shard/box.h"

namespace lamina::testing {

struct Moment {
  int64_t step = -1;
  int64_t life = 0;  // of the job; a step may be saved again by a later one
  bool operator==(const Moment&) const = default;
};

inline uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

inline void TrueElement(std::string_view name, int64_t element, const Moment& moment, std::span<std::byte> target) {
  uint64_t value = Mix(static_cast<uint64_t>(moment.step) * 1000 + static_cast<uint64_t>(moment.life));
  for (const char c : name) value = Mix(value ^ static_cast<uint64_t>(static_cast<unsigned char>(c)));
  value = Mix(value ^ static_cast<uint64_t>(element));
  for (size_t at = 0; at < target.size(); at += sizeof(value)) {
    std::memcpy(target.data() + at, &value, std::min(target.size() - at, sizeof(value)));
  }
}

// The whole tensor, row-major.
inline std::string TrueBytes(const StoredTensor& tensor, const Moment& moment) {
  const int64_t element_bytes = DTypeBytes(tensor.dtype);
  const std::string& name = tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
  std::string bytes(static_cast<size_t>(shard::ElementCount(tensor.global_shape) * element_bytes), '\0');
  const auto target = std::as_writable_bytes(std::span<char>(bytes));
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(element_bytes)) {
    TrueElement(name, static_cast<int64_t>(at) / element_bytes, moment, target.subspan(at, static_cast<size_t>(element_bytes)));
  }
  return bytes;
}

inline std::string TreeText(const Moment& moment) { return absl::StrCat(moment.step, " ", moment.life); }
inline std::string PlaceText(const Moment& moment, int32_t rank) { return absl::StrCat("rank ", rank, " at ", TreeText(moment)); }

// Which save a step's values are of; Internal says what is wrong with them.
inline absl::StatusOr<Moment> MomentOf(const std::vector<StoredBlob>& blobs, int32_t rank_count) {
  Moment moment;
  std::vector<int> places(static_cast<size_t>(rank_count), 0);
  for (const StoredBlob& blob : blobs) {
    const std::vector<std::string> words = absl::StrSplit(blob.bytes, ' ');
    const bool read = words.size() >= 2 && absl::SimpleAtoi(words[words.size() - 2], &moment.step) &&
                      absl::SimpleAtoi(words[words.size() - 1], &moment.life);
    if (!read) return absl::InternalError(absl::StrCat("blob '", blob.name, "' holds '", blob.bytes, "'"));
    if (blob.name == "place" && blob.rank >= 0 && blob.rank < rank_count) ++places[static_cast<size_t>(blob.rank)];
  }
  for (const StoredBlob& blob : blobs) {
    const std::string expected = blob.name == "place" ? PlaceText(moment, blob.rank) : TreeText(moment);
    if (blob.bytes != expected) return absl::InternalError(absl::StrCat("'", blob.name, "' is '", blob.bytes, "', not '", expected, "'"));
  }
  if (std::count(places.begin(), places.end(), 1) != rank_count || blobs.size() != places.size() + 1) {
    return absl::InternalError(absl::StrCat(blobs.size(), " blobs of ", rank_count, " ranks"));
  }
  return moment;
}

// A tensor and who holds which boxes of it; an alias has those of its tensor.
struct LaidOutTensor {
  StoredTensor tensor;
  std::vector<std::vector<Box>> boxes;  // of each rank
  bool column_major = false;            // in memory
};

// What one rank holds. By default: its part of dimension 0 of a matrix by the ceil rule (the last of four ranks has none), a tensor that is
// replicated, one without dimensions, an alias, and columns that lie transposed in memory.
class RankState {
 public:
  RankState(int32_t rank, int32_t rank_count, bool with_moments = false) : rank_(rank) {
    AddSharded("w", DType::kFloat32, {6, 5}, 0, rank_count);
    AddSharded("v", DType::kBfloat16, {4, 3}, 1, rank_count);
    Add("r", DType::kFloat64, {3}, {Box{{0}, {3}}});
    Add("s", DType::kInt64, {}, {Box{}});
    AddAlias("tied", "w");
    if (with_moments) AddSharded("w.moment", DType::kFloat32, {6, 5}, 0, rank_count);
    Poison();
  }
  RankState(int32_t rank, const std::vector<LaidOutTensor>& layout) : rank_(rank) {
    for (const LaidOutTensor& laid_out : layout) {
      const StoredTensor& tensor = laid_out.tensor;
      if (tensor.alias_of.empty())
        Add(tensor.name, tensor.dtype, tensor.global_shape, laid_out.boxes[static_cast<size_t>(rank)], laid_out.column_major);
      else
        AddAlias(tensor.name, tensor.alias_of);
    }
    Poison();
  }

  const std::vector<TensorView>& views() const { return views_; }
  std::vector<TensorView>& views() { return views_; }

  void Set(const Moment& moment) {
    ForEachElement(
        [&](const TensorView& view, int64_t element, std::span<std::byte> at) { TrueElement(NameOf(view), element, moment, at); });
  }
  void Poison() {
    for (auto& [name, bytes] : memory_) std::fill(bytes.begin(), bytes.end(), std::byte{0xA5});
  }
  bool IsPoisoned() const {
    return std::all_of(memory_.begin(), memory_.end(), [](const auto& named) {
      return std::all_of(named.second.begin(), named.second.end(), [](std::byte byte) { return byte == std::byte{0xA5}; });
    });
  }
  absl::Status Check(const Moment& moment) const {
    absl::Status status;
    ForEachElement([&](const TensorView& view, int64_t element, std::span<std::byte> at) {
      std::vector<std::byte> expected(at.size());
      TrueElement(NameOf(view), element, moment, expected);
      if (!std::equal(at.begin(), at.end(), expected.begin())) {
        status = absl::InternalError(
            absl::StrCat("element ", element, " of '", view.name, "' on rank ", rank_, " is not that of ", TreeText(moment)));
      }
    });
    return status;
  }

  std::vector<BlobView> Blobs(const Moment& moment) const { return {{"tree", TreeText(moment)}, {"place", PlaceText(moment, rank_)}}; }

 private:
  static const std::string& NameOf(const TensorView& view) { return view.alias_of.empty() ? view.name : view.alias_of; }

  static std::vector<int64_t> ColumnMajorStrides(const std::vector<int64_t>& extent) {
    std::vector<int64_t> strides(extent.size(), 1);
    for (size_t d = 1; d < extent.size(); ++d) strides[d] = strides[d - 1] * extent[d - 1];
    return strides;
  }

  void Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const std::vector<Box>& boxes,
           bool column_major = false) {
    TensorView& view = views_.emplace_back(TensorView{name, dtype, shape, {}, "", false});
    for (const Box& box : boxes) {
      std::vector<std::byte>& bytes = memory_[absl::StrCat(name, "#", view.boxes.size())];
      bytes.resize(static_cast<size_t>(shard::ElementCount(box.extent) * DTypeBytes(dtype)));
      view.boxes.push_back({box, bytes.data(), column_major ? ColumnMajorStrides(box.extent) : shard::RowMajorStrides(box.extent)});
    }
  }
  void AddAlias(const std::string& name, const std::string& alias_of) {
    TensorView view = *std::find_if(views_.begin(), views_.end(), [&](const TensorView& other) { return other.name == alias_of; });
    view.name = name;
    view.alias_of = alias_of;
    views_.push_back(std::move(view));
  }
  void AddSharded(const std::string& name, DType dtype, const std::vector<int64_t>& shape, size_t dimension, int64_t rank_count) {
    const int64_t part = (shape[dimension] + rank_count - 1) / rank_count;
    Box box = shard::WholeBox(shape);
    box.offset[dimension] = std::min(part * rank_, shape[dimension]);
    box.extent[dimension] = std::min(part, shape[dimension] - box.offset[dimension]);
    Add(name, dtype, shape, {box}, /*column_major=*/dimension == 1);
  }
  void ForEachElement(const std::function<void(const TensorView&, int64_t, std::span<std::byte>)>& visit) const {
    for (const TensorView& view : views_) {
      for (const BoxView& box : view.boxes) ForEachElement(view, box, visit);
    }
  }
  static void ForEachElement(const TensorView& view, const BoxView& box,
                             const std::function<void(const TensorView&, int64_t, std::span<std::byte>)>& visit) {
    const std::vector<int64_t> global = shard::RowMajorStrides(view.global_shape);
    for (int64_t ordinal = 0; ordinal < shard::ElementCount(box.box.extent); ++ordinal) {
      int64_t element = 0;
      int64_t memory = 0;
      int64_t rest = ordinal;
      for (size_t d = global.size(); d-- > 0; rest /= box.box.extent[d]) {
        element += (box.box.offset[d] + rest % box.box.extent[d]) * global[d];
        memory += rest % box.box.extent[d] * box.strides[d];
      }
      const int64_t bytes = DTypeBytes(view.dtype);
      visit(view, element, {static_cast<std::byte*>(box.data) + memory * bytes, static_cast<size_t>(bytes)});
    }
  }

  const int32_t rank_;
  std::map<std::string, std::vector<std::byte>> memory_;
  std::vector<TensorView> views_;
};

}  // namespace lamina::testing
