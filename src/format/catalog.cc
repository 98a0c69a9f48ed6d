#include "format/catalog.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "format/catalog_generated.h"
#include "format/flat.h"

namespace lamina::format {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

// What an element of a vector of tables counts of a decoder's budget: docs/format.md, "FlatBuffers payloads".
template <typename Element>
constexpr size_t kHeldBytes = 0;
template <>
constexpr size_t kHeldBytes<CatalogTensor> = 152;
template <>
constexpr size_t kHeldBytes<CatalogBlob> = 56;
template <>
constexpr size_t kHeldBytes<std::pair<std::string, int64_t>> = 40;

uint64_t PayloadBytesMax(const Catalog& catalog) {
  uint64_t bytes = 1024 + sizeof(flat::Writer) * catalog.writers.size();
  for (const auto& [name, extent] : catalog.topology) bytes += 64 + name.size();
  for (const CatalogBlob& blob : catalog.blobs) bytes += 96 + blob.name.size();
  for (const CatalogTensor& tensor : catalog.tensors) {
    const size_t dimensions = tensor.global_shape.size();
    bytes += 128 + tensor.name.size() + tensor.alias_of.size() + sizeof(int64_t) * dimensions;
    bytes += (sizeof(flat::Place) + 2 * sizeof(int64_t) * dimensions) * tensor.boxes.size();
  }
  return bytes;
}

Offset<flat::Tensor> BuildTensor(FlatBufferBuilder& builder, const CatalogTensor& tensor) {
  const auto name = Text(builder, tensor.name);
  const auto shape = builder.CreateVector(tensor.global_shape);
  const auto alias_of = tensor.alias_of.empty() ? Offset<flatbuffers::String>() : Text(builder, tensor.alias_of);
  const auto places = builder.CreateVectorOfStructs<flat::Place>(
      tensor.boxes.size(),
      [places = tensor.boxes.places()](size_t i, flat::Place* place) { *place = flat::Place(places[i].writer, places[i].table); });
  const auto coordinates = builder.CreateVector(tensor.boxes.coordinates().data(), tensor.boxes.coordinates().size());
  const flat::TensorFacts facts(static_cast<uint8_t>(tensor.dtype));
  return flat::CreateTensor(builder, &facts, name, shape, alias_of, places, coordinates);
}

Offset<flat::Blob> BuildBlob(FlatBufferBuilder& builder, const CatalogBlob& blob) {
  const auto name = Text(builder, blob.name);
  const flat::BlobFacts facts(flat::Place(blob.writer, blob.table), blob.rank, blob.bytes);
  return flat::CreateBlob(builder, &facts, name);
}

Offset<flat::MeshDimension> BuildDimension(FlatBufferBuilder& builder, const std::pair<std::string, int64_t>& dimension) {
  const auto name = Text(builder, dimension.first);
  const flat::MeshExtent extent(dimension.second);
  return flat::CreateMeshDimension(builder, &extent, name);
}

// The vector of what `build` makes of each element.
template <typename Table, typename Element>
auto BuildEach(FlatBufferBuilder& builder, const std::vector<Element>& elements,
               Offset<Table> (*build)(FlatBufferBuilder&, const Element&)) {
  std::vector<Offset<Table>> offsets;
  offsets.reserve(elements.size());
  for (const Element& element : elements) offsets.push_back(build(builder, element));
  return builder.CreateVector(offsets);
}

void BuildCatalog(FlatBufferBuilder& builder, const Catalog& catalog) {
  const auto topology = BuildEach(builder, catalog.topology, BuildDimension);
  const auto writers = builder.CreateVectorOfStructs<flat::Writer>(catalog.writers.size(), [&](size_t i, flat::Writer* out) {
    const CatalogWriter& w = catalog.writers[i];
    *out = flat::Writer(ToFlat(w.attempt), ToFlat(w.nonce), ToFlat(w.index_digest), w.pack_bytes, w.writer);
  });
  const auto tensors = BuildEach(builder, catalog.tensors, BuildTensor);
  const auto blobs = BuildEach(builder, catalog.blobs, BuildBlob);
  const flat::CatalogFacts facts(ToFlat(catalog.store_id), ToFlat(catalog.attempt), catalog.rank_count);
  builder.Finish(flat::CreateCatalog(builder, &facts, topology, writers, tensors, blobs));
}

// A tensor without dimensions has one element, so more than one place would be a lie that costs memory.
absl::Status TakeBoxes(Budget& budget, const flat::Tensor& source, CatalogTensor& tensor) {
  const size_t dimensions = tensor.global_shape.size();
  std::vector<StoredBoxes::Place> places;
  std::vector<int64_t> coordinates;
  if (!budget.Take(source.places(), places) || !budget.Take(source.coordinates(), coordinates)) return OverBudget(kCatalogFrame);
  if (coordinates.size() != 2 * dimensions * places.size() || (dimensions == 0 && places.size() > 1)) {
    return Damaged(kCatalogFrame, absl::StrCat("number of coordinates of ", ShownName(tensor.name)), absl::StrCat(coordinates.size()),
                   absl::StrCat("that of ", places.size(), " boxes of ", dimensions, " dimensions"));
  }
  tensor.boxes = StoredBoxes(std::move(places), std::move(coordinates));
  return absl::OkStatus();
}

absl::StatusOr<CatalogTensor> TakeTensor(Budget& budget, const flat::Tensor& source) {
  CatalogTensor tensor;
  if (!budget.Take(source.name(), tensor.name) || !budget.Take(source.alias_of(), tensor.alias_of) ||
      !budget.Take(source.shape(), tensor.global_shape)) {
    return OverBudget(kCatalogFrame);
  }
  const std::optional<DType> dtype = DTypeFromNumber(source.facts()->dtype());
  if (!dtype) {
    return Damaged(kCatalogFrame, absl::StrCat("dtype of ", ShownName(tensor.name)), absl::StrCat(source.facts()->dtype()),
                   "a known number");
  }
  tensor.dtype = *dtype;
  LAMINA_RETURN_IF_ERROR(TakeBoxes(budget, source, tensor));
  return tensor;
}

absl::StatusOr<CatalogBlob> TakeBlob(Budget& budget, const flat::Blob& source) {
  const flat::BlobFacts& facts = *source.facts();
  CatalogBlob blob{
      .name = {}, .rank = facts.rank(), .writer = facts.place().writer(), .table = facts.place().table(), .bytes = facts.bytes()};
  if (!budget.Take(source.name(), blob.name)) return OverBudget(kCatalogFrame);
  return blob;
}

absl::StatusOr<std::pair<std::string, int64_t>> TakeDimension(Budget& budget, const flat::MeshDimension& source) {
  std::pair<std::string, int64_t> dimension{{}, source.extent()->value()};
  if (!budget.Take(source.name(), dimension.first)) return OverBudget(kCatalogFrame);
  return dimension;
}

template <typename Table, typename Element>
absl::Status TakeEach(Budget& budget, const flatbuffers::Vector<Offset<Table>>* source, std::vector<Element>& target,
                      absl::StatusOr<Element> (*take)(Budget&, const Table&)) {
  if (source == nullptr) return absl::OkStatus();
  static_assert(sizeof(Element) <= kHeldBytes<Element>);
  if (!budget.Spend(size_t{source->size()} * kHeldBytes<Element>)) return OverBudget(kCatalogFrame);
  target.reserve(source->size());
  for (const Table* table : *source) {
    LAMINA_ASSIGN_OR_RETURN(Element element, take(budget, *table));
    target.push_back(std::move(element));
  }
  return absl::OkStatus();
}

// What DecodeCatalog takes over of a sound catalog, as its budget counts it.
uint64_t BudgetOf(const Catalog& catalog) {
  uint64_t bytes = sizeof(flat::Writer) * catalog.writers.size();
  for (const auto& [name, extent] : catalog.topology) bytes += kHeldBytes<std::pair<std::string, int64_t>> + Budget::CostOf(name);
  for (const CatalogBlob& blob : catalog.blobs) bytes += kHeldBytes<CatalogBlob> + Budget::CostOf(blob.name);
  for (const CatalogTensor& tensor : catalog.tensors) {
    bytes += kHeldBytes<CatalogTensor> + Budget::CostOf(tensor.name) + Budget::CostOf(tensor.alias_of) +
             sizeof(int64_t) * tensor.global_shape.size();
    bytes += tensor.boxes.places().size_bytes() + tensor.boxes.coordinates().size_bytes();
  }
  return bytes;
}

absl::Status TakeWriters(Budget& budget, const flat::Catalog& root, Catalog& catalog) {
  if (!budget.Reserve(root.writers(), catalog.writers)) return OverBudget(kCatalogFrame);
  ForEachStruct(root.writers(), [&](const flat::Writer& writer) {
    catalog.writers.push_back({.attempt = FromFlat(writer.attempt()),
                               .writer = writer.writer(),
                               .nonce = FromFlat(writer.nonce()),
                               .index_digest = FromFlat(writer.index_digest()),
                               .pack_bytes = writer.pack_bytes()});
  });
  return absl::OkStatus();
}

}  // namespace

