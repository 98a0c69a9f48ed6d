// Roots whose checksums are right and whose numbers lie: they are refused before memory is taken for what they claim. How much memory rises
// is measured in tests/python/field_cases/test_fc23_a_checkpoint_from_someone_else.py.
#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "engine/store.h"
#include "env/posix_env.h"
#include "format/examples.h"
#include "tier/memory_tier.h"

namespace lamina::engine {
namespace {

namespace example = format::example;

constexpr size_t kChunkBytes = 64 * 1024;

// Counts how often the log is looked at.
class CountingTier final : public tier::MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  absl::StatusOr<std::vector<std::string>> ListNames(std::string_view prefix) override {
    if (prefix == format::kLogPrefix) ++log_lists;
    return MemoryTier::ListNames(prefix);
  }
  int64_t log_lists = 0;
};

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
    catalog = example::OneTensorCatalog();
    const auto element_count = static_cast<int64_t>(times * kChunkBytes / sizeof(float));
    Reshape({element_count});
    catalog.blobs = {{.name = "tree", .rank = 0, .writer = 0, .table = 1, .bytes = times * kChunkBytes}};
  }

  void Reshape(const std::vector<int64_t>& shape) {
    format::CatalogTensor& tensor = catalog.tensors[0];
    tensor.global_shape = shape;
    tensor.boxes = {{.box = {.offset = std::vector<int64_t>(shape.size(), 0), .extent = shape}, .writer = 0, .table = 0}};
  }

  // Without the blob and its table, whose bytes become padding.
  void LeaveOutBlob() {
    const format::TableReference& table = index.tables[1];
    pack.replace(table.offset, table.chunk_count * sizeof(format::ChunkRecord), table.chunk_count * sizeof(format::ChunkRecord), '\0');
    index.tables.pop_back();
    catalog.blobs.clear();
  }

  // The rest of a pack: `index`, whose digest comes back in the footer, and the footer.
  static format::PackFooter Finish(std::string& pack, const format::Index& index) {
    const std::string index_bytes = format::EncodeIndex(index);
    const format::PackFooter footer{.nonce = index.nonce,
                                    .index_offset = pack.size(),
                                    .index_bytes = index_bytes.size(),
                                    .index_digest = format::Checksum128(base::AsBytes(index_bytes)),
                                    .pack_bytes = pack.size() + index_bytes.size() + format::kPackFooterBytes};
    pack += index_bytes + format::EncodePackFooter(footer);
    return footer;
  }

  // One more, whose bytes all lie in other packs.
  void AddWriter(const format::Index& of_writer, std::string its_pack) {
    const format::PackFooter footer = Finish(its_pack, of_writer);
    REQUIRE(tier.PutIfAbsent(format::PackPath(of_writer.attempt, of_writer.writer), its_pack).ok());
    catalog.writers.push_back({.attempt = of_writer.attempt,
                               .writer = of_writer.writer,
                               .nonce = of_writer.nonce,
                               .index_digest = footer.index_digest,
                               .pack_bytes = footer.pack_bytes});
    more_packs.push_back({.attempt = of_writer.attempt,
                          .writer = of_writer.writer,
                          .nonce = of_writer.nonce,
                          .pack_bytes = footer.pack_bytes,
                          .live_bytes = 0});
  }

  // Puts all files, with digests and lengths that fit.
  void Publish() {
    const format::PackFooter footer = Finish(pack, index);
    for (format::CatalogWriter& writer : catalog.writers) {
      if (writer.writer != 0) continue;
      writer.index_digest = footer.index_digest;
      writer.pack_bytes = pack_bytes_claimed.value_or(footer.pack_bytes);
    }
    format::Packs packs = example::OnePack();
    packs.packs[0].pack_bytes = list_bytes_claimed.value_or(footer.pack_bytes);
    packs.packs[0].live_bytes = live_bytes;
    packs.packs.insert(packs.packs.end(), more_packs.begin(), more_packs.end());
    const std::string catalog_bytes = format::EncodeCatalog(catalog);
    const std::string packs_bytes = format::EncodePacks(packs);
    format::LogRecord record = example::Commit();
    record.steps[0].catalog_digest = format::Checksum128(base::AsBytes(catalog_bytes));
    record.steps[0].packs_digest = format::Checksum128(base::AsBytes(packs_bytes));
    REQUIRE(tier.PutIfAbsent(format::kStorePath, format::EncodeStoreHeader(example::Store())).ok());
    REQUIRE(tier.PutIfAbsent(format::LogPath(record.number), format::EncodeLogRecord(record)).ok());
    format::LogRecord open = record;
    open.number = open.floor = 1;
    open.kind = format::RecordKind::kOpen;
    open.head = 0;
    open.subject = {};
    open.steps.clear();
    REQUIRE(tier.PutIfAbsent(format::LogPath(1), format::EncodeLogRecord(open)).ok());
    REQUIRE(tier.PutIfAbsent(format::PackPath(example::kAttempt, 0), pack).ok());
    REQUIRE(tier.PutIfAbsent(format::CatalogPath(example::kAttempt), catalog_bytes).ok());
    REQUIRE(tier.PutIfAbsent(format::PacksPath(example::kAttempt), packs_bytes).ok());
    store = Store::Open(*env, tier).value();
    absl::StatusOr<std::unique_ptr<StepReader>> opened = store->OpenStep(std::nullopt);
    open_status = opened.status();
    if (opened.ok()) reader = *std::move(opened);
  }

  // What verifying finds, a message a line.
  std::string Problems(bool full = true) {
    std::string text;
    const Verification found = store->Verify(std::nullopt, full).value();
    for (const Problem& problem : found.problems) text += problem.message + "\n";
    read_bytes = found.bytes;
    return text;
  }

  std::unique_ptr<env::Env> env = env::NewPosixEnv();
  CountingTier tier{*env};
  std::string pack;
  format::Index index;
  format::Catalog catalog;
  std::optional<uint64_t> pack_bytes_claimed;  // by the catalog
  std::optional<uint64_t> list_bytes_claimed;  // by `packs`
  uint64_t live_bytes = 2 * kChunkBytes;       // by `packs`
  std::vector<format::ReachedPack> more_packs;
  int64_t read_bytes = 0;  // of chunks, by the last verify
  absl::Status open_status;
  std::unique_ptr<Store> store;
  std::unique_ptr<StepReader> reader;
};

