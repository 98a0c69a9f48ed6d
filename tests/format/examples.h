// The worked examples of docs/format.md as values, and helpers that the tests of this folder share.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "format/catalog.h"
#include "format/chunk.h"
#include "format/index.h"
#include "format/log_record.h"
#include "format/pack.h"
#include "format/store_header.h"

namespace lamina::format::example {

inline constexpr uint64_t kSeed = 0x0123456789abcdef;
inline const Digest kStoreId{.low = 0x1716151413121110, .high = 0x1f1e1d1c1b1a1918};
inline const Digest kNonce{.low = 0x2726252423222120, .high = 0x2f2e2d2c2b2a2928};
inline const AttemptId kAttempt{.step = 100, .incarnation = 1, .attempt = 0};

// Byte number i is i modulo 251.
inline std::string Pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

// The float32 values 0, 1, 2, 3.
inline std::string RawChunk() {
  const float values[4] = {0, 1, 2, 3};
  return std::string(base::AsText(std::as_bytes(std::span(values))));
}

inline StoreHeader Store() { return {.store_id = kStoreId, .fingerprint_seed = kSeed}; }

inline PackHeader Header() { return {.store_id = kStoreId, .attempt = kAttempt, .writer = 0, .nonce = kNonce}; }

inline ChunkRecord Chunk() {
  const std::string raw = RawChunk();
  ChunkRecord chunk;
  chunk.raw_bytes = chunk.stored_bytes = static_cast<uint32_t>(raw.size());
  chunk.fingerprint = Fingerprint(base::AsBytes(raw), kSeed);
  chunk.offset = kPackHeaderBytes;
  chunk.stored_checksum = Checksum64(base::AsBytes(raw));
  chunk.nonfinite_count = 0;
  return chunk;
}

inline std::string Table() {
  const ChunkRecord chunk = Chunk();
  return EncodeChunkTable(std::span(&chunk, 1));
}

inline TableReference Reference() {
  return {.digest = Checksum128(base::AsBytes(Table())), .pack = 0, .offset = kPackHeaderBytes + 64, .chunk_count = 1};
}

inline Index OneTensorIndex() {
  return {.store_id = kStoreId,
          .attempt = kAttempt,
          .writer = 0,
          .nonce = kNonce,
          .packs = {{.tier = 0, .attempt = kAttempt, .writer = 0, .nonce = kNonce}},
          .tables = {Reference()},
          .rules = {}};
}

inline PackFooter Footer() {
  const std::string index = EncodeIndex(OneTensorIndex());
  const uint64_t offset = kPackHeaderBytes + 128;
  return {.nonce = kNonce,
          .index_offset = offset,
          .index_bytes = index.size(),
          .index_digest = Checksum128(base::AsBytes(index)),
          .pack_bytes = offset + index.size() + kPackFooterBytes};
}

// Header, one chunk, its table, index, footer: a whole pack.
inline std::string Pack() {
  std::string pack = EncodePackHeader(Header()) + RawChunk();
  pack.resize(kPackHeaderBytes + 64);
  pack += Table();
  return pack + EncodeIndex(OneTensorIndex()) + EncodePackFooter(Footer());
}

inline Catalog OneTensorCatalog() {
  const PackFooter footer = Footer();
  CatalogTensor tensor{.name = "w", .dtype = DType::kFloat32, .global_shape = {2, 2}, .alias_of = "", .boxes = {}};
  tensor.boxes.push_back({.box = {.offset = {0, 0}, .extent = {2, 2}}, .writer = 0, .table = 0});
  return {.store_id = kStoreId,
          .attempt = kAttempt,
          .rank_count = 1,
          .topology = {},
          .writers =
              {{.attempt = kAttempt, .writer = 0, .nonce = kNonce, .index_digest = footer.index_digest, .pack_bytes = footer.pack_bytes}},
          .tensors = {tensor},
          .blobs = {}};
}

inline Packs OnePack() {
  return {.store_id = kStoreId,
          .attempt = kAttempt,
          .packs = {{.attempt = kAttempt, .writer = 0, .nonce = kNonce, .pack_bytes = Footer().pack_bytes, .live_bytes = 16}}};
}

// The second record of a root: the first one opened incarnation 1.
inline LogRecord Commit() {
  LogRecord record;
  record.store_id = kStoreId;
  record.number = 2;
  record.kind = RecordKind::kCommit;
  record.nonce = {.low = 0x3736353433323130, .high = 0x3f3e3d3c3b3a3938};
  record.incarnation = 1;
  record.head = 2;
  record.written_ns = 1'700'000'000'000'000'000;
  record.subject = kAttempt;
  record.opens = {1};
  record.trainer = {.run_id = "run", .host = "host", .boot_id = "", .pid_namespace = "", .pid = 4711, .start_ticks = 9};
  record.steps = {{.commit = 2,
                   .parent = 0,
                   .attempt = kAttempt,
                   .catalog_digest = Checksum128(base::AsBytes(EncodeCatalog(OneTensorCatalog()))),
                   .packs_digest = Checksum128(base::AsBytes(EncodePacks(OnePack()))),
                   .committed_ns = record.written_ns,
                   .state_bytes = 16,
                   .stored_bytes = 16,
                   .state = StepState::kLive}};
  return record;
}

// Lines of 16 bytes, as the document prints them. Lines of zeros alone are left out.
inline std::string Dump(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    const std::string_view line = bytes.substr(at, 16);
    if (line.find_first_not_of('\0') == std::string_view::npos) continue;
    absl::StrAppendFormat(&text, "%04x ", at);
    for (const char byte : line) absl::StrAppendFormat(&text, " %02x", static_cast<uint8_t>(byte));
    text += "\n";
  }
  return text;
}

}  // namespace lamina::format::example
