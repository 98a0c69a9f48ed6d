#include "format/chunk.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "xxhash.h"

namespace lamina::format {
namespace {

Digest FromHash(XXH128_hash_t hash) { return {.low = hash.low64, .high = hash.high64}; }

}  // namespace

std::string ToString(const Digest& digest) { return absl::StrFormat("%016x%016x", digest.high, digest.low); }

Digest Fingerprint(std::span<const std::byte> raw, uint64_t seed) {
  std::vector<XXH128_canonical_t> leaves;
  leaves.reserve(raw.size() / kFingerprintLeafBytes + 1);
  while (!raw.empty()) {
    const std::span<const std::byte> leaf = raw.first(std::min<size_t>(raw.size(), kFingerprintLeafBytes));
    XXH128_canonicalFromHash(&leaves.emplace_back(), XXH3_128bits_withSeed(leaf.data(), leaf.size(), seed));
    raw = raw.subspan(leaf.size());
  }
  return FromHash(XXH3_128bits_withSeed(leaves.data(), leaves.size() * sizeof(XXH128_canonical_t), seed));
}

uint64_t Checksum64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Digest Checksum128(std::span<const std::byte> bytes) { return FromHash(XXH3_128bits(bytes.data(), bytes.size())); }

}  // namespace lamina::format