bool SaysMoreThanPackHolds(const absl::Status& status) {
  return absl::IsDataLoss(status) && std::string(status.message()).find("name more than") != std::string::npos;
}

}  // namespace

TEST_CASE("A root of one chunk, named once by each table, reads", "[engine]") {
  HostileRoot root(1);
  root.LeaveOutBlob();
  root.live_bytes = kChunkBytes;
  root.Publish();
  CHECK(root.store->ReadTensor(*root.reader, "w").value() == std::string(kChunkBytes, 'r'));
  CHECK(root.store->ReadTensor(*root.reader, "w").ok());  // however often it is asked for
  CHECK(root.Problems(/*full=*/false) == "");
}

TEST_CASE("A tensor larger than its tables say is refused before memory is taken", "[engine]") {
  HostileRoot root(1);
  root.Reshape({int64_t{1} << 40});
  SECTION("with packs as long as they are") {}
  SECTION("with packs that the catalog calls long enough") { root.pack_bytes_claimed = uint64_t{1} << 50; }
  root.Publish();
  CHECK(absl::IsDataLoss(root.store->ReadTensor(*root.reader, "w").status()));
}

TEST_CASE("A chunk that tables name over and over does not multiply", "[engine]") {
  HostileRoot root(200);
  root.Publish();
  CHECK(SaysMoreThanPackHolds(root.store->ReadTensor(*root.reader, "w").status()));
  CHECK(SaysMoreThanPackHolds(root.reader->ReadBlob(root.catalog.blobs[0]).status()));
  CHECK_THAT(root.Problems(), Catch::Contains("name more than"));
  CHECK(root.read_bytes <= static_cast<int64_t>(root.pack.size()));
}

