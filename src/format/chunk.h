// A chunk's record and its fingerprint. docs/format.md is the specification; the structs are the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lamina::format {

inline constexpr int64_t kChunkElements = 256 * 1024;  // elements of a chunk, the last of a box excepted
inline constexpr int64_t kFingerprintLeafBytes = 16 * 1024;
inline constexpr int64_t kPackAlignment = 4096;  // raw chunks of kLargeChunkBytes and more start at this boundary
inline constexpr int64_t kLargeChunkBytes = 64 * 1024;
inline constexpr int64_t kSmallChunkAlignment = 64;
inline constexpr int64_t kChunkBytesMax = 4 * 1024 * 1024;      // raw bytes: kChunkElements of the widest dtype; also of a blob's chunk
inline constexpr uint64_t kTableChunksMax = uint64_t{1} << 24;  // chunks of one box: a table has 1 GiB at most
inline constexpr uint64_t kOffsetMax = uint64_t{1} << 62;       // no offset in a pack is larger, so that offset + length cannot overflow
inline constexpr uint32_t kNotCounted = 0xffffffffu;
inline constexpr uint32_t kNoRule = 0xffffffffu;

// 128 bits that stand for bytes: of a chunk, a table, a metadata file.
struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Digest&) const = default;
  auto operator<=>(const Digest&) const = default;
};
std::string ToString(const Digest& digest);  // 32 hexadecimal digits, high first

enum class Codec : uint8_t { kRaw = 0, kDifference = 1, kPredicted = 2, kDerived = 3 };  // this version writes and reads kRaw alone

struct ChunkRecord {
  uint64_t element_begin = 0;  // row-major ordinal in its box
  uint32_t raw_bytes = 0;
  uint32_t stored_bytes = 0;
  Digest fingerprint;            // of the raw bytes
  uint64_t offset = 0;           // of the stored bytes in the pack
  uint64_t stored_checksum = 0;  // XXH3-64 of the stored bytes
  uint32_t nonfinite_count = kNotCounted;
  uint32_t pack = 0;        // ordinal in the index's list of packs
  uint32_t rule = kNoRule;  // ordinal of the rule record or base
  uint8_t codec = 0;
  std::array<uint8_t, 3> reserved{};
  bool operator==(const ChunkRecord&) const = default;
};
static_assert(sizeof(ChunkRecord) == 64);

// XXH3-128 with `seed` over the XXH3-128 digests (same seed, canonical form) of the 16 KiB leaves. docs/format.md, "Fingerprint".
Digest Fingerprint(std::span<const std::byte> raw, uint64_t seed);
uint64_t Checksum64(std::span<const std::byte> bytes);  // XXH3-64, seed 0
Digest Checksum128(std::span<const std::byte> bytes);   // XXH3-128, seed 0

}  // namespace lamina::format
