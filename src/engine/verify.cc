#include "engine/verify.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/drop_watch.h"
#include "engine/step_reader.h"
#include "engine/store.h"
#include "format/nonfinite.h"
#include "format/version.h"
#include "shard/box.h"
#include "tier/log.h"
#include "tier/reader_lease.h"

namespace lamina::engine {
namespace {

constexpr size_t kScanBytes = 4 * base::kMiB;
constexpr size_t kProblemsMax = 10'000;

struct Region {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// What is known while a step is checked: of a writer,
struct WriterUse {
  bool opens = false;       // header, footer and index are sound
  std::vector<bool> named;  // which tables of its index the catalog names
};

// and of a pack, by the tables that could be read.
struct PackUse {
  uint64_t live_bytes = 0;  // that the step's chunks have in it
  std::vector<Region> regions;
};

// Of an entry's name, which may have 64 KiB: a problem keeps it, and there may be many.
std::string Shortened(const std::string& name) {
  const std::string shown = format::ShownName(name);
  return shown.substr(1, shown.size() - 2);
}

// As FindStep finds each; the line is gone through once for all.
absl::StatusOr<std::vector<format::StepEntry>> EntriesOf(const format::LogRecord& record, const std::vector<int64_t>& steps) {
  std::map<int64_t, const format::StepEntry*> known;
  for (const format::StepEntry& entry : record.steps) {
    if (entry.state != format::StepState::kDropped) known[entry.attempt.step] = &entry;
  }
  const std::vector<format::StepEntry> line = tier::LineOf(record);
  for (auto entry = line.rbegin(); entry != line.rend(); ++entry) known[entry->attempt.step] = &*entry;
  std::vector<format::StepEntry> entries;
  for (const int64_t step : steps) {
    const auto found = known.find(step);
    if (found == known.end()) return FindStep(record, step).status();
    entries.push_back(*found->second);
  }
  return entries;
}

class Verifier {
 public:
  Verifier(env::Env& env, tier::Tier& tier, bool full)
      : env_(env), tier_(tier), full_(full), drops_(std::make_shared<DropWatch>(env, tier)) {}

  // `store`: null when its own file is bad.
  void CheckLogRecords(const format::StoreHeader* store) {
    const absl::StatusOr<std::vector<std::string>> names = tier_.ListNames(format::kLogPrefix);
    if (!names.ok()) return Report(std::string(format::kLogPrefix), names.status());
    std::vector<uint64_t> numbers;
    for (const std::string& name : *names) {
      const std::optional<uint64_t> number = format::ParseLogName(name);
      if (number.has_value()) numbers.push_back(*number);
    }
    std::sort(numbers.begin(), numbers.end());
    for (const uint64_t number : numbers) CheckLogRecord(number, store);
    CheckNumbers(numbers);
  }

  void CheckStep(const format::StoreHeader& store, const format::StepEntry& entry) {
    ++result_.steps;
    absl::StatusOr<std::unique_ptr<StepReader>> opened = StepReader::Open(env_, tier_, store, entry, /*retry_s=*/0, {}, drops_);
    if (!opened.ok()) return Report(format::CatalogPath(entry.attempt), opened.status());
    StepReader& reader = **opened;
    used_.assign(reader.catalog().writers.size(), {});
    all_known_ = true;
    packs_.clear();
    for (uint32_t writer = 0; writer < used_.size(); ++writer) {
      const absl::StatusOr<const format::Index*> index = reader.IndexOf(writer);
      if (!index.ok()) Report(reader.PackName(writer, 0), index.status());
      all_known_ = all_known_ && index.ok();
      used_[writer].opens = index.ok();
      if (index.ok()) used_[writer].named.assign((*index)->tables.size(), false);
    }
    for (const format::CatalogTensor& tensor : reader.catalog().tensors) {
      const int64_t element_bytes = DTypeBytes(tensor.dtype);
      for (const format::StoredBox& box : tensor.boxes) {
        CheckTable(reader, box.writer, box.table, Shortened(tensor.name), shard::ElementCount(box.box.extent) * element_bytes,
                   tensor.dtype);
      }
    }
    for (const format::CatalogBlob& blob : reader.catalog().blobs) {
      const std::string name = absl::StrCat("values ", format::ShownName(blob.name), " of rank ", blob.rank);
      CheckTable(reader, blob.writer, blob.table, name, static_cast<int64_t>(blob.bytes), DType::kUint8);
    }
    CheckPacks(reader);
    for (uint32_t writer = 0; writer < used_.size(); ++writer) CheckNamed(reader, writer);
    if (!full_ || !all_known_) return;
    for (uint32_t writer = 0; writer < used_.size(); ++writer) CheckGaps(reader, writer);
  }