TEST_CASE("Tables of one chunk each, all naming the same bytes, do not multiply over a step", "[engine]") {
  HostileRoot root(1);
  constexpr uint32_t kCount = 150;
  const format::TableReference of_blob = root.index.tables[1];
  root.catalog.blobs.clear();
  for (uint32_t i = 0; i < kCount; ++i) {
    root.index.tables.push_back(of_blob);
    root.catalog.blobs.push_back({.name = absl::StrCat("blob", 1000 + i), .rank = 0, .writer = 0, .table = 2 + i, .bytes = kChunkBytes});
  }
  root.Publish();
  std::vector<std::string> read;
  for (const format::CatalogBlob& blob : root.catalog.blobs) {
    absl::StatusOr<std::string> bytes = root.reader->ReadBlob(blob);
    if (bytes.ok()) read.push_back(*std::move(bytes));
    if (!bytes.ok()) CHECK(SaysMoreThanPackHolds(bytes.status()));
  }
  CHECK(read.size() * kChunkBytes <= root.pack.size());
  CHECK_THAT(root.Problems(), Catch::Contains("name more than"));
  CHECK(root.read_bytes <= static_cast<int64_t>(root.pack.size()));
}

TEST_CASE("Many packs that are missing do not have the log looked at for each of them", "[engine]") {
  constexpr uint32_t kMissing = 3000;
  HostileRoot root(1);
  for (uint32_t i = 0; i < kMissing; ++i) {
    format::AttemptId attempt = example::kAttempt;
    attempt.attempt += 1 + i;
    root.index.packs.push_back({.attempt = attempt, .writer = 0, .nonce = example::kNonce});
  }
  root.Publish();
  root.tier.log_lists = 0;
  const std::string problems = root.Problems();
  REQUIRE(problems.find("is missing, and was so for 0 s") != std::string::npos);
  REQUIRE(std::count(problems.begin(), problems.end(), '\n') >= kMissing);
  REQUIRE(root.tier.log_lists < 100);
}

TEST_CASE("Many steps that are missing do not have the log looked at for each of them", "[engine]") {
  constexpr uint64_t kMissing = 3000;
  HostileRoot root(1);
  root.Publish();
  format::LogRecord record = example::Commit();
  record.number = kMissing + record.number;
  record.kind = format::RecordKind::kRewrite;
  record.subject = {};
  std::vector<int64_t> steps;
  for (uint64_t i = 0; i < kMissing; ++i) {
    format::StepEntry step = record.steps.back();
    step.parent = step.commit;
    ++step.commit;
    ++step.attempt.step;
    steps.push_back(step.attempt.step);
    record.steps.push_back(step);
  }
  record.head = record.steps.back().commit;
  REQUIRE(root.tier.PutIfAbsent(format::LogPath(record.number), format::EncodeLogRecord(record)).ok());
  root.tier.log_lists = 0;
  SECTION("of a whole root") { steps.clear(); }
  SECTION("of those that are named") {}
  const auto named = steps.empty() ? std::nullopt : std::optional(steps);
  const Verification found = root.store->Verify(named, /*full=*/false).value();
  REQUIRE(found.steps == static_cast<int64_t>(kMissing) + (named.has_value() ? 0 : 1));
  REQUIRE(found.problems.size() >= kMissing);
  REQUIRE(root.tier.log_lists < 100);
}

TEST_CASE("A table that is no good is not read again for each blob that names it", "[engine]") {
  HostileRoot root(1000);
  root.index.tables[1].digest.low ^= 1;
  root.catalog.tensors.clear();
  const format::TableReference bad = root.index.tables[1];
  for (uint32_t i = 0; i < 100; ++i) {
    root.index.tables.push_back(bad);
    root.catalog.blobs.push_back({.name = absl::StrCat("z", 1000 + i), .rank = 0, .writer = 0, .table = 2 + i, .bytes = 1});
  }
  root.Publish();
  const std::string problems = root.Problems(/*full=*/false);
  CHECK_THAT(problems, Catch::Contains("'values 'z1000' of rank 0': chunk table 2 of") && Catch::Contains("chunk table: checksum is"));
  // The pack has room for few tables as long as this one: what goes beyond it is refused unread.
  CHECK_THAT(problems, Catch::Contains("'values 'z1099' of rank 0'") && Catch::Contains("name more than"));
}

