// The catalog of one step: its tensors and which writer holds which boxes. Enough to plan a restore on any topology.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "format/chunk.h"
#include "format/pack.h"
#include "lamina/tensor_view.h"

namespace lamina::format {

struct StoredBox {
  Box box;
  uint32_t writer = 0;  // ordinal in Catalog::writers
  uint32_t table = 0;   // ordinal in that writer's index
  bool operator==(const StoredBox&) const = default;
};

// The boxes of one tensor. Held as they lie in the file, so that a catalog of millions of boxes takes no more memory than its file; an
// element is made when it is asked for.
class StoredBoxes {
 public:
  // Where the bytes of a box are.
  struct Place {
    uint32_t writer = 0;
    uint32_t table = 0;
    bool operator==(const Place&) const = default;
  };
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = StoredBox;
    using difference_type = ptrdiff_t;
    using pointer = const StoredBox*;
    using reference = StoredBox;
    Iterator(const StoredBoxes& boxes, size_t ordinal) : boxes_(&boxes), ordinal_(ordinal) {}
    StoredBox operator*() const { return (*boxes_)[ordinal_]; }
    Iterator& operator++() { return ++ordinal_, *this; }
    bool operator==(const Iterator& other) const { return ordinal_ == other.ordinal_; }

   private:
    const StoredBoxes* boxes_;
    size_t ordinal_;
  };

  StoredBoxes() = default;
  StoredBoxes(std::initializer_list<StoredBox> boxes) {
    for (const StoredBox& box : boxes) push_back(box);
  }
  // For each place, `coordinates` has the box's offsets and then its extents.
  StoredBoxes(std::vector<Place> places, std::vector<int64_t> coordinates)
      : places_(std::move(places)), coordinates_(std::move(coordinates)) {}

  size_t size() const { return places_.size(); }
  bool empty() const { return places_.empty(); }
  size_t dimensions() const { return empty() ? 0 : coordinates_.size() / (2 * size()); }
  StoredBox operator[](size_t ordinal) const;
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }
  // All boxes have as many dimensions as the first one; another box is taken, and even() tells.
  void push_back(const StoredBox& box);
  bool even() const { return even_; }
  std::span<const int64_t> coordinates() const { return coordinates_; }
  std::span<const Place> places() const { return places_; }
  bool operator==(const StoredBoxes&) const = default;

 private:
  std::vector<Place> places_;
  std::vector<int64_t> coordinates_;
  bool even_ = true;
};

struct CatalogTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> global_shape;
  std::string alias_of;  // another tensor of the catalog whose bytes these are; then `boxes` is empty
  StoredBoxes boxes;     // cover the global shape exactly once; none where it has no element
  bool operator==(const CatalogTensor&) const = default;
};

// Bytes that are no tensor. `rank` is the rank that handed them over.
struct CatalogBlob {
  std::string name;
  uint32_t rank = 0;
  uint32_t writer = 0;
  uint32_t table = 0;
  uint64_t bytes = 0;
  bool operator==(const CatalogBlob&) const = default;
};

// A writer of this step and the pack that holds its index.
struct CatalogWriter {
  AttemptId attempt;    // whose directory the pack is in
  uint32_t writer = 0;  // number in the pack's name
  Digest nonce;
  Digest index_digest;
  uint64_t pack_bytes = 0;
  bool operator==(const CatalogWriter&) const = default;
};

struct Catalog {
  Digest store_id;
  AttemptId attempt;
  uint32_t rank_count = 0;
  std::vector<std::pair<std::string, int64_t>> topology;  // named mesh dimensions in order, such as ("dp", 2), ("tp", 2); may be empty
  std::vector<CatalogWriter> writers;
  std::vector<CatalogTensor> tensors;  // sorted by name, no name twice
  std::vector<CatalogBlob> blobs;      // sorted by (name, rank)
  bool operator==(const Catalog&) const = default;
};

inline constexpr size_t kNameBytesMax = 64 * 1024;  // of a tensor, blob or mesh dimension; 1 at least
inline constexpr uint32_t kRankCountMax = (uint32_t{1} << 31) - 1;
inline constexpr size_t kDimensionsMax = 64;    // of a tensor
inline constexpr size_t kCornersMax = 1 << 20;  // boxes × 2^d of a tensor whose boxes cut d dimensions
inline constexpr int64_t kTensorBytesMax = int64_t{1} << 62;
inline constexpr uint64_t kBlobBytesMax = uint64_t{1} << 30;

// A name for a message: in quotes, shortened to its first bytes. Names are data, of up to 64 KiB, and a message may be one of many.
std::string ShownName(std::string_view name);

// What a reader insists on: names unique and sorted, shapes and boxes in bounds, covers exact, no box without elements, ordinals in range,
// no pack and no chunk table named twice, aliases resolved in one step. InvalidArgument names the first thing that is wrong. A catalog that
// fails this must not be published.
absl::Status ValidateCatalog(const Catalog& catalog);

// Empty when it would be larger than kMetadataBytesMax, or take more memory than a reader allows.
std::string EncodeCatalog(const Catalog& catalog);
// ValidateCatalog is part of it; what it finds is DataLoss here. Beside `bytes` it holds at most 2 × bytes + 64 MiB, as every decoder does.
absl::StatusOr<Catalog> DecodeCatalog(std::span<const std::byte> bytes);

// The file `packs`: every pack that a step reaches.
struct ReachedPack {
  AttemptId attempt;
  uint32_t writer = 0;
  Digest nonce;
  uint64_t pack_bytes = 0;
  uint64_t live_bytes = 0;  // stored bytes that this step needs of it
  bool operator==(const ReachedPack&) const = default;
};
struct Packs {
  Digest store_id;
  AttemptId attempt;
  std::vector<ReachedPack> packs;  // sorted by (attempt, writer)
  bool operator==(const Packs&) const = default;
};
// Sorted, no pack twice, live_bytes <= pack_bytes. InvalidArgument, or DataLoss when it comes from DecodePacks.
absl::Status ValidatePacks(const Packs& packs);
// Empty when it would be larger than kMetadataBytesMax.
std::string EncodePacks(const Packs& packs);
absl::StatusOr<Packs> DecodePacks(std::span<const std::byte> bytes);

}  // namespace lamina::format
