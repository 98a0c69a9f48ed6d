#include "format/chunk.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "base/bytes.h"
#include "examples.h"

using namespace lamina;
using namespace lamina::format;

namespace {

Digest PatternFingerprint(size_t bytes, uint64_t seed = example::kSeed) {
  return Fingerprint(base::AsBytes(example::Pattern(bytes)), seed);
}

}  // namespace

TEST_CASE("A fingerprint notices every changed bit and the length", "[format]") {
  std::string bytes = example::Pattern(3 * kFingerprintLeafBytes / 2);
  std::set<std::string> seen;
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 997) {
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    CHECK(seen.insert(ToString(Fingerprint(base::AsBytes(bytes), example::kSeed))).second);
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
  for (const size_t length : {0, 1, 16383, 16384, 16385, 32768}) CHECK(seen.insert(ToString(PatternFingerprint(length))).second);
}

TEST_CASE("A fingerprint depends on the seed and on the order of leaves", "[format]") {
  CHECK(PatternFingerprint(5, 1) != PatternFingerprint(5, 2));
  CHECK(PatternFingerprint(0, 1) != PatternFingerprint(0, 2));
  const std::string a(kFingerprintLeafBytes, 'a');
  const std::string b(kFingerprintLeafBytes, 'b');
  CHECK(Fingerprint(base::AsBytes(a + b), 1) != Fingerprint(base::AsBytes(b + a), 1));
}

TEST_CASE("A fingerprint does not depend on where the bytes lie", "[format]") {
  const std::string bytes = example::Pattern(40000);
  const Digest aligned = Fingerprint(base::AsBytes(bytes), 3);
  for (size_t shift = 1; shift < 16; ++shift) {
    const std::string moved = std::string(shift, 'x') + bytes;
    CHECK(Fingerprint(base::AsBytes(moved).subspan(shift), 3) == aligned);
  }
}

TEST_CASE("Checksums are those of XXH3 with seed 0", "[format]") {
  CHECK(Checksum64({}) == 0x2d06800538d394c2);  // published value of XXH3-64 for no input
  CHECK(ToString(Checksum128({})) == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("A digest prints as 32 digits, high word first", "[format]") {
  CHECK(ToString(Digest{.low = 0x1, .high = 0xab}) == "00000000000000ab0000000000000001");
}