  void Report(const std::string& file, const absl::Status& status, const std::string& entry = {}, int64_t chunk = -1) {
    if (absl::IsNotFound(status)) return;  // deleted since it was listed, or its step dropped since the log was read: no damage
    std::string message(status.message());
    if (message.find(file) == std::string::npos) message = absl::StrCat("'", file, "': ", message);
    if (seen_.size() > kProblemsMax || !seen_.insert(message).second) return;
    if (seen_.size() > kProblemsMax) message = "further problems are not listed";
    result_.problems.push_back({file, entry, chunk, std::move(message)});
  }

  Verification Take() { return std::move(result_); }

 private:
  // Each of the two copies alone, so that damage in one shows although readers can do without it; and that both halves of the file are the
  // same, to the zeros behind the payload, which readers pass over.
  void CheckLogRecord(uint64_t number, const format::StoreHeader* store) {
    const std::string name = format::LogPath(number);
    const absl::StatusOr<std::string> bytes = tier::ReadWhole(tier_, name, format::kMetadataBytesMax);
    if (!bytes.ok()) return Report(name, bytes.status());
    if (bytes->size() % (2 * format::kLogCopyAlignment) != 0) {
      Report(name, absl::DataLossError(absl::StrCat("'", name, "' has ", bytes->size(), " bytes, which is no multiple of ",
                                                    2 * format::kLogCopyAlignment, ": not two whole copies")));
    }
    const size_t half = bytes->size() / 2;
    bool sound = bytes->size() % 2 == 0;
    for (const bool first : {true, false}) {
      const std::string copy = bytes->substr(first ? 0 : half, half);
      const std::optional<format::Digest> store_id = store != nullptr ? std::optional(store->store_id) : std::nullopt;
      const absl::Status status = format::DecodeLogRecordCopy(base::AsBytes(copy), number, store_id).status();
      if (!status.ok()) Report(name, base::Annotate(status, absl::StrCat("'", name, "', ", first ? "first" : "second", " copy")));
      sound = sound && status.ok();
    }
    const auto differs =
        std::mismatch(bytes->begin(), bytes->begin() + static_cast<ptrdiff_t>(half), bytes->begin() + static_cast<ptrdiff_t>(half));
    if (!sound || differs.second == bytes->end()) return;
    Report(name, absl::DataLossError(absl::StrCat("'", name, "': its two copies differ at byte ", differs.first - bytes->begin())));
  }

  // `numbers`: listed before the newest record is read, so that what has been tidied up since is below its floor.
  void CheckNumbers(const std::vector<uint64_t>& numbers) {
    const absl::StatusOr<format::LogRecord> newest = tier::Log(env_, tier_).Newest(/*damage_ok=*/true);
    if (!newest.ok() || numbers.empty()) return;  // said already, or there is no log
    const auto report = [&](uint64_t first, uint64_t last, std::string_view why) {
      Report(format::LogPath(first),
             absl::DataLossError(absl::StrCat("'", format::LogPath(first), "' is missing",
                                              first == last ? "" : absl::StrCat(", and all up to number ", last), ": ", std::string(why))));
    };
    const auto is_open = [&newest](uint64_t number) { return std::ranges::binary_search(newest->opens, number); };
    uint64_t floor = newest->floor;
    if (numbers.back() > newest->number || newest->damaged != 0) {
      // A record that cannot be read any more may have tidied up more than those that can: all below the first that is there, but opens.
      const auto first = std::ranges::find_if(numbers, [&](uint64_t number) { return number >= floor && !is_open(number); });
      if (first != numbers.end()) floor = *first;
    }
    uint64_t expected = floor;
    for (const uint64_t number : numbers) {
      if (number < floor) continue;
      if (number > expected) report(expected, number - 1, "the numbers of the log have no gap");
      expected = number + 1;
    }
    for (const uint64_t open : newest->opens) {
      if (open >= newest->floor || std::binary_search(numbers.begin(), numbers.end(), open)) continue;
      report(open, open, "every open is kept");
    }
  }