StoredBox StoredBoxes::operator[](size_t ordinal) const {
  const size_t count = dimensions();
  const auto offset = coordinates_.begin() + static_cast<ptrdiff_t>(2 * count * ordinal);
  const auto extent = offset + static_cast<ptrdiff_t>(count);
  return {.box = {.offset = {offset, extent}, .extent = {extent, extent + static_cast<ptrdiff_t>(count)}},
          .writer = places_[ordinal].writer,
          .table = places_[ordinal].table};
}

void StoredBoxes::push_back(const StoredBox& stored) {
  const Box& box = stored.box;
  even_ = even_ && box.offset.size() == box.extent.size() && (empty() || box.offset.size() == dimensions());
  places_.push_back({stored.writer, stored.table});
  coordinates_.insert(coordinates_.end(), box.offset.begin(), box.offset.end());
  coordinates_.insert(coordinates_.end(), box.extent.begin(), box.extent.end());
}

std::string EncodeCatalog(const Catalog& catalog) {
  if (!Fits(PayloadBytesMax(catalog))) return {};
  FlatBufferBuilder builder;
  BuildCatalog(builder, catalog);
  if (!Budget(builder.GetSize()).Spend(BudgetOf(catalog))) return {};
  return FramedFlat(kCatalogFrame, builder);
}

absl::StatusOr<Catalog> DecodeCatalog(std::span<const std::byte> bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::span<const std::byte> payload, UnframedWhole(kCatalogFrame, bytes));
  LAMINA_ASSIGN_OR_RETURN(const auto flat, FlatPayload<flat::Catalog>::Read(kCatalogFrame, payload));
  const flat::Catalog& root = flat.root();
  Catalog catalog;
  catalog.store_id = FromFlat(root.facts()->store_id());
  catalog.attempt = FromFlat(root.facts()->attempt());
  catalog.rank_count = root.facts()->rank_count();
  Budget budget(payload.size());
  LAMINA_RETURN_IF_ERROR(TakeEach(budget, root.topology(), catalog.topology, TakeDimension));
  LAMINA_RETURN_IF_ERROR(TakeWriters(budget, root, catalog));
  LAMINA_RETURN_IF_ERROR(TakeEach(budget, root.tensors(), catalog.tensors, TakeTensor));
  LAMINA_RETURN_IF_ERROR(TakeEach(budget, root.blobs(), catalog.blobs, TakeBlob));
  if (const absl::Status valid = ValidateCatalog(catalog); !valid.ok()) return absl::DataLossError(valid.message());
  return catalog;
}

}  // namespace lamina::format
