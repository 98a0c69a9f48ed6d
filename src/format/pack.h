// Header and footer of a pack: [header][chunks][chunk tables][index][footer], written once from front to back.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "format/chunk.h"
#include "format/paths.h"

namespace lamina::format {

struct PackHeader {
  Digest store_id;
  AttemptId attempt;
  uint32_t writer = 0;
  Digest nonce;  // random, repeated in the index and footer: tells a swapped or older file
  bool operator==(const PackHeader&) const = default;
};
inline constexpr int64_t kPackHeaderBytes = 4096;
inline constexpr int64_t kPackFooterBytes = 128;

struct PackFooter {
  Digest nonce;
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;
  Digest index_digest;      // Checksum128 of the index's bytes
  uint64_t pack_bytes = 0;  // of the whole file, footer included
  bool operator==(const PackFooter&) const = default;
};

std::string EncodePackHeader(const PackHeader& header);  // kPackHeaderBytes
absl::StatusOr<PackHeader> DecodePackHeader(std::span<const std::byte> bytes);
std::string EncodePackFooter(const PackFooter& footer);  // kPackFooterBytes
// Checks its own checksum, and that index and footer fill the file of `file_bytes` exactly to its end.
absl::StatusOr<PackFooter> DecodePackFooter(std::span<const std::byte> bytes, int64_t file_bytes);

}  // namespace lamina::format