  void CheckPacks(StepReader& reader) {
    const std::string name = format::PacksPath(reader.entry().attempt);
    const absl::StatusOr<format::Packs> packs = reader.ReadPacks();
    if (!packs.ok()) return Report(name, packs.status());
    if (packs->store_id != reader.catalog().store_id || packs->attempt != reader.entry().attempt) {
      return Report(name, absl::DataLossError("it belongs to another store or attempt"));
    }
    for (const format::CatalogWriter& writer : reader.catalog().writers) CheckListed(*packs, name, writer);
    for (uint32_t writer = 0; writer < used_.size(); ++writer) {
      if (used_[writer].opens) CheckReferences(reader, writer, *packs, name);
    }
    for (const format::ReachedPack& pack : packs->packs) CheckReached(reader, pack, name);
  }

  // `reference`: a pack that the catalog or an index names.
  template <typename Reference>
  void CheckListed(const format::Packs& packs, const std::string& name, const Reference& reference) {
    const auto key = [](const auto& each) { return std::tie(each.attempt, each.writer); };
    const auto found = std::lower_bound(packs.packs.begin(), packs.packs.end(), reference,
                                        [&](const format::ReachedPack& a, const Reference& b) { return key(a) < key(b); });
    if (found != packs.packs.end() && key(*found) == key(reference) && found->nonce == reference.nonce) return;
    Report(name,
           absl::DataLossError(absl::StrCat("'", name, "' does not list '", format::PackPath(reference.attempt, reference.writer), "'")));
  }

  // The packs that a writer's index refers to are what it says and in the step's list; the tables of the index lie in them.
  void CheckReferences(StepReader& reader, uint32_t writer, const format::Packs& packs, const std::string& name) {
    const absl::StatusOr<const format::Index*> index = reader.IndexOf(writer);
    if (!index.ok()) return;  // said of the pack
    std::vector<uint64_t> lengths;
    for (const format::PackReference& reference : (*index)->packs) {
      CheckListed(packs, name, reference);
      const absl::StatusOr<int64_t> bytes = reader.PackBytes(reference.attempt, reference.writer, reference.nonce);
      if (!bytes.ok()) Report(format::PackPath(reference.attempt, reference.writer), bytes.status());
      lengths.push_back(bytes.ok() ? static_cast<uint64_t>(*bytes) : std::numeric_limits<uint64_t>::max());
    }
    for (size_t table = 0; table < (*index)->tables.size(); ++table) {
      const format::TableReference& reference = (*index)->tables[table];
      if (reference.offset + reference.chunk_count * sizeof(format::ChunkRecord) <= lengths[reference.pack]) continue;
      const std::string pack = reader.PackName(writer, 0);
      Report(pack, absl::DataLossError(absl::StrCat("the index of '", pack, "': chunk table ", table, " ends beyond its pack")));
    }
  }

