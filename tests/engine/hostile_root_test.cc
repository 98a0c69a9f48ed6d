// Roots whose checksums are right and whose numbers lie: they are refused before memory is taken for what they claim.
#include <catch2/catch.hpp>
#include <string>

#include "base/bytes.h"
#include "engine/store.h"
#include "env/posix_env.h"
#include "format/examples.h"
#include "tier/memory_tier.h"

namespace lamina::engine {
namespace {

namespace example = format::example;

constexpr size_t kChunkBytes = 64 * 1024;

// The store of docs/format.md with one step of one tensor `w` and one blob `tree`, in a pack of one chunk whose table names it `times`
// times over.
struct HostileRoot {
  explicit HostileRoot(size_t times) {
    const std::string raw(kChunkBytes, 'r');
    format::ChunkRecord record = example::Chunk();
    record.raw_bytes = record.stored_bytes = kChunkBytes;
    record.fingerprint = format::Fingerprint(base::AsBytes(raw), example::kSeed);
    record.stored_checksum = format::Checksum64(base::AsBytes(raw));
    std::vector<format::ChunkRecord> of_tensor(times, record);
    std::vector<format::ChunkRecord> of_blob(times, record);
    for (size_t i = 0; i < times; ++i) {
      of_tensor[i].element_begin = i * kChunkBytes / sizeof(float);
      of_blob[i].element_begin = i * kChunkBytes;
    }
    pack = format::EncodePackHeader(example::Header()) + raw;
    index = example::OneTensorIndex();
    index.tables.clear();
    for (const auto* records : {&of_tensor, &of_blob}) {
      const std::string table = format::EncodeChunkTable(*records);
      index.tables.push_back({.digest = format::Checksum128(base::AsBytes(table)), .pack = 0, .offset = pack.size(), .chunk_count = times});
      pack += table;
    }
    const std::string index_bytes = format::EncodeIndex(index);
    format::PackFooter footer{.nonce = example::kNonce,
                              .index_offset = pack.size(),
                              .index_bytes = index_bytes.size(),
                              .index_digest = format::Checksum128(base::AsBytes(index_bytes)),
                              .pack_bytes = pack.size() + index_bytes.size() + format::kPackFooterBytes};
    pack += index_bytes + format::EncodePackFooter(footer);
    catalog = example::OneTensorCatalog();
    catalog.writers[0].index_digest = footer.index_digest;
    catalog.writers[0].pack_bytes = footer.pack_bytes;
    const auto element_count = static_cast<int64_t>(times * kChunkBytes / sizeof(float));
    Reshape({element_count});
    catalog.blobs = {{.name = "tree", .rank = 0, .writer = 0, .table = 1, .bytes = times * kChunkBytes}};
  }

  void Reshape(const std::vector<int64_t>& shape) {
    format::CatalogTensor& tensor = catalog.tensors[0];
    tensor.global_shape = shape;
    tensor.boxes = {{.box = {.offset = std::vector<int64_t>(shape.size(), 0), .extent = shape}, .writer = 0, .table = 0}};
  }

  // Puts all files, with digests that fit.
  void Publish() {
    const std::string catalog_bytes = format::EncodeCatalog(catalog);
    const std::string packs_bytes = format::EncodePacks(example::OnePack());
    format::LogRecord record = example::Commit();
    record.steps[0].catalog_digest = format::Checksum128(base::AsBytes(catalog_bytes));
    record.steps[0].packs_digest = format::Checksum128(base::AsBytes(packs_bytes));
    REQUIRE(tier.PutIfAbsent(format::kStorePath, format::EncodeStoreHeader(example::Store())).ok());
    REQUIRE(tier.PutIfAbsent(format::LogPath(record.number), format::EncodeLogRecord(record)).ok());
    REQUIRE(tier.PutIfAbsent(format::PackPath(example::kAttempt, 0), pack).ok());
    REQUIRE(tier.PutIfAbsent(format::CatalogPath(example::kAttempt), catalog_bytes).ok());
    REQUIRE(tier.PutIfAbsent(format::PacksPath(example::kAttempt), packs_bytes).ok());
    store = Store::Open(*env, tier).value();
    reader = store->OpenStep(std::nullopt).value();
  }

  std::unique_ptr<env::Env> env = env::NewPosixEnv();
  tier::MemoryTier tier{*env};
  std::string pack;
  format::Index index;
  format::Catalog catalog;
  std::unique_ptr<Store> store;
  std::unique_ptr<StepReader> reader;
};

bool SaysMoreThanPacksHold(const absl::Status& status) {
  return absl::IsDataLoss(status) && std::string(status.message()).find("more than") != std::string::npos;
}

}  // namespace

TEST_CASE("A root of one chunk, named once by each table, reads", "[engine]") {
  HostileRoot root(1);
  root.catalog.blobs.clear();
  root.Publish();
  CHECK(root.store->ReadTensor(*root.reader, "w").value() == std::string(kChunkBytes, 'r'));
}

TEST_CASE("A tensor larger than the packs that hold it is refused before memory is taken", "[engine]") {
  HostileRoot root(1);
  root.Reshape({int64_t{1} << 40});
  SECTION("with packs as long as they are") {
    root.Publish();
    CHECK(SaysMoreThanPacksHold(root.store->ReadTensor(*root.reader, "w").status()));
  }
  SECTION("with packs that the catalog calls long enough") {
    root.catalog.writers[0].pack_bytes = uint64_t{1} << 50;
    root.Publish();
    CHECK(absl::IsDataLoss(root.store->ReadTensor(*root.reader, "w").status()));
  }
}

TEST_CASE("A chunk that tables name over and over does not multiply", "[engine]") {
  HostileRoot root(200);
  root.Publish();
  CHECK(SaysMoreThanPacksHold(root.store->ReadTensor(*root.reader, "w").status()));
  CHECK(SaysMoreThanPacksHold(root.reader->ReadBlob(root.catalog.blobs[0]).status()));
  const Verification found = root.store->Verify(std::nullopt, /*full=*/true).value();
  CHECK(found.bytes <= static_cast<int64_t>(root.pack.size()));
  CHECK(std::any_of(found.problems.begin(), found.problems.end(),
                    [](const auto& problem) { return problem.message.find("more than its packs hold") != std::string::npos; }));
}

}  // namespace lamina::engine
