// A writer's index: which chunk tables it has, where their bytes are, and which packs their chunks lie in.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "format/chunk.h"
#include "format/pack.h"

namespace lamina::format {

// A pack that the index's chunks or tables lie in. Ordinal 0 is the index's own pack.
struct PackReference {
  uint8_t tier = 0;  // 0: the tier of the root
  AttemptId attempt;
  uint32_t writer = 0;
  Digest nonce;
  bool operator==(const PackReference&) const = default;
};

// Where a chunk table's bytes (ChunkRecord after ChunkRecord) are. Content-addressed by `digest`.
struct TableReference {
  Digest digest;  // Checksum128 of the table's bytes
  uint32_t pack = 0;
  uint64_t offset = 0;
  uint64_t chunk_count = 0;
  bool operator==(const TableReference&) const = default;
};

// What a dependent chunk rests on; written by later versions, carried from the start.
struct RuleRecord {
  uint16_t rule = 0;
  uint16_t version = 0;
  uint16_t variant = 0;
  std::vector<uint32_t> scalars;  // as bits
  std::vector<uint64_t> inputs;
  bool operator==(const RuleRecord&) const = default;
};

struct Index {
  Digest store_id;
  AttemptId attempt;
  uint32_t writer = 0;
  Digest nonce;
  std::vector<PackReference> packs;
  std::vector<TableReference> tables;  // the catalog names a table by its ordinal here
  std::vector<RuleRecord> rules;
  bool operator==(const Index&) const = default;
};

// Empty when it would be larger than kMetadataBytesMax.
std::string EncodeIndex(const Index& index);
// Structure, ordinals and sums are checked; DataLoss says what is wrong. `bytes` need not be aligned.
absl::StatusOr<Index> DecodeIndex(std::span<const std::byte> bytes);

std::string EncodeChunkTable(std::span<const ChunkRecord> chunks);
// Checks the digest and each record: codec known, pack ordinal < pack_count, raw lengths in order without gap and adding up to `box_bytes`,
// element size `element_bytes`. For a blob, element_bytes is 1. That offset + stored_bytes lies in the pack is the caller's to check, who
// knows the pack's length. DataLoss; Unimplemented for a codec of a later version; InvalidArgument when box_bytes are not whole elements.
absl::StatusOr<std::vector<ChunkRecord>> DecodeChunkTable(std::span<const std::byte> bytes, const TableReference& reference,
                                                          uint64_t pack_count, int64_t box_bytes, int64_t element_bytes);

}  // namespace lamina::format
