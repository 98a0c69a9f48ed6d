// A whole root, read as lamina.open and `lamina verify` read it. An input is a list of edits to a small sound root; then checksums, digests
// and lengths are made to fit from the chunks up to the log, so that every edit reaches the code that has to make sense of it.
//
// The first byte of an input: 1 leaves all digests as they were. Then edits of at least 5 bytes: part, kind, offset (2 bytes), length,
// and for some kinds bytes to put there.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "engine/store.h"
#include "env/posix_env.h"
#include "format/catalog.h"
#include "format/frame.h"
#include "format/index.h"
#include "format/log_record.h"
#include "format/pack.h"
#include "format/store_header.h"
#include "fuzz/targets.h"
#include "tier/memory_tier.h"

namespace lamina::fuzz {
namespace {

using format::AttemptId;
using format::Digest;

// The system's, but a sleep only moves the clock, and a task runs where it is started.
class QuickEnv : public env::Env {
 public:
  env::FileSystem& files() override { return base_->files(); }
  int64_t MonotonicNs() override { return now_ns_; }
  int64_t WallNs() override { return now_ns_; }
  void SleepNs(int64_t duration_ns) override { now_ns_ += duration_ns; }
  uint64_t RandomU64() override { return ++random_; }
  std::unique_ptr<env::Task> Start(std::string name, std::function<void()> body) override {
    if (name == "lamina-reader") body = [] {};  // it waits until its lease ends, and nothing is deleted here
    struct Done : env::Task {
      void Join() override {}
    };
    body();
    return std::make_unique<Done>();
  }
  std::unique_ptr<env::MutexImpl> NewMutex() override { return base_->NewMutex(); }
  std::unique_ptr<env::CondVarImpl> NewCondVar() override { return base_->NewCondVar(); }
  env::ProcessIdentity Self() override { return {}; }
  env::Liveness LivenessOf(const env::ProcessIdentity&) override { return env::Liveness::kUnknown; }
  void Operation(std::string_view) override {}

 private:
  const std::unique_ptr<env::Env> base_ = env::NewPosixEnv();
  int64_t now_ns_ = 1;
  uint64_t random_ = 0;
};

const format::StoreHeader kStore{.store_id = {.low = 0x11, .high = 0x22}, .fingerprint_seed = 7};
const AttemptId kFirst{.step = 100, .incarnation = 1, .attempt = 0};
const AttemptId kSecond{.step = 200, .incarnation = 1, .attempt = 1};

struct Region {
  size_t begin = 0;
  size_t bytes = 0;
};

// The parts of one pack: payloads without their frames, and what lies between.
struct Pack {
  AttemptId attempt;
  uint32_t writer = 0;
  std::string header = {};
  std::string chunks = {};
  std::string tables = {};
  std::string index = {};
  std::string footer = {};
  std::vector<Region> chunk_regions = {};  // in `chunks`
  std::vector<Region> table_regions = {};  // in `tables`

  uint64_t tables_offset() const { return format::kPackHeaderBytes + chunks.size(); }
  uint64_t index_offset() const { return tables_offset() + tables.size(); }
  std::string FramedIndex() const { return format::Framed(format::kIndexFrame, index); }
  std::string File() const {
    return format::Framed(format::kPackHeaderFrame, header) + chunks + tables + FramedIndex() +
           format::Framed(format::kPackFooterFrame, footer);
  }
};

struct Root {
  std::string store;
  std::vector<std::string> records;  // number 1 first
  std::vector<Pack> packs;
  std::vector<std::pair<AttemptId, std::string>> catalogs;
  std::vector<std::pair<AttemptId, std::string>> pack_lists;

