#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/catalog.h"
#include "format/twice.h"
#include "shard/box.h"

namespace lamina::format {
namespace {

absl::Status Wrong(std::string_view where, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("catalog: ", std::string(where), ": ", std::string(what)));
}

std::string Shown(std::string_view kind, std::string_view name) { return absl::StrCat(std::string(kind), " ", ShownName(name)); }

absl::Status CheckName(std::string_view where, std::string_view name) {
  if (!name.empty() && name.size() <= kNameBytesMax) return absl::OkStatus();
  return Wrong(where, absl::StrCat("its name has ", name.size(), " bytes, expected 1 to ", kNameBytesMax));
}

absl::Status CheckWriter(const Catalog& catalog, std::string_view where, uint32_t writer) {
  if (writer < catalog.writers.size()) return absl::OkStatus();
  return Wrong(where, absl::StrCat("writer is ", writer, ", expected less than ", catalog.writers.size()));
}

absl::Status CheckShape(const CatalogTensor& tensor, std::string_view where) {
  const int64_t element_bytes = DTypeBytes(tensor.dtype);
  if (element_bytes == 0) return Wrong(where, absl::StrCat("dtype is ", static_cast<int>(tensor.dtype), ", which names none"));
  if (tensor.global_shape.size() > kDimensionsMax) {
    return Wrong(where, absl::StrCat("has ", tensor.global_shape.size(), " dimensions, expected at most ", kDimensionsMax));
  }
  const std::optional<int64_t> count = shard::CheckedElementCount(tensor.global_shape);
  if (!count || *count > kTensorBytesMax / element_bytes) return Wrong(where, "its shape is negative or has more than 2^62 bytes");
  return absl::OkStatus();
}

// The work and memory of an exact cover grow with the corners that tell its boxes apart, so a file may not ask for many.
absl::Status CheckCorners(const CatalogTensor& tensor, std::string_view where) {
  const size_t dimensions = tensor.global_shape.size();
  const std::span<const int64_t> coordinates = tensor.boxes.coordinates();
  size_t cut_dimensions = 0;
  for (size_t d = 0; d < dimensions; ++d) {
    for (size_t at = dimensions + d; at < coordinates.size(); at += 2 * dimensions) {
      if (coordinates[at] == tensor.global_shape[d]) continue;
      ++cut_dimensions;
      break;
    }
  }
  if (cut_dimensions <= shard::kCutDimsMax && tensor.boxes.size() <= kCornersMax >> cut_dimensions) return absl::OkStatus();
  return Wrong(where, absl::StrCat(tensor.boxes.size(), " boxes cut ", cut_dimensions, " dimensions, expected fewer"));
}

absl::Status CheckBoxes(const Catalog& catalog, const CatalogTensor& tensor, std::string_view where) {
  const StoredBoxes& boxes = tensor.boxes;
  if (!boxes.even() || (!boxes.empty() && boxes.dimensions() != tensor.global_shape.size())) {
    return Wrong(where, "a box has another number of dimensions");
  }
  for (const StoredBox& stored : boxes) {
    LAMINA_RETURN_IF_ERROR(CheckWriter(catalog, where, stored.writer));
    if (const absl::Status inside = shard::ValidateBox(stored.box, tensor.global_shape); !inside.ok()) return base::Annotate(inside, where);
    if (shard::IsEmpty(stored.box)) return Wrong(where, "a box has no element");
  }
  LAMINA_RETURN_IF_ERROR(CheckCorners(tensor, where));
  const auto box_of = [&](size_t i) -> shard::HeldBox { return {static_cast<int32_t>(boxes.places()[i].writer), boxes[i].box}; };
  return base::Annotate(shard::CheckCover(tensor.global_shape, boxes.size(), box_of), where);
}

const CatalogTensor* Find(const Catalog& catalog, std::string_view name) {
  const auto found = std::lower_bound(catalog.tensors.begin(), catalog.tensors.end(), name,
                                      [](const CatalogTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != catalog.tensors.end() && found->name == name ? &*found : nullptr;
}

absl::Status CheckAlias(const Catalog& catalog, const CatalogTensor& tensor, std::string_view where) {
  const CatalogTensor* target = Find(catalog, tensor.alias_of);
  if (target == nullptr || !target->alias_of.empty()) return Wrong(where, "it is an alias of what is no stored tensor");
  if (target->dtype != tensor.dtype || target->global_shape != tensor.global_shape) {
    return Wrong(where, "its dtype or shape is not that of the tensor it is an alias of");
  }
  return tensor.boxes.empty() ? absl::OkStatus() : Wrong(where, "an alias has boxes of its own");
}

absl::Status CheckTensors(const Catalog& catalog) {
  const CatalogTensor* before = nullptr;
  for (const CatalogTensor& tensor : catalog.tensors) {
    const std::string where = Shown("tensor", tensor.name);
    LAMINA_RETURN_IF_ERROR(CheckName(where, tensor.name));
    if (before != nullptr && before->name >= tensor.name) return Wrong(where, "out of order");
    LAMINA_RETURN_IF_ERROR(CheckShape(tensor, where));
    if (tensor.alias_of.empty()) LAMINA_RETURN_IF_ERROR(CheckBoxes(catalog, tensor, where));
    before = &tensor;
  }
  // After the loop: a look-up needs all names in order.
  for (const CatalogTensor& tensor : catalog.tensors) {
    if (!tensor.alias_of.empty()) LAMINA_RETURN_IF_ERROR(CheckAlias(catalog, tensor, Shown("tensor", tensor.name)));
  }
  return absl::OkStatus();
}

absl::Status CheckBlobs(const Catalog& catalog) {
  const CatalogBlob* before = nullptr;
  for (const CatalogBlob& blob : catalog.blobs) {
    const std::string where = Shown("blob", blob.name);
    LAMINA_RETURN_IF_ERROR(CheckName(where, blob.name));
    if (before != nullptr && std::tie(before->name, before->rank) >= std::tie(blob.name, blob.rank)) return Wrong(where, "out of order");
    if (blob.rank >= catalog.rank_count) return Wrong(where, absl::StrCat("rank is ", blob.rank, " of ", catalog.rank_count));
    if (blob.bytes > kBlobBytesMax) {
      return Wrong(where, absl::StrCat("has ", blob.bytes, " bytes, more than plain values may have, ", kBlobBytesMax));
    }
    LAMINA_RETURN_IF_ERROR(CheckWriter(catalog, where, blob.writer));
    before = &blob;
  }
  return absl::OkStatus();
}

absl::Status CheckWriters(const Catalog& catalog) {
  for (const CatalogWriter& writer : catalog.writers) {
    if (writer.attempt.step < 0) return Wrong("writer", absl::StrCat("step is ", writer.attempt.step));
    if (writer.attempt.incarnation == 0) return Wrong("writer", "incarnation is 0");
    if (writer.pack_bytes < static_cast<uint64_t>(kPackHeaderBytes + kPackFooterBytes) || writer.pack_bytes > kOffsetMax) {
      return Wrong("writer", absl::StrCat("its pack has ", writer.pack_bytes, " bytes"));
    }
  }
  const CatalogWriter* twice = NamedTwice<CatalogWriter>(catalog.writers);
  if (twice == nullptr) return absl::OkStatus();
  return Wrong("writers", absl::StrCat("'", PackPath(twice->attempt, twice->writer), "' is named twice"));
}

// Every box and every blob has a chunk table of its own.
absl::Status CheckPlaces(const Catalog& catalog) {
  size_t count = catalog.blobs.size();
  for (const CatalogTensor& tensor : catalog.tensors) count += tensor.boxes.size();
  std::vector<std::pair<uint32_t, uint32_t>> places;
  places.reserve(count);
  for (const CatalogTensor& tensor : catalog.tensors) {
    for (const StoredBoxes::Place& place : tensor.boxes.places()) places.emplace_back(place.writer, place.table);
  }
  for (const CatalogBlob& blob : catalog.blobs) places.emplace_back(blob.writer, blob.table);
  std::sort(places.begin(), places.end());
  const auto twice = std::adjacent_find(places.begin(), places.end());
  if (twice == places.end()) return absl::OkStatus();
  return Wrong("places", absl::StrCat("chunk table ", twice->second, " of writer ", twice->first, " is named twice"));
}

}  // namespace

std::string ShownName(std::string_view name) {
  constexpr size_t kShownBytesMax = 200;
  return absl::StrCat("'", std::string(name.substr(0, kShownBytesMax)), name.size() > kShownBytesMax ? "…'" : "'");
}

absl::Status ValidateCatalog(const Catalog& catalog) {
  if (catalog.attempt.step < 0) return Wrong("attempt", absl::StrCat("step is ", catalog.attempt.step, ", expected 0 or more"));
  if (catalog.attempt.incarnation == 0) return Wrong("attempt", "incarnation is 0");
  if (catalog.rank_count == 0 || catalog.rank_count > kRankCountMax) {
    return Wrong("rank_count", absl::StrCat("is ", catalog.rank_count, ", expected 1 to ", kRankCountMax));
  }
  for (const auto& [name, extent] : catalog.topology) {
    LAMINA_RETURN_IF_ERROR(CheckName("mesh dimension", name));
    if (extent < 1) return Wrong(Shown("mesh dimension", name), absl::StrCat("extent is ", extent, ", expected 1 or more"));
  }
  LAMINA_RETURN_IF_ERROR(CheckWriters(catalog));
  LAMINA_RETURN_IF_ERROR(CheckTensors(catalog));
  LAMINA_RETURN_IF_ERROR(CheckBlobs(catalog));
  return CheckPlaces(catalog);
}

}  // namespace lamina::format
