#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/index.h"
#include "format/pack.h"

namespace lamina::format {
namespace {

// A position while the records of one box are read in order.
struct Progress {
  uint64_t ordinal = 0;
  uint64_t elements = 0;
  uint64_t elements_in_box = 0;
  uint64_t element_bytes = 0;
  uint64_t pack_count = 0;
};

absl::Status Bad(const Progress& at, std::string_view what, uint64_t found, std::string_view expected) {
  return absl::DataLossError(
      absl::StrCat("chunk ", at.ordinal, ": ", std::string(what), " is ", found, ", expected ", std::string(expected)));
}

absl::Status CheckPlace(const ChunkRecord& chunk, const Progress& at) {
  if (chunk.pack >= at.pack_count) return Bad(at, "pack", chunk.pack, absl::StrCat("less than ", at.pack_count));
  if (chunk.offset < kPackHeaderBytes || chunk.offset > kOffsetMax) return Bad(at, "offset", chunk.offset, "inside a pack");
  return absl::OkStatus();
}

absl::Status CheckRaw(const ChunkRecord& chunk, const Progress& at) {
  if (chunk.codec > static_cast<uint8_t>(Codec::kDerived)) return Bad(at, "codec", chunk.codec, "at most 3");
  if (chunk.codec != static_cast<uint8_t>(Codec::kRaw)) {
    return absl::UnimplementedError(absl::StrCat("chunk ", at.ordinal, ": codec ", chunk.codec, ", the only known one is 0 (raw)"));
  }
  if (chunk.stored_bytes != chunk.raw_bytes) return Bad(at, "stored length", chunk.stored_bytes, absl::StrCat(chunk.raw_bytes));
  if (chunk.rule != kNoRule) return Bad(at, "rule of a raw chunk", chunk.rule, "none");
  if (chunk.reserved != std::array<uint8_t, 3>{}) return Bad(at, "reserved byte", 1, "0");
  return absl::OkStatus();
}

// Returns the chunk's number of elements.
absl::StatusOr<uint64_t> CheckExtent(const ChunkRecord& chunk, const Progress& at) {
  if (chunk.element_begin != at.elements) return Bad(at, "first element", chunk.element_begin, absl::StrCat(at.elements));
  const uint64_t left = at.elements_in_box - at.elements;
  const uint64_t count = chunk.raw_bytes / at.element_bytes;
  if (chunk.raw_bytes > kChunkBytesMax || chunk.raw_bytes % at.element_bytes != 0 || count == 0 || count > left) {
    return Bad(at, "raw length", chunk.raw_bytes,
               absl::StrCat("whole elements, at most ", kChunkBytesMax, " bytes and ", left, " elements"));
  }
  if (chunk.nonfinite_count != kNotCounted && chunk.nonfinite_count > 2 * count) {
    return Bad(at, "number of non-finite values", chunk.nonfinite_count, absl::StrCat("at most ", 2 * count));
  }
  return count;
}

absl::Status CheckTableBytes(std::span<const std::byte> bytes, const TableReference& reference) {
  if (reference.chunk_count > kTableChunksMax || bytes.size() != reference.chunk_count * sizeof(ChunkRecord)) {
    return absl::DataLossError(
        absl::StrCat("chunk table: length is ", bytes.size(), ", expected ", reference.chunk_count, " records of ", sizeof(ChunkRecord)));
  }
  if (const Digest found = Checksum128(bytes); found != reference.digest) {
    return absl::DataLossError(absl::StrCat("chunk table: checksum is ", ToString(found), ", expected ", ToString(reference.digest)));
  }
  return absl::OkStatus();
}

absl::Status CheckChunks(std::span<const ChunkRecord> chunks, Progress at) {
  for (const ChunkRecord& chunk : chunks) {
    // The codec first: what the other fields of a codec of a later version mean is not known here.
    LAMINA_RETURN_IF_ERROR(CheckRaw(chunk, at));
    LAMINA_RETURN_IF_ERROR(CheckPlace(chunk, at));
    LAMINA_ASSIGN_OR_RETURN(const uint64_t count, CheckExtent(chunk, at));
    at.elements += count;
    ++at.ordinal;
  }
  if (at.elements == at.elements_in_box) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("chunk table: covers ", at.elements, " elements, expected ", at.elements_in_box));
}

}  // namespace

std::string EncodeChunkTable(std::span<const ChunkRecord> chunks) { return std::string(base::AsText(std::as_bytes(chunks))); }

absl::StatusOr<std::vector<ChunkRecord>> DecodeChunkTable(std::span<const std::byte> bytes, const TableReference& reference,
                                                          uint64_t pack_count, int64_t box_bytes, int64_t element_bytes) {
  if (element_bytes <= 0 || box_bytes < 0 || box_bytes % element_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a box of ", box_bytes, " bytes has no whole number of elements of ", element_bytes));
  }
  LAMINA_RETURN_IF_ERROR(CheckTableBytes(bytes, reference));
  std::vector<ChunkRecord> chunks(reference.chunk_count);
  if (!chunks.empty()) std::memcpy(chunks.data(), bytes.data(), bytes.size());
  const Progress start{.elements_in_box = static_cast<uint64_t>(box_bytes / element_bytes),
                       .element_bytes = static_cast<uint64_t>(element_bytes),
                       .pack_count = pack_count};
  LAMINA_RETURN_IF_ERROR(CheckChunks(chunks, start));
  return chunks;
}

}  // namespace lamina::format
