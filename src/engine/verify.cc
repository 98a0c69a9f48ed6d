#include "engine/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/step_reader.h"
#include "engine/store.h"
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

// What is known of a writer's own pack while its step is checked.
struct PackUse {
  bool opens = false;     // header, footer and index are sound
  bool all_known = true;  // every table could be read, so that `regions` is all that the pack is used for
  std::vector<Region> regions;
};

class Verifier {
 public:
  Verifier(env::Env& env, tier::Tier& tier, bool full) : env_(env), tier_(tier), full_(full) {}

  // `store`: null when its own file is bad.
  void CheckLogRecords(const format::StoreHeader* store) {
    const absl::StatusOr<std::vector<std::string>> names = tier_.ListNames(format::kLogPrefix);
    if (!names.ok()) return Report(std::string(format::kLogPrefix), names.status());
    for (const std::string& name : *names) {
      const std::optional<uint64_t> number = format::ParseLogName(name);
      if (number.has_value()) CheckLogRecord(*number, store);
    }
  }

  void CheckStep(const format::StoreHeader& store, const format::StepEntry& entry) {
    ++result_.steps;
    absl::StatusOr<std::unique_ptr<StepReader>> opened = StepReader::Open(env_, tier_, store, entry, /*retry_s=*/0);
    if (!opened.ok()) return Report(format::CatalogPath(entry.attempt), opened.status());
    StepReader& reader = **opened;
    CheckPacks(reader);
    Claims claims(reader);
    used_.assign(reader.catalog().writers.size(), {});
    for (uint32_t writer = 0; writer < used_.size(); ++writer) {
      const absl::Status status = reader.IndexOf(writer).status();
      if (!status.ok()) Report(reader.PackName(writer, 0), status);
      used_[writer].opens = status.ok();
    }
    for (const format::CatalogTensor& tensor : reader.catalog().tensors) {
      const int64_t element_bytes = DTypeBytes(tensor.dtype);
      for (const format::StoredBox& box : tensor.boxes) {
        CheckTable(reader, box.writer, box.table, tensor.name, shard::ElementCount(box.box.extent) * element_bytes, element_bytes, claims);
      }
    }
    for (const format::CatalogBlob& blob : reader.catalog().blobs) {
      const std::string name = absl::StrCat("values '", blob.name, "' of rank ", blob.rank);
      CheckTable(reader, blob.writer, blob.table, name, static_cast<int64_t>(blob.bytes), 1, claims);
    }
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
  // Each of the two copies alone, so that damage in one shows although readers can do without it; and the zeros behind them, which readers
  // pass over.
  void CheckLogRecord(uint64_t number, const format::StoreHeader* store) {
    const std::string name = format::LogPath(number);
    const absl::StatusOr<std::string> bytes = tier::ReadWhole(tier_, name, format::kMetadataBytesMax);
    if (!bytes.ok()) return Report(name, bytes.status());
    const size_t half = bytes->size() / 2;
    bool sound = true;
    for (const bool first : {true, false}) {
      const std::string copy = bytes->substr(first ? 0 : half, half);
      const absl::StatusOr<format::LogRecord> record = format::DecodeLogRecordCopy(base::AsBytes(copy), number);
      absl::Status status = record.status();
      if (status.ok() && store != nullptr && record->store_id != store->store_id) status = absl::DataLossError("it is of another store");
      if (!status.ok()) Report(name, base::Annotate(status, absl::StrCat("'", name, "', ", first ? "first" : "second", " copy")));
      sound = sound && status.ok();
    }
    const auto differs =
        std::mismatch(bytes->begin(), bytes->begin() + static_cast<ptrdiff_t>(half), bytes->begin() + static_cast<ptrdiff_t>(half));
    if (!sound || differs.second == bytes->end()) return;
    Report(name, absl::DataLossError(absl::StrCat("'", name, "': its two copies differ at byte ", differs.first - bytes->begin())));
  }

  void CheckPacks(StepReader& reader) {
    const std::string name = format::PacksPath(reader.entry().attempt);
    const absl::StatusOr<format::Packs> packs = reader.ReadPacks();
    if (!packs.ok()) return Report(name, packs.status());
    if (packs->store_id != reader.catalog().store_id || packs->attempt != reader.entry().attempt) {
      return Report(name, absl::DataLossError("it belongs to another store or attempt"));
    }
    for (const format::CatalogWriter& writer : reader.catalog().writers) {
      const bool listed = std::any_of(packs->packs.begin(), packs->packs.end(), [&](const format::ReachedPack& pack) {
        return pack.attempt == writer.attempt && pack.writer == writer.writer && pack.nonce == writer.nonce;
      });
      if (!listed)
        Report(name,
               absl::DataLossError(absl::StrCat("'", name, "' does not list '", format::PackPath(writer.attempt, writer.writer), "'")));
    }
  }

  void CheckTable(StepReader& reader, uint32_t writer, uint32_t table, const std::string& entry, int64_t box_bytes, int64_t element_bytes,
                  Claims& claims) {
    PackUse& use = used_[writer];
    if (!use.opens) return;  // said once, of the pack
    const absl::StatusOr<std::vector<format::ChunkRecord>> chunks = reader.Table(writer, table, box_bytes, element_bytes);
    if (!chunks.ok()) {
      use.all_known = false;
      return Report(reader.PackName(writer, 0), base::Annotate(chunks.status(), absl::StrCat("'", entry, "'")), entry);
    }
    if (const absl::Status claimed = claims.Add(writer, *chunks); !claimed.ok()) {
      use.all_known = false;
      return Report(reader.PackName(writer, 0), base::Annotate(claimed, absl::StrCat("'", entry, "'")), entry);
    }
    const absl::StatusOr<const format::Index*> index = reader.IndexOf(writer);
    if (index.ok()) {
      const format::TableReference& reference = (*index)->tables[table];
      const uint64_t table_end = reference.offset + reference.chunk_count * sizeof(format::ChunkRecord);
      if (reference.pack == 0) use.regions.push_back({reference.offset, table_end});
    }
    for (size_t ordinal = 0; ordinal < chunks->size(); ++ordinal) {
      const format::ChunkRecord& chunk = (*chunks)[ordinal];
      if (chunk.pack == 0) use.regions.push_back({chunk.offset, chunk.offset + chunk.stored_bytes});
      if (!full_) continue;
      scratch_.resize(chunk.raw_bytes);
      ++result_.chunks;
      result_.bytes += chunk.raw_bytes;
      const absl::Status status = reader.ReadChunk(writer, chunk, entry, ordinal, scratch_);
      if (!status.ok()) Report(reader.PackName(writer, chunk.pack), status, entry, static_cast<int64_t>(ordinal));
    }
  }

  // What no header, chunk, table, index or footer covers is zero.
  void CheckGaps(StepReader& reader, uint32_t writer) {
    if (!full_ || !used_[writer].opens || !used_[writer].all_known) return;
    const std::string name = reader.PackName(writer, 0);
    std::vector<Region>& used = used_[writer].regions;
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
  std::vector<PackUse> used_;  // of each writer of the step
  Verification result_;
  std::set<std::string> seen_;
  std::vector<std::byte> scratch_;
};

}  // namespace

absl::StatusOr<Verification> Verify(env::Env& env, tier::Tier& tier, std::optional<int64_t> step, bool full) {
  const tier::ReaderLease lease(env, tier);
  tier::Log log(env, tier);
  Verifier verifier(env, tier, full);
  const absl::StatusOr<format::StoreHeader> store = log.ReadStore();
  if (!store.ok() && !absl::IsDataLoss(store.status())) return store.status();
  if (!store.ok()) verifier.Report(std::string(format::kStorePath), store.status());
  const absl::StatusOr<format::LogRecord> newest = log.Newest(/*damage_ok=*/true);
  if (!newest.ok() && !absl::IsDataLoss(newest.status())) return newest.status();
  if (!newest.ok()) verifier.Report(std::string(format::kLogPrefix), newest.status());
  if (!step.has_value()) verifier.CheckLogRecords(store.ok() ? &*store : nullptr);
  if (store.ok() && newest.ok()) {
    if (step.has_value()) {
      LAMINA_ASSIGN_OR_RETURN(const format::StepEntry entry, FindStep(*newest, *step));
      verifier.CheckStep(*store, entry);
    } else {
      for (const format::StepEntry& entry : newest->steps) {
        if (entry.state != format::StepState::kDropped) verifier.CheckStep(*store, entry);
      }
    }
  }
  return verifier.Take();
}

}  // namespace lamina::engine