  // One line of the step's list: the pack is there and as long as it says, and so are the bytes that the step needs of it.
  void CheckReached(StepReader& reader, const format::ReachedPack& pack, const std::string& name) {
    const std::string path = format::PackPath(pack.attempt, pack.writer);
    const absl::StatusOr<int64_t> bytes = reader.PackBytes(pack.attempt, pack.writer, pack.nonce);
    if (!bytes.ok()) return Report(path, bytes.status());
    if (static_cast<uint64_t>(*bytes) != pack.pack_bytes) {
      Report(name, absl::DataLossError(absl::StrCat("'", name, "' gives '", path, "' ", pack.pack_bytes, " bytes, it has ", *bytes)));
    }
    if (!all_known_) return;
    const auto found = packs_.find({pack.attempt, pack.writer});
    const uint64_t live = found == packs_.end() ? 0 : found->second.live_bytes;
    if (live == pack.live_bytes) return;
    Report(name, absl::DataLossError(absl::StrCat("'", name, "' says that ", pack.live_bytes, " bytes of '", path,
                                                  "' are needed, by the chunk tables it is ", live)));
  }

  void CheckTable(StepReader& reader, uint32_t writer, uint32_t table, const std::string& entry, int64_t box_bytes, DType dtype) {
    WriterUse& use = used_[writer];
    if (!use.opens) return;  // said once, of the pack
    if (table < use.named.size()) use.named[table] = true;
    const absl::StatusOr<std::vector<format::ChunkRecord>> chunks = reader.Table(writer, table, box_bytes, DTypeBytes(dtype));
    if (!chunks.ok()) {
      all_known_ = false;
      return Report(reader.PackName(writer, 0), base::Annotate(chunks.status(), absl::StrCat("'", entry, "'")), entry);
    }
    const absl::StatusOr<const format::Index*> index = reader.IndexOf(writer);
    if (!index.ok()) return Report(reader.PackName(writer, 0), index.status());
    const format::TableReference& reference = (*index)->tables[table];
    const uint64_t table_end = reference.offset + reference.chunk_count * sizeof(format::ChunkRecord);
    UseOf((*index)->packs[reference.pack]).regions.push_back({reference.offset, table_end});
    for (size_t ordinal = 0; ordinal < chunks->size(); ++ordinal) {
      const format::ChunkRecord& chunk = (*chunks)[ordinal];
      PackUse& pack = UseOf((*index)->packs[chunk.pack]);
      pack.live_bytes += chunk.stored_bytes;
      pack.regions.push_back({chunk.offset, chunk.offset + chunk.stored_bytes});
      if (!full_) continue;
      scratch_.resize(chunk.raw_bytes);
      ++result_.chunks;
      result_.bytes += chunk.raw_bytes;
      absl::Status status = reader.ReadChunk(writer, chunk, entry, ordinal, scratch_);
      if (status.ok()) status = CheckCounts(chunk, entry, ordinal, dtype);
      if (!status.ok()) Report(reader.PackName(writer, chunk.pack), status, entry, static_cast<int64_t>(ordinal));
    }
  }

  // What a reader of raw chunks leaves to this: of the chunk that has just been read.
  absl::Status CheckCounts(const format::ChunkRecord& chunk, const std::string& entry, size_t ordinal, DType dtype) const {
    const auto wrong = [&](std::string_view what, uint64_t found, uint64_t expected) {
      return absl::DataLossError(
          absl::StrCat("chunk ", ordinal, " of '", entry, "': ", std::string(what), " is ", found, ", expected ", expected));
    };
    const uint64_t checksum = format::Checksum64(scratch_);
    if (checksum != chunk.stored_checksum) return wrong("checksum of the stored bytes", checksum, chunk.stored_checksum);
    if (chunk.nonfinite_count == format::kNotCounted) return absl::OkStatus();
    const uint64_t count = format::NonfiniteCount(scratch_, dtype);
    return count == chunk.nonfinite_count ? absl::OkStatus() : wrong("number of non-finite values", count, chunk.nonfinite_count);
  }

  // A writer of a step writes nothing that the step does without.
  void CheckNamed(StepReader& reader, uint32_t writer) {
    const std::vector<bool>& named = used_[writer].named;
    const auto found = std::find(named.begin(), named.end(), false);
    if (found == named.end()) return;
    all_known_ = false;
    const std::string name = reader.PackName(writer, 0);
    Report(name, absl::DataLossError(absl::StrCat("the index of '", name, "': chunk table ", found - named.begin(),
                                                  " is that of nothing that the catalog names")));
  }

