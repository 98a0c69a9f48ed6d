// Reads one committed step: catalog, indexes, chunk tables, chunks. Every byte is checked before it is used; nothing is written.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/drop_watch.h"
#include "env/env.h"
#include "env/sync.h"
#include "format/catalog.h"
#include "format/index.h"
#include "format/log_record.h"
#include "format/store_header.h"
#include "tier/patient_tier.h"
#include "tier/reader_lease.h"
#include "tier/tier.h"

namespace lamina::engine {

// Damage: what makes a restore pass over a step, as against trouble that may go away.
bool IsDamage(const absl::Status& status);

class StepReader {
 public:
  // Reads the catalog and compares its digest with the log's. Files that are missing or stale are asked for again for `retry_s`, also once
  // they are open; what is still missing then is DataLoss, naming the file; or NotFound at once when the log says that the step was dropped
  // meanwhile, for this and for all reads below. `waiting` gets one line for each file that is waited for. `drops`: shared by whoever reads
  // many steps of one log; null: this reader's own.
  static absl::StatusOr<std::unique_ptr<StepReader>> Open(env::Env& env, tier::Tier& tier, const format::StoreHeader& store,
                                                          const format::StepEntry& entry, double retry_s,
                                                          std::function<void(std::string)> waiting = {},
                                                          std::shared_ptr<DropWatch> drops = nullptr);

  // Holds a lease for as long as the step is open.
  void Hold(std::unique_ptr<tier::ReaderLease> lease) { lease_ = std::move(lease); }
  absl::Status registration() const { return lease_ == nullptr ? absl::OkStatus() : lease_->status(); }  // as ReaderLease::status
  const format::Catalog& catalog() const { return catalog_; }
  const format::StepEntry& entry() const { return entry_; }

  // The packs that the step's own list names, its digest compared with the log's.
  absl::StatusOr<format::Packs> ReadPacks();

  // One writer's index; header, footer and index are read and checked once. Thread-safe, like all below.
  absl::StatusOr<const format::Index*> IndexOf(uint32_t writer);
  // The chunks of a table, checked to add up to `box_bytes` and to lie in their packs. In this version every byte is stored once: so what
  // the tables of this step name in a pack, they themselves and their chunks, each table once however often it is asked for, is together no
  // longer than that pack. A table that goes beyond that is DataLoss, and not read if it does so itself: a few records that name the same
  // bytes over and over cannot ask for endless work or memory.
  absl::StatusOr<std::vector<format::ChunkRecord>> Table(uint32_t writer, uint32_t table, int64_t box_bytes, int64_t element_bytes);
  // Null when there is none.
  const format::CatalogTensor* FindTensor(std::string_view name) const;
  // Before memory is taken for what a tensor's shape claims: its tables name as many bytes, and no more than the packs hold.
  absl::Status CheckTables(const format::CatalogTensor& tensor);
  // Reads and checks one chunk into `raw` (chunk.raw_bytes long). `entry_name` and `ordinal` are for the message.
  absl::Status ReadChunk(uint32_t writer, const format::ChunkRecord& chunk, std::string_view entry_name, size_t ordinal,
                         std::span<std::byte> raw);
  absl::StatusOr<std::string> ReadBlob(const format::CatalogBlob& blob);

  // Where a writer's index begins: it and the footer fill the pack's rest.
  absl::StatusOr<int64_t> IndexOffset(uint32_t writer);
  std::string PackName(uint32_t writer, uint32_t pack_ordinal);  // for messages: the path of a pack that a writer's index names
  absl::StatusOr<tier::ObjectReader*> PackOf(uint32_t writer, uint32_t pack_ordinal);
  // The true length of a pack, its header checked.
  absl::StatusOr<int64_t> PackBytes(const format::AttemptId& attempt, uint32_t writer, const format::Digest& nonce);

 private:
  struct Pack {
    std::unique_ptr<tier::ObjectReader> object;
    format::PackHeader header;
    uint64_t left_bytes = 0;  // that tables may still name
  };
  struct WriterState {
    bool loaded = false;
    format::Index index;
    int64_t index_offset = 0;
    std::vector<bool> table_charged;   // by table: its bytes have been taken from what its pack has left
    std::vector<bool> chunks_charged;  // and those of its chunks from what theirs have
  };

  StepReader(env::Env& env, tier::Tier& tier, const format::StoreHeader& store, const format::StepEntry& entry, double retry_s,
             std::function<void(std::string)> waiting, std::shared_ptr<DropWatch> drops);
  absl::Status Judge(const std::string& name, const absl::Status& failure, bool last);
  absl::Status UnlessDropped(const std::string& name, const absl::Status& status);
  absl::StatusOr<std::string> ReadMetadata(const std::string& name, const format::Digest& digest);
  absl::StatusOr<Pack*> OpenPack(const format::AttemptId& attempt, uint32_t writer, const format::Digest& nonce)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LoadIndex(uint32_t writer, WriterState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Pack> OpenAnew(const format::AttemptId& attempt, uint32_t writer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Pack*> OpenReferenced(const format::PackReference& reference) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<tier::ObjectReader*> ChargeTable(uint32_t writer, uint32_t table);
  absl::Status ChargeChunks(uint32_t writer, uint32_t table, std::span<const format::ChunkRecord> chunks);

  const format::StoreHeader store_;
  const format::StepEntry entry_;
  const double retry_s_;
  tier::PatientTier files_;  // all but the log is read through it
  const std::shared_ptr<DropWatch> drops_;
  std::unique_ptr<tier::ReaderLease> lease_;
  format::Catalog catalog_;
  env::Mutex mutex_;
  std::map<std::pair<format::AttemptId, uint32_t>, Pack> packs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<format::AttemptId, uint32_t>, absl::Status> bad_packs_
      ABSL_GUARDED_BY(mutex_);  // opened in vain, not to be tried again
  std::vector<WriterState> writers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lamina::engine