TEST_CASE("A pack named twice by an index or a catalog, or a table by two blobs, is damage", "[engine]") {
  HostileRoot root(1);
  SECTION("by an index") {
    root.index.packs.resize(1500, root.index.packs[0]);
    root.Publish();
    CHECK(absl::IsDataLoss(root.store->ReadTensor(*root.reader, "w").status()));
    CHECK_THAT(root.Problems(), Catch::Contains("00000.pack' twice"));
  }
  SECTION("by a catalog") {
    root.catalog.writers.resize(1000, root.catalog.writers[0]);
    root.Publish();
    CHECK(absl::IsDataLoss(root.open_status));
    CHECK_THAT(root.Problems(), Catch::Contains("00000.pack' is named twice"));
  }
  SECTION("a table") {
    root.catalog.blobs.push_back(root.catalog.blobs[0]);
    root.catalog.blobs[1].name = "two";
    root.Publish();
    CHECK(absl::IsDataLoss(root.open_status));
    CHECK_THAT(root.Problems(), Catch::Contains("chunk table 1 of writer 0 is named twice"));
  }
}

TEST_CASE("Verify without reading all bytes says that a chunk or a table lies beyond its pack", "[engine]") {
  HostileRoot root(1);
  root.catalog.blobs.clear();
  SECTION("a chunk") {
    format::ChunkRecord record = example::Chunk();
    record.offset = uint64_t{1} << 40;
    const std::string table = format::EncodeChunkTable(std::span(&record, 1));
    root.index.tables[0] = {.digest = format::Checksum128(base::AsBytes(table)), .pack = 0, .offset = root.pack.size(), .chunk_count = 1};
    root.pack += table;
    root.Reshape({4});
  }
  SECTION("a table") { root.index.tables[0].offset = uint64_t{1} << 40; }
  SECTION("a table that no tensor names") {
    root.index.tables.push_back(root.index.tables[0]);
    root.index.tables.back().offset = uint64_t{1} << 40;
  }
  SECTION("a table without chunks") {
    root.index.tables.push_back({.digest = {}, .pack = 0, .offset = uint64_t{1} << 40, .chunk_count = 0});
  }
  root.Publish();
  CHECK_THAT(root.Problems(/*full=*/false), Catch::Contains("beyond"));
}

TEST_CASE("Verify compares the list of packs with what the step needs", "[engine]") {
  HostileRoot root(1);
  root.catalog.blobs.clear();
  root.live_bytes = kChunkBytes;
  std::string expected;
  SECTION("a length") {
    root.list_bytes_claimed = uint64_t{1} << 50;
    expected = "1125899906842624 bytes, it has";
  }
  SECTION("live bytes") {
    root.live_bytes = 1;
    expected = "says that 1 bytes";
  }
  SECTION("a pack that an index refers to") {
    root.index.packs.push_back({.tier = 0, .attempt = example::kAttempt, .writer = 5, .nonce = {.low = 7, .high = 7}});
    const format::PackHeader header{
        .store_id = example::kStoreId, .attempt = example::kAttempt, .writer = 5, .nonce = {.low = 7, .high = 7}};
    REQUIRE(root.tier.PutIfAbsent(format::PackPath(example::kAttempt, 5), format::EncodePackHeader(header)).ok());
    expected = "does not list 'steps/000000000100/1-0/00005.pack'";
  }
  root.Publish();
  CHECK_THAT(root.Problems(/*full=*/false), Catch::Contains(expected));
}

TEST_CASE("Verify says that a table of an index is named by nothing", "[engine]") {
  HostileRoot root(1);
  root.catalog.blobs.clear();
  root.live_bytes = kChunkBytes;
  root.Publish();
  CHECK_THAT(root.Problems(/*full=*/false), Catch::Contains("chunk table 1 is that of nothing that the catalog names"));
}

