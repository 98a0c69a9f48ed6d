#include "format/index.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "damage.h"
#include "examples.h"

using namespace lamina;
using namespace lamina::format;

namespace {

absl::StatusOr<Index> Decode(const std::string& bytes) { return DecodeIndex(base::AsBytes(bytes)); }

Index LargeIndex() {
  Index index = example::OneTensorIndex();
  for (uint32_t i = 1; i < 200; ++i) {
    index.packs.push_back({.tier = 0, .attempt = {.step = i, .incarnation = 1, .attempt = i}, .writer = i, .nonce = {i, i + 1u}});
    index.tables.push_back({.digest = {i, i}, .pack = i, .offset = 4096u * i, .chunk_count = i});
    index.rules.push_back({.rule = 1, .version = 2, .variant = 3, .scalars = {i, 5}, .inputs = {i, 6, 7}});
  }
  return index;
}

// A box of 10 float32 in three chunks.
std::vector<ChunkRecord> ThreeChunks() {
  std::vector<ChunkRecord> chunks(3);
  const uint32_t elements[] = {4, 5, 1};
  uint64_t begin = 0;
  for (size_t i = 0; i < 3; ++i) {
    chunks[i].element_begin = begin;
    chunks[i].raw_bytes = chunks[i].stored_bytes = elements[i] * 4;
    chunks[i].offset = 4096 + 64 * i;
    begin += elements[i];
  }
  return chunks;
}

absl::Status DecodeTable(const std::vector<ChunkRecord>& chunks, int64_t box_bytes = 40, int64_t element_bytes = 4) {
  const std::string bytes = EncodeChunkTable(chunks);
  const TableReference reference{.digest = Checksum128(base::AsBytes(bytes)), .pack = 0, .offset = 4096, .chunk_count = chunks.size()};
  const auto decoded = DecodeChunkTable(base::AsBytes(bytes), reference, 1, box_bytes, element_bytes);
  if (decoded.ok()) CHECK(*decoded == chunks);
  return decoded.status();
}

absl::Status DecodeChanged(const std::function<void(std::vector<ChunkRecord>&)>& change) {
  std::vector<ChunkRecord> chunks = ThreeChunks();
  change(chunks);
  return DecodeTable(chunks);
}

}  // namespace

TEST_CASE("An index reads back as written, whatever its alignment", "[format]") {
  const std::string bytes = EncodeIndex(LargeIndex());
  for (size_t shift = 0; shift < 16; ++shift) {
    const std::string moved = std::string(shift, 'x') + bytes;
    const auto decoded = DecodeIndex(base::AsBytes(moved).subspan(shift));
    REQUIRE(decoded.ok());
    REQUIRE(*decoded == LargeIndex());
  }
}

TEST_CASE("Damage to an index is noticed", "[format]") {
  RequireDamageIsNoticed(EncodeIndex(example::OneTensorIndex()), [](auto bytes) { return DecodeIndex(bytes).status(); });
}

TEST_CASE("An index of a newer version is refused by name", "[format]") {
  RequireVersionsAreKept(EncodeIndex(example::OneTensorIndex()), [](auto bytes) { return DecodeIndex(bytes).status(); });
}

TEST_CASE("An index that refers to what is not there is damage", "[format]") {
  const auto refused = [](const std::function<void(Index&)>& change) {
    Index index = LargeIndex();
    change(index);
    return absl::IsDataLoss(Decode(EncodeIndex(index)).status());
  };
  CHECK_FALSE(refused([](Index&) {}));
  CHECK(refused([](Index& i) { i.packs.clear(); }));
  CHECK(refused([](Index& i) { i.packs[0].nonce.low ^= 1; }));
  CHECK(refused([](Index& i) { i.packs[0].writer ^= 1; }));
  CHECK(refused([](Index& i) { i.packs[7] = i.packs[0]; }));
  CHECK(refused([](Index& i) { i.packs[8].attempt = i.packs[7].attempt, i.packs[8].writer = i.packs[7].writer; }));
  CHECK(refused([](Index& i) { i.packs[7].attempt.step = -1; }));
  CHECK(refused([](Index& i) { i.tables[7].pack = 200; }));
  CHECK(refused([](Index& i) { i.tables[7].offset = 4095; }));
  CHECK(refused([](Index& i) { i.tables[7].offset = std::numeric_limits<uint64_t>::max(); }));
  CHECK(refused([](Index& i) { i.tables[7].chunk_count = kTableChunksMax + 1; }));
}