  std::vector<std::string*> Parts() {
    std::vector<std::string*> parts{&store};
    for (std::string& record : records) parts.push_back(&record);
    for (Pack& pack : packs) parts.insert(parts.end(), {&pack.header, &pack.chunks, &pack.tables, &pack.index, &pack.footer});
    for (auto& [attempt, catalog] : catalogs) parts.push_back(&catalog);
    for (auto& [attempt, list] : pack_lists) parts.push_back(&list);
    return parts;
  }
};

std::string PayloadOf(const format::FrameKind& kind, const std::string& file) {
  return std::string(base::AsText(format::Unframed(kind, base::AsBytes(file)).value()));
}

Digest DigestOf(std::string_view bytes) { return format::Checksum128(base::AsBytes(bytes)); }

// The raw bytes of one box or blob, a chunk each.
using Item = std::vector<std::string>;

void AppendItem(const Item& item, uint64_t element_bytes, Pack& pack, format::Index& index) {
  std::vector<format::ChunkRecord> records;
  uint64_t elements = 0;
  for (const std::string& raw : item) {
    format::ChunkRecord record;
    record.element_begin = elements;
    record.raw_bytes = record.stored_bytes = static_cast<uint32_t>(raw.size());
    record.fingerprint = format::Fingerprint(base::AsBytes(raw), kStore.fingerprint_seed);
    record.stored_checksum = format::Checksum64(base::AsBytes(raw));
    record.offset = format::kPackHeaderBytes + pack.chunks.size();
    elements += raw.size() / element_bytes;
    pack.chunk_regions.push_back({pack.chunks.size(), raw.size()});
    pack.chunks += raw;
    pack.chunks.resize((pack.chunks.size() + 63) / 64 * 64, '\0');
    records.push_back(record);
  }
  const std::string table = format::EncodeChunkTable(records);
  index.tables.push_back({.digest = DigestOf(table), .pack = 0, .offset = pack.tables.size(), .chunk_count = records.size()});
  pack.table_regions.push_back({pack.tables.size(), table.size()});
  pack.tables += table;
}

Pack SoundPack(const AttemptId& attempt, uint32_t writer, const std::vector<std::pair<uint64_t, Item>>& items) {
  const Digest nonce{.low = static_cast<uint64_t>(attempt.step), .high = 0x55aa0000 + writer};
  Pack pack{.attempt = attempt, .writer = writer};
  const format::PackHeader header{.store_id = kStore.store_id, .attempt = attempt, .writer = writer, .nonce = nonce};
  pack.header = PayloadOf(format::kPackHeaderFrame, format::EncodePackHeader(header));
  format::Index index{
      .store_id = kStore.store_id, .attempt = attempt, .writer = writer, .nonce = nonce, .packs = {}, .tables = {}, .rules = {}};
  index.packs = {{.tier = 0, .attempt = attempt, .writer = writer, .nonce = nonce}};
  for (const auto& [element_bytes, item] : items) AppendItem(item, element_bytes, pack, index);
  for (format::TableReference& table : index.tables) table.offset += pack.tables_offset();
  const std::string index_bytes = format::EncodeIndex(index);
  pack.index = PayloadOf(format::kIndexFrame, index_bytes);
  const format::PackFooter footer{.nonce = nonce,
                                  .index_offset = pack.index_offset(),
                                  .index_bytes = index_bytes.size(),
                                  .index_digest = DigestOf(index_bytes),
                                  .pack_bytes = pack.index_offset() + index_bytes.size() + format::kPackFooterBytes};
  pack.footer = PayloadOf(format::kPackFooterFrame, format::EncodePackFooter(footer));
  return pack;
}

format::Catalog SoundCatalog(const AttemptId& attempt, std::span<const Pack> packs) {
  format::Catalog catalog{
      .store_id = kStore.store_id, .attempt = attempt, .rank_count = 2, .topology = {{"dp", 2}}, .writers = {}, .tensors = {}, .blobs = {}};
  for (const Pack& pack : packs) {
    catalog.writers.push_back({.attempt = attempt,
                               .writer = pack.writer,
                               .nonce = {.low = static_cast<uint64_t>(attempt.step), .high = 0x55aa0000 + pack.writer},
                               .index_digest = DigestOf(pack.FramedIndex()),
                               .pack_bytes = pack.File().size()});
  }
  return catalog;
}

// One box of two chunks and the plain values.
format::Catalog FirstCatalog(std::span<const Pack> packs) {
  format::Catalog catalog = SoundCatalog(kFirst, packs);
  catalog.tensors = {{.name = "w", .dtype = DType::kFloat32, .global_shape = {4, 2}, .alias_of = "", .boxes = {}}};
  catalog.tensors[0].boxes.push_back({.box = {.offset = {0, 0}, .extent = {4, 2}}, .writer = 0, .table = 0});
  catalog.blobs = {{.name = "tree", .rank = 0, .writer = 0, .table = 1, .bytes = 4}};
  return catalog;
}

// A tensor that two writers share, its alias, a scalar, one without elements, the plain values.
format::Catalog SecondCatalog(std::span<const Pack> packs) {
  format::Catalog catalog = SoundCatalog(kSecond, packs);
  catalog.tensors = {{.name = "w", .dtype = DType::kFloat32, .global_shape = {4, 2}, .alias_of = "", .boxes = {}},
                     {.name = "x", .dtype = DType::kFloat32, .global_shape = {4, 2}, .alias_of = "w", .boxes = {}},
                     {.name = "y", .dtype = DType::kBfloat16, .global_shape = {0}, .alias_of = "", .boxes = {}},
                     {.name = "z", .dtype = DType::kInt64, .global_shape = {}, .alias_of = "", .boxes = {}}};
  for (const uint32_t writer : {0u, 1u}) {
    catalog.tensors[0].boxes.push_back({.box = {.offset = {2 * writer, 0}, .extent = {2, 2}}, .writer = writer, .table = 0});
  }
  catalog.tensors[3].boxes.push_back({.box = {}, .writer = 1, .table = 1});
  catalog.blobs = {{.name = "tree", .rank = 0, .writer = 0, .table = 1, .bytes = 4}};
  return catalog;
}

format::StepEntry StepOf(const AttemptId& attempt, uint64_t commit, uint64_t parent, const std::string& catalog, const std::string& packs) {
  return {.commit = commit, .parent = parent, .attempt = attempt, .catalog_digest = DigestOf(catalog), .packs_digest = DigestOf(packs)};
}

void AddStep(Root& root, const AttemptId& attempt, std::span<const Pack> packs, const format::Catalog& catalog, format::LogRecord& record) {
  format::Packs list{.store_id = kStore.store_id, .attempt = attempt, .packs = {}};
  for (size_t i = 0; i < packs.size(); ++i) {
    const format::CatalogWriter& writer = catalog.writers[i];
    uint64_t live_bytes = 0;
    for (const Region& region : packs[i].chunk_regions) live_bytes += region.bytes;
    list.packs.push_back(
        {.attempt = attempt, .writer = writer.writer, .nonce = writer.nonce, .pack_bytes = writer.pack_bytes, .live_bytes = live_bytes});
  }
  const std::string catalog_file = format::EncodeCatalog(catalog);
  const std::string list_file = format::EncodePacks(list);
  root.catalogs.emplace_back(attempt, PayloadOf(format::kCatalogFrame, catalog_file));
  root.pack_lists.emplace_back(attempt, PayloadOf(format::kPacksFrame, list_file));
  ++record.number;
  record.kind = format::RecordKind::kCommit;
  record.subject = attempt;
  record.steps.push_back(StepOf(attempt, record.number, record.head, catalog_file, list_file));
  record.head = record.number;
  root.records.push_back(PayloadOf(format::kLogFrame, format::EncodeLogRecord(record)));
}

Root SoundRoot() {
  const std::string half(16, 'a');
  const Item plain{"null"};
  Root root;
  root.store = PayloadOf(format::kStoreFrame, format::EncodeStoreHeader(kStore));
  root.packs.push_back(SoundPack(kFirst, 0, {{4, {half, std::string(16, 'b')}}, {1, plain}}));
  root.packs.push_back(SoundPack(kSecond, 0, {{4, {half}}, {1, plain}}));
  root.packs.push_back(SoundPack(kSecond, 1, {{4, {std::string(16, 'c')}}, {8, {std::string(8, 'd')}}}));
  format::LogRecord record;
  record.store_id = kStore.store_id;
  record.nonce = {.low = 9, .high = 10};
  record.number = record.incarnation = 1;
  record.opens = {1};
  root.records.push_back(PayloadOf(format::kLogFrame, format::EncodeLogRecord(record)));
  const std::span<const Pack> packs(root.packs);
  AddStep(root, kFirst, packs.first(1), FirstCatalog(packs.first(1)), record);
  AddStep(root, kSecond, packs.subspan(1), SecondCatalog(packs.subspan(1)), record);
  return root;
}

class Edits {
 public:
  explicit Edits(Bytes input) : rest_(input) {}