TEST_CASE("What the index of another writer names in a pack is no padding of it", "[engine]") {
  HostileRoot root(1);
  const std::string raw(kChunkBytes, 's');
  format::ChunkRecord record = example::Chunk();
  record.raw_bytes = record.stored_bytes = kChunkBytes;
  record.offset = root.pack.size();
  record.pack = 1;
  record.fingerprint = format::Fingerprint(base::AsBytes(raw), example::kSeed);
  record.stored_checksum = format::Checksum64(base::AsBytes(raw));
  root.pack += raw;
  root.LeaveOutBlob();
  const std::string table = format::EncodeChunkTable(std::span(&record, 1));
  format::PackHeader header = example::Header();
  header.writer = 1;
  header.nonce.low ^= 1;
  std::string pack = format::EncodePackHeader(header);
  format::Index index = example::OneTensorIndex();
  index.writer = 1;
  index.nonce = header.nonce;
  index.packs = {{.tier = 0, .attempt = header.attempt, .writer = 1, .nonce = header.nonce}, index.packs[0]};
  index.tables = {{.digest = format::Checksum128(base::AsBytes(table)), .pack = 0, .offset = pack.size(), .chunk_count = 1}};
  pack += table;
  root.AddWriter(index, pack);
  root.catalog.blobs = {{.name = "tree", .rank = 0, .writer = 1, .table = 0, .bytes = kChunkBytes}};
  root.Publish();
  CHECK(root.Problems() == "");
}

TEST_CASE("Verify looks at what a reader of raw chunks leaves to it", "[engine]") {
  HostileRoot root(1);
  root.catalog.blobs.clear();
  root.live_bytes = 16;
  format::ChunkRecord record = example::Chunk();
  const std::string raw = example::RawChunk();
  root.pack.replace(static_cast<size_t>(record.offset), raw.size(), raw);
  std::string expected;
  SECTION("nothing is wrong") {}
  SECTION("the checksum") {
    record.stored_checksum ^= 1;
    expected = "checksum of the stored bytes is";
  }
  SECTION("the count of values that are not finite") {
    record.nonfinite_count = 3;
    expected = "number of non-finite values is 0, expected 3";
  }
  const std::string table = format::EncodeChunkTable(std::span(&record, 1));
  root.index.tables = {{.digest = format::Checksum128(base::AsBytes(table)), .pack = 0, .offset = root.pack.size(), .chunk_count = 1}};
  root.pack += table;
  root.Reshape({4});
  root.Publish();
  CHECK(root.store->ReadTensor(*root.reader, "w").value() == raw);
  CHECK((root.Problems().find("chunk 0 of 'w': ") != std::string::npos) == !expected.empty());
  CHECK_THAT(root.Problems(), Catch::Contains(expected));
}

TEST_CASE("Verify says that a number of the log is missing", "[engine]") {
  HostileRoot root(1);
  root.Publish();
  CHECK_THAT(root.Problems(), !Catch::Contains("is missing"));
  REQUIRE(root.tier.Delete(format::LogPath(1)).ok());
  CHECK_THAT(root.Problems(), Catch::Contains("'log/000000000001' is missing: the numbers of the log have no gap"));
}

TEST_CASE("Problems of an entry with a long name are short", "[engine]") {
  HostileRoot root(1);
  root.catalog.blobs.clear();
  root.catalog.tensors[0].name = std::string(format::kNameBytesMax, 'n');
  constexpr size_t kCount = 1000;
  std::vector<format::ChunkRecord> records(kCount, example::Chunk());
  for (size_t i = 0; i < kCount; ++i) {
    records[i].raw_bytes = records[i].stored_bytes = 4;
    records[i].element_begin = i;
  }
  const std::string table = format::EncodeChunkTable(records);
  root.index.tables[0] = {
      .digest = format::Checksum128(base::AsBytes(table)), .pack = 0, .offset = root.pack.size(), .chunk_count = kCount};
  root.pack += table;
  root.Reshape({static_cast<int64_t>(kCount)});
  root.Publish();
  const Verification found = root.store->Verify(std::nullopt, /*full=*/true).value();
  CHECK(found.problems.size() >= kCount);
  for (const Problem& problem : found.problems) CHECK(problem.entry.size() + problem.message.size() < 1000);
}

}  // namespace lamina::engine
