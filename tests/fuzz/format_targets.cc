// One target for each file of the format. An input is a file: it is read as it is, and once more with its frame made to fit, so that damage
// reaches what stands behind the checksums.
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/catalog.h"
#include "format/examples.h"
#include "format/frame.h"
#include "format/index.h"
#include "format/log_record.h"
#include "format/pack.h"
#include "format/store_header.h"
#include "fuzz/targets.h"

namespace lamina::fuzz {
namespace {

using format::FrameKind;

constexpr size_t kLengthAt = 32;  // in a frame: docs/format.md
constexpr size_t kPayloadChecksumAt = 40;
constexpr size_t kChecksumAt = 56;

template <typename T>
void PutAt(std::string& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

std::string Repaired(Bytes input, const FrameKind& kind) {
  std::string bytes(base::AsText(input));
  RepairFrame(bytes, 0, bytes.size(), kind.magic);
  return bytes;
}

// What was read must be something that can be written, and be the same when it is read again.
template <typename Value, typename Decode>
absl::Status ReadBack(const std::string& bytes, std::string (*encode)(const Value&), const Decode& decode) {
  const absl::StatusOr<Value> value = decode(base::AsBytes(bytes));
  if (absl::IsDataLoss(value.status()) || absl::IsUnimplemented(value.status())) return absl::OkStatus();
  if (!value.ok()) return value.status();
  const std::string written = encode(*value);
  const absl::StatusOr<Value> again = decode(base::AsBytes(written));
  if (!again.ok()) return again.status();
  return *again == *value ? absl::OkStatus() : absl::InternalError("what was read reads otherwise once it is written again");
}

template <typename Value, typename Decode>
absl::Status AsItIsAndRepaired(Bytes input, const FrameKind& kind, std::string (*encode)(const Value&), const Decode& decode) {
  const absl::Status as_it_is = ReadBack<Value>(std::string(base::AsText(input)), encode, decode);
  return as_it_is.ok() ? ReadBack<Value>(Repaired(input, kind), encode, decode) : as_it_is;
}

absl::Status AttackStore(Bytes input) {
  return AsItIsAndRepaired<format::StoreHeader>(input, format::kStoreFrame, format::EncodeStoreHeader, format::DecodeStoreHeader);
}

absl::Status AttackPackHeader(Bytes input) {
  return AsItIsAndRepaired<format::PackHeader>(input, format::kPackHeaderFrame, format::EncodePackHeader, format::DecodePackHeader);
}

// The length of the file is what the footer says, so that the places in it are looked at too.
absl::Status AttackPackFooter(Bytes input) {
  constexpr size_t kPackBytesAt = format::kFrameBytes + 48;
  const uint64_t file_bytes = base::ReadAt<uint64_t>(input, kPackBytesAt).value_or(0);
  return AsItIsAndRepaired<format::PackFooter>(input, format::kPackFooterFrame, format::EncodePackFooter, [&](Bytes bytes) {
    return format::DecodePackFooter(bytes, static_cast<int64_t>(std::min<uint64_t>(file_bytes, std::numeric_limits<int64_t>::max())));
  });
}

absl::Status AttackIndex(Bytes input) {
  return AsItIsAndRepaired<format::Index>(input, format::kIndexFrame, format::EncodeIndex, format::DecodeIndex);
}

absl::Status AttackCatalog(Bytes input) {
  return AsItIsAndRepaired<format::Catalog>(input, format::kCatalogFrame, format::EncodeCatalog, format::DecodeCatalog);
}

absl::Status AttackPacks(Bytes input) {
  return AsItIsAndRepaired<format::Packs>(input, format::kPacksFrame, format::EncodePacks, format::DecodePacks);
}

// Both copies made to fit, and the second alone.
absl::Status AttackLogRecord(Bytes input) {
  const auto decode = [](Bytes bytes) { return format::DecodeLogRecord(bytes, format::example::Commit().number); };
  std::string bytes(base::AsText(input));
  LAMINA_RETURN_IF_ERROR(ReadBack<format::LogRecord>(bytes, format::EncodeLogRecord, decode));
  const size_t half = bytes.size() / 2;
  RepairFrame(bytes, half, bytes.size(), format::kLogFrame.magic);
  LAMINA_RETURN_IF_ERROR(ReadBack<format::LogRecord>(bytes, format::EncodeLogRecord, decode));
  RepairFrame(bytes, 0, half, format::kLogFrame.magic);
  return ReadBack<format::LogRecord>(bytes, format::EncodeLogRecord, decode);
}

// The first two bytes say how wide an element is and how many packs the index has; the box is as large as the records say in all.
absl::Status AttackChunkTable(Bytes input) {
  if (input.size() < 2) return absl::OkStatus();
  const int64_t element_bytes = int64_t{1} << (static_cast<uint8_t>(input[0]) % 5);
  const auto pack_count = static_cast<uint64_t>(input[1]);
  const std::string table(base::AsText(input.subspan(2)));
  const Bytes bytes = base::AsBytes(table);
  uint64_t box_bytes = 0;
  for (size_t at = 0; at + sizeof(format::ChunkRecord) <= table.size(); at += sizeof(format::ChunkRecord)) {
    box_bytes += base::ReadAt<format::ChunkRecord>(bytes, at)->raw_bytes;
  }
  const format::TableReference reference{.digest = format::Checksum128(bytes),
                                         .pack = 0,
                                         .offset = format::kPackHeaderBytes,
                                         .chunk_count = table.size() / sizeof(format::ChunkRecord)};
  const int64_t whole_elements = static_cast<int64_t>(box_bytes) / element_bytes * element_bytes;
  const absl::StatusOr<std::vector<format::ChunkRecord>> chunks =
      format::DecodeChunkTable(bytes, reference, pack_count, whole_elements, element_bytes);
  if (absl::IsDataLoss(chunks.status()) || absl::IsUnimplemented(chunks.status())) return absl::OkStatus();
  if (!chunks.ok()) return chunks.status();
  return format::EncodeChunkTable(*chunks) == table ? absl::OkStatus() : absl::InternalError("a table is not what it was read from");
}

format::Catalog RichCatalog() {
  format::Catalog catalog = format::example::OneTensorCatalog();
  catalog.rank_count = 4;
  catalog.topology = {{"dp", 2}, {"tp", 2}};
  format::CatalogTensor tied = catalog.tensors[0];
  tied.name = "x";
  tied.alias_of = "w";
  tied.boxes = {};
  format::CatalogTensor cut = catalog.tensors[0];
  cut.name = "y";
  cut.global_shape = {4, 2, 6};
  cut.boxes = {};
  for (const int64_t offset : {0, 2}) {
    cut.boxes.push_back({.box = {.offset = {offset, 0, 0}, .extent = {2, 2, 3}}, .writer = 0, .table = 1});
    cut.boxes.push_back({.box = {.offset = {offset, 0, 3}, .extent = {2, 2, 3}}, .writer = 0, .table = 2});
  }
  const format::CatalogTensor scalar{.name = "z", .dtype = DType::kInt64, .global_shape = {}, .alias_of = "", .boxes = {}};
  catalog.tensors.insert(catalog.tensors.end(), {tied, cut, scalar});
  catalog.tensors.back().boxes.push_back({.box = {}, .writer = 0, .table = 3});
  catalog.blobs = {{.name = "place", .rank = 3, .writer = 0, .table = 0, .bytes = 16},
                   {.name = "tree", .rank = 0, .writer = 0, .table = 4, .bytes = 5}};
  return catalog;
}

format::Index RichIndex() {
  format::Index index = format::example::OneTensorIndex();
  index.packs.push_back({.tier = 0, .attempt = {.step = 50, .incarnation = 1, .attempt = 2}, .writer = 7, .nonce = {1, 2}});
  index.tables.push_back({.digest = {3, 4}, .pack = 1, .offset = 8192, .chunk_count = 0});
  index.rules.push_back({.rule = 1, .version = 2, .variant = 3, .scalars = {4, 5}, .inputs = {6, 7, 8}});
  return index;
}

format::LogRecord RichRecord() {
  format::LogRecord record = format::example::Commit();
  record.reason = "why";
  record.unswept = {{.step = 50, .incarnation = 1, .attempt = 2}};
  return record;
}

std::string TableInput(std::span<const format::ChunkRecord> chunks) { return std::string("\2\1", 2) + format::EncodeChunkTable(chunks); }

std::vector<std::string> TableSeeds() {
  std::vector<format::ChunkRecord> chunks(2, format::example::Chunk());
  chunks[1].element_begin = 4;
  return {TableInput(chunks), TableInput({}), TableInput(std::span(chunks).first(1))};
}

}  // namespace

void RepairFrame(std::string& bytes, size_t begin, size_t end, std::string_view magic) {
  if (end < begin || end > bytes.size() || end - begin < format::kFrameBytes) return;
  const uint64_t room = end - begin - format::kFrameBytes;
  bytes.replace(begin, magic.size(), magic);
  // A log record's copy may be followed by zeros; all other payloads fill what there is.
  const uint64_t said = *base::ReadAt<uint64_t>(base::AsBytes(bytes), begin + kLengthAt);
  const uint64_t payload_bytes = magic == format::kLogFrame.magic ? std::min(said, room) : room;
  PutAt<uint64_t>(bytes, begin + kLengthAt, payload_bytes);
  const Bytes payload = base::AsBytes(bytes).subspan(begin + format::kFrameBytes, payload_bytes);
  PutAt(bytes, begin + kPayloadChecksumAt, format::Checksum128(payload));
  PutAt(bytes, begin + kChecksumAt, format::Checksum64(base::AsBytes(bytes).subspan(begin, kChecksumAt)));
}

std::vector<Target> FormatTargets() {
  namespace example = format::example;
  format::LogRecord open = example::Commit();
  open.number = open.incarnation = 2;
  open.kind = format::RecordKind::kOpen;
  open.opens = {1, 2};
  return {
      {"store", {format::EncodeStoreHeader(example::Store())}, AttackStore},
      {"log_record",
       {format::EncodeLogRecord(example::Commit()), format::EncodeLogRecord(RichRecord()), format::EncodeLogRecord(open)},
       AttackLogRecord},
      {"pack_header", {format::EncodePackHeader(example::Header())}, AttackPackHeader},
      {"pack_footer", {format::EncodePackFooter(example::Footer())}, AttackPackFooter},
      {"index", {format::EncodeIndex(example::OneTensorIndex()), format::EncodeIndex(RichIndex())}, AttackIndex},
      {"chunk_table", TableSeeds(), AttackChunkTable},
      {"catalog", {format::EncodeCatalog(example::OneTensorCatalog()), format::EncodeCatalog(RichCatalog())}, AttackCatalog},
      {"packs", {format::EncodePacks(example::OnePack())}, AttackPacks},
  };
}

}  // namespace lamina::fuzz