  bool digests_stay() { return Take() == 1; }
  // Applies the next edit; false at the end. Parts that are dropped go into `dropped`.
  bool ApplyTo(const std::vector<std::string*>& parts, std::set<size_t>& dropped) {
    if (rest_.size() < 5) return false;
    const size_t number = Take() % parts.size();
    const uint8_t kind = Take();
    std::string& part = *parts[number];
    const size_t offset = (Take() + 256u * Take()) % (part.size() + 1);
    const size_t length = Take();
    const size_t there = std::min(length, part.size() - offset);
    switch (kind % 7) {
      case 0:
        part.replace(offset, there, TakeText(there));
        break;
      case 1:
        part.insert(offset, TakeText(length));
        break;
      case 2:
        part.erase(offset, there);
        break;
      case 3:
        part.resize(offset);
        break;
      case 4:
        part.insert(offset, parts[Take() % parts.size()]->substr(0, 4 * length));
        break;
      case 5:
        PutNumber(part, offset, length);
        break;
      default:
        dropped.insert(number);
    }
    return true;
  }

 private:
  uint8_t Take() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_ = rest_.subspan(1);
    return byte;
  }
  std::string TakeText(size_t bytes) {
    const Bytes text = rest_.first(std::min(bytes, rest_.size()));
    rest_ = rest_.subspan(text.size());
    return std::string(base::AsText(text));
  }
  // A number that readers may trip over, 4 bytes wide or 8.
  static void PutNumber(std::string& part, size_t offset, size_t choice) {
    const std::array<uint64_t, 10> values{0, 1, 2, part.size(), 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX, UINT64_MAX >> 1, 1u << 30};
    const uint64_t value = values[choice / 2 % values.size()];
    const size_t width = choice % 2 == 0 ? 4 : 8;
    if (part.size() - offset >= width) std::memcpy(part.data() + offset, &value, width);
  }

