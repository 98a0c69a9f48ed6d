#include "plan/description.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "base/bytes.h"
#include "base/serial.h"
#include "base/status.h"
#include "shard/box.h"

namespace lamina::plan {
namespace {

constexpr uint8_t kDimsMax = 64;  // as many as PyTorch allows
constexpr int64_t kBytesMax = int64_t{1} << 62;

absl::Status Invalid(const EntryDescription& entry, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("entry '", entry.name, "': ", absl::string_view(what.data(), what.size())));
}

absl::Status ValidateEntry(const EntryDescription& entry) {
  const int64_t element_bytes = DTypeBytes(entry.dtype);
  if (entry.name.empty()) return Invalid(entry, "an entry needs a name");
  if (element_bytes == 0) return Invalid(entry, absl::StrCat("unknown dtype ", static_cast<int>(entry.dtype)));
  if (entry.global_shape.size() > kDimsMax)
    return Invalid(entry, absl::StrCat(entry.global_shape.size(), " dimensions, at most 64 are held"));
  const std::optional<int64_t> elements = shard::CheckedElementCount(entry.global_shape);
  if (!elements.has_value() || *elements > kBytesMax / element_bytes) {
    return Invalid(entry,
                   absl::StrCat("shape ", shard::ToString(shard::WholeBox(entry.global_shape)), " has a negative or too large size"));
  }
  std::vector<shard::HeldBox> filled;
  for (const Box& box : entry.boxes) {
    LAMINA_RETURN_IF_ERROR(base::Annotate(shard::ValidateBox(box, entry.global_shape), absl::StrCat("entry '", entry.name, "'")));
    if (entry.boxes.size() > 1 && !shard::IsEmpty(box)) filled.push_back({static_cast<int32_t>(filled.size()), box});
  }
  if (!shard::CheckDisjoint(filled).ok()) return Invalid(entry, "boxes of one rank have elements in common");
  return absl::OkStatus();
}

absl::Status ValidateAlias(const EntryDescription& entry, const EntryDescription* base) {
  if (base == nullptr) return Invalid(entry, absl::StrCat("is an alias of '", entry.alias_of, "', which is no entry"));
  if (!base->alias_of.empty()) return Invalid(entry, absl::StrCat("is an alias of '", base->name, "', which is an alias itself"));
  const bool same_boxes = entry.boxes.empty() || entry.boxes == base->boxes;
  if (entry.dtype != base->dtype || entry.global_shape != base->global_shape || !same_boxes) {
    return Invalid(entry, absl::StrCat("is an alias of '", base->name, "' with another dtype, shape or boxes"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const RankDescription& description) {
  absl::flat_hash_map<std::string_view, const EntryDescription*> by_name;
  for (const EntryDescription& entry : description.entries) {
    LAMINA_RETURN_IF_ERROR(ValidateEntry(entry));
    if (!by_name.emplace(entry.name, &entry).second) return Invalid(entry, "two entries have this name");
  }
  for (const EntryDescription& entry : description.entries) {
    if (entry.alias_of.empty()) continue;
    const auto base = by_name.find(entry.alias_of);
    LAMINA_RETURN_IF_ERROR(ValidateAlias(entry, base == by_name.end() ? nullptr : base->second));
  }
  return absl::OkStatus();
}

// What the description leaves out: where the bytes are.
absl::Status ValidateMemory(const TensorView& tensor) {
  for (const BoxView& view : tensor.boxes) {
    if (view.strides.size() != tensor.global_shape.size()) {
      return absl::InvalidArgumentError(absl::StrCat("entry '", tensor.name, "': box ", shard::ToString(view.box), " has ",
                                                     view.strides.size(), " strides, expected ", tensor.global_shape.size()));
    }
    if (view.data == nullptr && !shard::IsEmpty(view.box)) {
      return absl::InternalError(absl::StrCat("entry '", tensor.name, "': box ", shard::ToString(view.box), " has elements and no memory"));
    }
  }
  return absl::OkStatus();
}

void PutSizes(base::Writer& writer, const std::vector<int64_t>& sizes) {
  for (const int64_t size : sizes) writer.Put(size);
}

std::vector<int64_t> GetSizes(base::Reader& reader, uint8_t dims) {
  std::vector<int64_t> sizes(dims);
  for (int64_t& size : sizes) size = reader.Get<int64_t>();
  return sizes;
}

void PutEntry(base::Writer& writer, const EntryDescription& entry) {
  writer.PutText(entry.name);
  writer.PutText(entry.alias_of);
  writer.Put(static_cast<uint8_t>(entry.dtype));
  writer.Put(static_cast<uint8_t>(entry.replicas_may_differ));
  writer.Put(static_cast<uint8_t>(entry.global_shape.size()));
  PutSizes(writer, entry.global_shape);
  writer.Put<uint64_t>(entry.boxes.size());
  for (const Box& box : entry.boxes) {
    PutSizes(writer, box.offset);
    PutSizes(writer, box.extent);
  }
}

EntryDescription GetEntry(base::Reader& reader) {
  EntryDescription entry;
  entry.name = reader.GetText();
  entry.alias_of = reader.GetText();
  entry.dtype = static_cast<DType>(reader.Get<uint8_t>());
  entry.replicas_may_differ = reader.Get<uint8_t>() != 0;
  const uint8_t dims = reader.Get<uint8_t>();
  entry.global_shape = GetSizes(reader, dims);
  // A box without dimensions takes no bytes; one is counted for it, which the topology behind the entries has to spare.
  const uint64_t box_count = reader.GetCount(std::max<uint64_t>(1, 2 * sizeof(int64_t) * dims));
  for (uint64_t i = 0; i < box_count && reader.ok(); ++i) {
    std::vector<int64_t> offset = GetSizes(reader, dims);
    entry.boxes.push_back({std::move(offset), GetSizes(reader, dims)});
  }
  return entry;
}

}  // namespace

absl::StatusOr<RankDescription> Describe(std::span<const TensorView> tensors, std::span<const std::pair<std::string, int64_t>> topology) {
  RankDescription description;
  description.topology.assign(topology.begin(), topology.end());
  for (const TensorView& tensor : tensors) {
    EntryDescription entry{tensor.name, tensor.dtype, tensor.global_shape, {}, tensor.alias_of, tensor.replicas_may_differ};
    for (const BoxView& view : tensor.boxes) entry.boxes.push_back(view.box);
    description.entries.push_back(std::move(entry));
  }
  LAMINA_RETURN_IF_ERROR(Validate(description));
  for (const TensorView& tensor : tensors) LAMINA_RETURN_IF_ERROR(ValidateMemory(tensor));
  return description;
}

std::string EncodeDescription(const RankDescription& description) {
  base::Writer writer;
  writer.Put<uint64_t>(description.entries.size());
  for (const EntryDescription& entry : description.entries) PutEntry(writer, entry);
  writer.Put<uint64_t>(description.topology.size());
  for (const auto& [name, size] : description.topology) {
    writer.PutText(name);
    writer.Put(size);
  }
  return writer.Take();
}

absl::StatusOr<RankDescription> DecodeDescription(std::span<const std::byte> bytes) {
  base::Reader reader(bytes);
  RankDescription description;
  const uint64_t entry_count = reader.GetCount(3 * sizeof(uint64_t) + 3);
  for (uint64_t i = 0; i < entry_count && reader.ok(); ++i) description.entries.push_back(GetEntry(reader));
  const uint64_t topology_count = reader.GetCount(2 * sizeof(uint64_t));
  for (uint64_t i = 0; i < topology_count; ++i) {
    std::string name = reader.GetText();
    description.topology.emplace_back(std::move(name), reader.Get<int64_t>());
  }
  if (!reader.AtEnd())
    return absl::InvalidArgumentError(absl::StrCat("a rank's description of ", bytes.size(), " bytes is cut short or too long"));
  LAMINA_RETURN_IF_ERROR(base::Annotate(Validate(description), "a rank's description"));
  return description;
}

format::Digest DigestOf(const RankDescription& description) { return format::Checksum128(base::AsBytes(EncodeDescription(description))); }

}  // namespace lamina::plan