TEST_CASE("An index with a pack in a tier of a later version is unsupported", "[format]") {
  Index index = LargeIndex();
  index.packs[7].tier = 1;
  CHECK(absl::IsUnimplemented(Decode(EncodeIndex(index)).status()));
}

TEST_CASE("A chunk table reads back as written", "[format]") {
  CHECK(DecodeTable(ThreeChunks()).ok());
  CHECK(DecodeTable({}, 0).ok());
}

TEST_CASE("A flipped bit or another length of a chunk table is damage", "[format]") {
  std::string bytes = EncodeChunkTable(ThreeChunks());
  const TableReference reference{.digest = Checksum128(base::AsBytes(bytes)), .pack = 0, .offset = 4096, .chunk_count = 3};
  RequireDamageIsNoticed(bytes, [&](auto changed) { return DecodeChunkTable(changed, reference, 1, 40, 4).status(); });
}

TEST_CASE("A chunk table that does not fill its box in order is damage", "[format]") {
  using Chunks = std::vector<ChunkRecord>;
  CHECK(absl::IsDataLoss(DecodeTable(ThreeChunks(), 44)));
  CHECK(absl::IsDataLoss(DecodeTable(ThreeChunks(), 36)));
  CHECK(absl::IsDataLoss(DecodeTable({}, 4)));
  CHECK(absl::IsDataLoss(DecodeTable(ThreeChunks(), 40, 8)));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { std::swap(c[0], c[1]); })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].element_begin = 5; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].raw_bytes = c[1].stored_bytes = 0; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].raw_bytes = c[1].stored_bytes = 19; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[2].raw_bytes = c[2].stored_bytes = 0xfffffffc; })));
}

TEST_CASE("A chunk record with a value that is not allowed is refused", "[format]") {
  using Chunks = std::vector<ChunkRecord>;
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].stored_bytes = 16; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].pack = 1; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].offset = 4095; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].offset = std::numeric_limits<uint64_t>::max() - 8; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].rule = 0; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].reserved[2] = 1; })));
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].nonfinite_count = 11; })));
  CHECK(DecodeChanged([](Chunks& c) { c[1].nonfinite_count = 10; }).ok());
  CHECK(absl::IsDataLoss(DecodeChanged([](Chunks& c) { c[1].codec = 4; })));
  CHECK(absl::IsUnimplemented(DecodeChanged([](Chunks& c) { c[1].codec = 2; })));
}

TEST_CASE("A chunk longer than the limit is damage", "[format]") {
  ChunkRecord chunk;
  chunk.raw_bytes = chunk.stored_bytes = kChunkBytesMax;
  chunk.offset = 4096;
  CHECK(DecodeTable({chunk}, kChunkBytesMax, 1).ok());
  chunk.raw_bytes = chunk.stored_bytes = kChunkBytesMax + 1;
  CHECK(absl::IsDataLoss(DecodeTable({chunk}, kChunkBytesMax + 1, 1)));
}

TEST_CASE("A chunk table is checked against whole elements only", "[format]") {
  CHECK(absl::IsInvalidArgument(DecodeTable(ThreeChunks(), 41)));
  CHECK(absl::IsInvalidArgument(DecodeTable(ThreeChunks(), 40, 0)));
  CHECK(absl::IsInvalidArgument(DecodeTable(ThreeChunks(), -40)));
}