  // What no header, chunk, table, index or footer covers is zero, whichever index of the step names it.
  void CheckGaps(StepReader& reader, uint32_t writer) {
    const std::string name = reader.PackName(writer, 0);
    std::vector<Region>& used = UseOf(reader.catalog().writers[writer]).regions;
    const absl::StatusOr<tier::ObjectReader*> object = reader.PackOf(writer, 0);
    if (!object.ok()) return Report(name, object.status());
    const absl::StatusOr<int64_t> index_offset = reader.IndexOffset(writer);
    if (!index_offset.ok()) return Report(name, index_offset.status());
    used.push_back({0, static_cast<uint64_t>(format::kPackHeaderBytes)});
    used.push_back({static_cast<uint64_t>(*index_offset), static_cast<uint64_t>((*object)->bytes())});
    std::sort(used.begin(), used.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
    uint64_t covered = 0;
    for (const Region& region : used) {
      if (region.begin > covered) CheckZero(**object, name, covered, region.begin);
      covered = std::max(covered, region.end);
    }
  }

  template <typename Reference>
  PackUse& UseOf(const Reference& pack) {
    return packs_[{pack.attempt, pack.writer}];
  }

  void CheckZero(tier::ObjectReader& object, const std::string& name, uint64_t begin, uint64_t end) {
    while (begin < end) {
      scratch_.resize(std::min<uint64_t>(end - begin, kScanBytes));
      const absl::Status status = object.ReadRange(static_cast<int64_t>(begin), scratch_);
      if (!status.ok()) return Report(name, status);
      const auto found = std::find_if(scratch_.begin(), scratch_.end(), [](std::byte byte) { return byte != std::byte{0}; });
      if (found != scratch_.end()) {
        return Report(
            name, absl::DataLossError(absl::StrCat("'", name, "': the byte at ", begin + static_cast<uint64_t>(found - scratch_.begin()),
                                                   ", between chunks, is not zero")));
      }
      begin += scratch_.size();
    }
  }

  env::Env& env_;
  tier::Tier& tier_;
  const bool full_;
  const std::shared_ptr<DropWatch> drops_;  // of all steps
  std::vector<WriterUse> used_;             // of each writer of the step
  std::map<std::pair<format::AttemptId, uint32_t>, PackUse> packs_;
  bool all_known_ = true;  // every index and table of the step could be read, so that `packs_` is all that it needs
  Verification result_;
  std::set<std::string> seen_;
  std::vector<std::byte> scratch_;
};

}  // namespace

absl::StatusOr<Verification> Verify(env::Env& env, tier::Tier& tier, std::optional<std::vector<int64_t>> steps, bool full) {
  const tier::ReaderLease lease(env, tier);
  tier::Log log(env, tier);
  Verifier verifier(env, tier, full);
  const absl::StatusOr<format::StoreHeader> store = log.ReadStore();
  if (!store.ok() && !absl::IsDataLoss(store.status())) return store.status();
  if (!store.ok()) verifier.Report(std::string(format::kStorePath), store.status());
  const absl::StatusOr<format::LogRecord> newest = log.Newest(/*damage_ok=*/true);
  if (!newest.ok() && !absl::IsDataLoss(newest.status())) return newest.status();
  if (!newest.ok()) verifier.Report(std::string(format::kLogPrefix), newest.status());
  if (!steps.has_value()) verifier.CheckLogRecords(store.ok() ? &*store : nullptr);
  if (!store.ok() || !newest.ok()) return verifier.Take();
  std::vector<format::StepEntry> entries;
  if (steps.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(entries, EntriesOf(*newest, *steps));
  } else {
    std::copy_if(newest->steps.begin(), newest->steps.end(), std::back_inserter(entries),
                 [](const auto& entry) { return entry.state != format::StepState::kDropped; });
  }
  for (const format::StepEntry& entry : entries) verifier.CheckStep(*store, entry);
  return verifier.Take();
}

}  // namespace lamina::engine