  Bytes rest_;
};

// Where `before` stands in the text, puts `after`: a digest or length follows what it is of.
template <typename T>
void Follow(std::string& text, const T& before, const T& after) {
  static_assert(std::has_unique_object_representations_v<T>);
  const std::string old_text(reinterpret_cast<const char*>(&before), sizeof(T));
  const std::string new_text(reinterpret_cast<const char*>(&after), sizeof(T));
  if (old_text == new_text) return;
  for (size_t at = text.find(old_text); at != std::string::npos; at = text.find(old_text, at + sizeof(T))) {
    text.replace(at, sizeof(T), new_text);
  }
}

// The text of a region in `text`; nothing when it has become shorter.
std::optional<std::string_view> In(const std::string& text, const Region& region) {
  if (text.size() < region.begin + region.bytes) return std::nullopt;
  return std::string_view(text).substr(region.begin, region.bytes);
}

void RepairPack(const Pack& sound, Pack& pack, Root& root) {
  for (const Region& region : sound.chunk_regions) {
    const std::optional<std::string_view> before = In(sound.chunks, region);
    const std::optional<std::string_view> after = In(pack.chunks, region);
    if (!after) continue;
    const auto fingerprint = [](std::string_view raw) { return format::Fingerprint(base::AsBytes(raw), kStore.fingerprint_seed); };
    Follow(pack.tables, fingerprint(*before), fingerprint(*after));
    Follow(pack.tables, format::Checksum64(base::AsBytes(*before)), format::Checksum64(base::AsBytes(*after)));
  }
  for (const Region& region : sound.table_regions) {
    if (const auto after = In(pack.tables, region)) Follow(pack.index, DigestOf(*In(sound.tables, region)), DigestOf(*after));
  }
  const Digest index_before = DigestOf(sound.FramedIndex());
  const Digest index_after = DigestOf(pack.FramedIndex());
  const uint64_t bytes_before = sound.File().size();
  const uint64_t bytes_after = pack.File().size();
  Follow(pack.footer, index_before, index_after);
  Follow(pack.footer, sound.index_offset(), pack.index_offset());
  Follow<uint64_t>(pack.footer, sound.FramedIndex().size(), pack.FramedIndex().size());
  Follow(pack.footer, bytes_before, bytes_after);
  for (auto& [attempt, catalog] : root.catalogs) {
    Follow(catalog, index_before, index_after);
    Follow(catalog, bytes_before, bytes_after);
  }
  for (auto& [attempt, list] : root.pack_lists) Follow(list, bytes_before, bytes_after);
}

void RepairDigests(const Root& sound, Root& root) {
  for (size_t i = 0; i < root.packs.size(); ++i) RepairPack(sound.packs[i], root.packs[i], root);
  for (std::string& record : root.records) {
    for (size_t i = 0; i < root.catalogs.size(); ++i) {
      Follow(record, DigestOf(format::Framed(format::kCatalogFrame, sound.catalogs[i].second)),
             DigestOf(format::Framed(format::kCatalogFrame, root.catalogs[i].second)));
      Follow(record, DigestOf(format::Framed(format::kPacksFrame, sound.pack_lists[i].second)),
             DigestOf(format::Framed(format::kPacksFrame, root.pack_lists[i].second)));
    }
  }
}

std::string TwoCopies(const std::string& payload) {
  std::string copy = format::Framed(format::kLogFrame, payload);
  copy.resize((copy.size() + format::kLogCopyAlignment - 1) / format::kLogCopyAlignment * format::kLogCopyAlignment, '\0');
  return copy + copy;
}

// Each file under the numbers of its parts in Root::Parts.
std::vector<std::pair<std::string, std::string>> FilesOf(const Root& root, const std::set<size_t>& dropped) {
  std::vector<std::pair<std::string, std::string>> files;
  size_t part = 0;
  const auto add = [&](const std::string& name, const std::string& bytes, size_t part_count = 1) {
    bool kept = true;
    for (size_t i = 0; i < part_count; ++i) kept = kept && !dropped.contains(part++);
    if (kept) files.emplace_back(name, bytes);
  };
  add(std::string(format::kStorePath), format::Framed(format::kStoreFrame, root.store));
  for (size_t i = 0; i < root.records.size(); ++i) add(format::LogPath(i + 1), TwoCopies(root.records[i]));
  for (const Pack& pack : root.packs) add(format::PackPath(pack.attempt, pack.writer), pack.File(), 5);
  for (const auto& [attempt, catalog] : root.catalogs) add(format::CatalogPath(attempt), format::Framed(format::kCatalogFrame, catalog));
  for (const auto& [attempt, list] : root.pack_lists) add(format::PacksPath(attempt), format::Framed(format::kPacksFrame, list));
  return files;
}

bool IsExpected(const absl::Status& status) {
  return status.ok() || absl::IsDataLoss(status) || absl::IsUnimplemented(status) || absl::IsNotFound(status);
}

absl::Status Expected(const absl::Status& status) { return IsExpected(status) ? absl::OkStatus() : status; }

// Reads all of a step. What is damaged is passed over.
absl::Status ReadStep(engine::Store& store, std::optional<int64_t> step) {
  const absl::StatusOr<std::unique_ptr<engine::StepReader>> reader = store.OpenStep(step);
  if (!reader.ok()) return Expected(reader.status());
  LAMINA_RETURN_IF_ERROR(Expected((*reader)->ReadPacks().status()));
  for (const format::CatalogTensor& tensor : (*reader)->catalog().tensors) {
    LAMINA_RETURN_IF_ERROR(Expected(store.ReadTensor(**reader, tensor.name).status()));
  }
  for (const format::CatalogBlob& blob : (*reader)->catalog().blobs) {
    LAMINA_RETURN_IF_ERROR(Expected((*reader)->ReadBlob(blob).status()));
  }
  return absl::OkStatus();
}

// `problem_count`: what verifying the whole root found.
absl::Status ReadRoot(Bytes input, size_t& problem_count) {
  static const Root sound = SoundRoot();
  Root root = sound;
  Edits edits(input);
  const bool digests_stay = edits.digests_stay();
  std::set<size_t> dropped;
  while (edits.ApplyTo(root.Parts(), dropped)) {
  }
  if (!digests_stay) RepairDigests(sound, root);
  QuickEnv env;
  tier::MemoryTier tier(env);
  for (const auto& [name, bytes] : FilesOf(root, dropped)) LAMINA_RETURN_IF_ERROR(tier.PutIfAbsent(name, bytes));
  const absl::StatusOr<engine::Verification> verification = engine::Verify(env, tier, std::nullopt, /*full=*/true);
  LAMINA_RETURN_IF_ERROR(Expected(verification.status()));
  problem_count = verification.ok() ? verification->problems.size() : 1;
  const absl::StatusOr<std::unique_ptr<engine::Store>> store = engine::Store::Open(env, tier);
  if (!store.ok()) return Expected(store.status());
  LAMINA_RETURN_IF_ERROR(Expected((*store)->Steps(/*all=*/true).status()));
  LAMINA_RETURN_IF_ERROR(Expected((*store)->Verify(std::vector{kFirst.step}, /*full=*/true).status()));
  LAMINA_RETURN_IF_ERROR(ReadStep(**store, kFirst.step));
  return ReadStep(**store, std::nullopt);
}

absl::Status Attack(Bytes input) {
  size_t problem_count = 0;
  return ReadRoot(input, problem_count);
}

// An edit of each kind, and none.
std::vector<std::string> Seeds() {
  using namespace std::string_literals;
  return {""s,
          "\0\5\0\x10\0\4abcd"s,               // other bytes in a chunk
          "\0\7\2\x20\0\4"s,                   // an index that has lost some
          "\0\6\5\x30\0\x0f"s,                 // a number in a chunk table
          "\1\x13\3\x40\0\0"s,                 // a catalog cut short, its digest as it was
          "\0\x14\4\x10\0\x08\x15"s,           // a catalog with a part of another file
          "\0\3\5\x80\0\1\0\2\1\x10\0\2zz"s};  // two edits of records
}

}  // namespace

absl::Status CheckSoundRoot() {
  size_t problem_count = 0;
  LAMINA_RETURN_IF_ERROR(ReadRoot({}, problem_count));
  return problem_count == 0 ? absl::OkStatus() : absl::InternalError("the root that is edited is not sound");
}

Target RootTarget() { return {"root", Seeds(), Attack}; }

}  // namespace lamina::fuzz
