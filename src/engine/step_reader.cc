#include "engine/step_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "engine/agreement.h"
#include "format/version.h"
#include "shard/box.h"

namespace lamina::engine {
namespace {

absl::Status WrongDigest(const std::string& name, const format::Digest& found, const format::Digest& expected) {
  return absl::DataLossError(absl::StrCat("'", name, "': checksum ", format::ToString(found), ", expected ", format::ToString(expected)));
}

// Takes `bytes` of what is left, or all of it where that is less: from then on nothing fits.
bool Take(uint64_t& left, uint64_t bytes) {
  const bool fits = bytes <= left;
  left = fits ? left - bytes : 0;
  return fits;
}

absl::Status SaysTooMuch(std::string_view where, const std::string& pack) {
  return absl::DataLossError(absl::StrCat(std::string(where), ": the tables of this step name more than '", pack, "' holds"));
}

}  // namespace

bool IsDamage(const absl::Status& status) { return absl::IsDataLoss(status); }

StepReader::StepReader(env::Env& env, tier::Tier& tier, const format::StoreHeader& store, const format::StepEntry& entry, double retry_s,
                       std::function<void(std::string)> waiting, std::shared_ptr<DropWatch> drops)
    : store_(store),
      entry_(entry),
      retry_s_(retry_s),
      files_(env, tier,
             {SecondsToNs(retry_s), [](std::string_view) { return true; },
              [this](const std::string& name, const absl::Status& failure, bool last) { return Judge(name, failure, last); },
              std::move(waiting)}),
      drops_(drops != nullptr ? std::move(drops) : std::make_shared<DropWatch>(env, tier)),
      mutex_(env) {}

absl::StatusOr<std::unique_ptr<StepReader>> StepReader::Open(env::Env& env, tier::Tier& tier, const format::StoreHeader& store,
                                                             const format::StepEntry& entry, double retry_s,
                                                             std::function<void(std::string)> waiting, std::shared_ptr<DropWatch> drops) {
  std::unique_ptr<StepReader> reader(new StepReader(env, tier, store, entry, retry_s, std::move(waiting), std::move(drops)));
  const std::string name = format::CatalogPath(entry.attempt);
  LAMINA_ASSIGN_OR_RETURN(const std::string bytes, reader->ReadMetadata(name, entry.catalog_digest));
  absl::StatusOr<format::Catalog> catalog = format::DecodeCatalog(base::AsBytes(bytes));
  if (!catalog.ok()) return base::Annotate(catalog.status(), absl::StrCat("'", name, "'"));
  if (catalog->store_id != store.store_id || catalog->attempt != entry.attempt) {
    return absl::DataLossError(absl::StrCat("'", name, "' belongs to another store or attempt"));
  }
  reader->catalog_ = *std::move(catalog);
  env::MutexLock lock(reader->mutex_);
  reader->writers_.resize(reader->catalog_.writers.size());
  return reader;
}

absl::Status StepReader::Judge(const std::string& name, const absl::Status& failure, bool last) {
  absl::Status status = UnlessDropped(name, failure);
  if (!last || status != failure || !absl::IsNotFound(failure)) return status;
  return absl::DataLossError(absl::StrCat("'", name, "' is missing, and was so for ", retry_s_, " s of asking again"));
}

// A file that is not there because its step was dropped is no damage, and no older step is to be taken for it.
absl::Status StepReader::UnlessDropped(const std::string& name, const absl::Status& status) {
  if (!drops_->IsDropped(entry_)) return status;
  return absl::NotFoundError(absl::StrCat("step ", entry_.attempt.step, " was dropped while reading: '", name, "' is gone"));
}

absl::StatusOr<std::string> StepReader::ReadMetadata(const std::string& name, const format::Digest& digest) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<tier::ObjectReader> object, files_.OpenObject(name));
  if (object->bytes() > format::kMetadataBytesMax) {
    return absl::DataLossError(absl::StrCat("'", name, "' has ", object->bytes(), " bytes, more than metadata may have"));
  }
  std::string bytes(static_cast<size_t>(object->bytes()), '\0');
  LAMINA_RETURN_IF_ERROR(object->ReadRange(0, std::as_writable_bytes(std::span<char>(bytes))));
  const format::Digest found = format::Checksum128(base::AsBytes(bytes));
  if (found != digest) return WrongDigest(name, found, digest);
  return bytes;
}

absl::StatusOr<format::Packs> StepReader::ReadPacks() {
  const std::string name = format::PacksPath(entry_.attempt);
  LAMINA_ASSIGN_OR_RETURN(const std::string bytes, ReadMetadata(name, entry_.packs_digest));
  absl::StatusOr<format::Packs> packs = format::DecodePacks(base::AsBytes(bytes));
  return packs.ok() ? packs : base::Annotate(packs.status(), absl::StrCat("'", name, "'"));
}

absl::StatusOr<StepReader::Pack> StepReader::OpenAnew(const format::AttemptId& attempt, uint32_t writer) {
  const std::string name = format::PackPath(attempt, writer);
  Pack pack;
  LAMINA_ASSIGN_OR_RETURN(pack.object, files_.OpenObject(name));
  std::string bytes(static_cast<size_t>(format::kPackHeaderBytes), '\0');
  LAMINA_RETURN_IF_ERROR(pack.object->ReadRange(0, std::as_writable_bytes(std::span<char>(bytes))));
  absl::StatusOr<format::PackHeader> header = format::DecodePackHeader(base::AsBytes(bytes));
  if (!header.ok()) return base::Annotate(header.status(), absl::StrCat("header of '", name, "'"));
  pack.header = *header;
  pack.left_bytes = static_cast<uint64_t>(pack.object->bytes());
  if (header->store_id != store_.store_id || header->attempt != attempt || header->writer != writer) {
    return absl::DataLossError(absl::StrCat("'", name, "' is the pack of another store, attempt or writer"));
  }
  return pack;
}

absl::StatusOr<StepReader::Pack*> StepReader::OpenPack(const format::AttemptId& attempt, uint32_t writer, const format::Digest& nonce) {
  const auto key = std::make_pair(attempt, writer);
  auto found = packs_.find(key);
  if (found == packs_.end()) {
    if (const auto bad = bad_packs_.find(key); bad != bad_packs_.end()) return bad->second;
    absl::StatusOr<Pack> pack = OpenAnew(attempt, writer);
    if (IsDamage(pack.status())) bad_packs_.emplace(key, pack.status());
    LAMINA_RETURN_IF_ERROR(pack.status());
    found = packs_.emplace(key, *std::move(pack)).first;
  }
  if (found->second.header.nonce != nonce) {
    return absl::DataLossError(absl::StrCat("'", format::PackPath(attempt, writer), "' has nonce ",
                                            format::ToString(found->second.header.nonce), ", expected ", format::ToString(nonce),
                                            ": an older or exchanged file"));
  }
  return &found->second;
}

absl::Status StepReader::LoadIndex(uint32_t writer, WriterState& state) {
  const format::CatalogWriter& known = catalog_.writers[writer];
  const std::string name = format::PackPath(known.attempt, known.writer);
  LAMINA_ASSIGN_OR_RETURN(Pack * pack, OpenPack(known.attempt, known.writer, known.nonce));
  const int64_t file_bytes = pack->object->bytes();
  if (static_cast<uint64_t>(file_bytes) != known.pack_bytes || file_bytes < format::kPackHeaderBytes + format::kPackFooterBytes) {
    return absl::DataLossError(absl::StrCat("'", name, "' has ", file_bytes, " bytes, expected ", known.pack_bytes));
  }
  std::string footer_bytes(static_cast<size_t>(format::kPackFooterBytes), '\0');
  LAMINA_RETURN_IF_ERROR(
      pack->object->ReadRange(file_bytes - format::kPackFooterBytes, std::as_writable_bytes(std::span<char>(footer_bytes))));
  absl::StatusOr<format::PackFooter> footer = format::DecodePackFooter(base::AsBytes(footer_bytes), file_bytes);
  if (!footer.ok()) return base::Annotate(footer.status(), absl::StrCat("footer of '", name, "'"));
  if (footer->nonce != known.nonce) return absl::DataLossError(absl::StrCat("footer of '", name, "' is that of another pack"));
  if (footer->index_bytes > static_cast<uint64_t>(format::kMetadataBytesMax)) {
    return absl::DataLossError(absl::StrCat("index of '", name, "' has ", footer->index_bytes, " bytes, more than an index may have"));
  }
  std::string bytes(footer->index_bytes, '\0');
  LAMINA_RETURN_IF_ERROR(
      pack->object->ReadRange(static_cast<int64_t>(footer->index_offset), std::as_writable_bytes(std::span<char>(bytes))));
  const format::Digest found = format::Checksum128(base::AsBytes(bytes));
  if (found != footer->index_digest || found != known.index_digest) return WrongDigest("index of " + name, found, known.index_digest);
  absl::StatusOr<format::Index> index = format::DecodeIndex(base::AsBytes(bytes));
  if (!index.ok()) return base::Annotate(index.status(), absl::StrCat("index of '", name, "'"));
  if (index->store_id != store_.store_id || index->attempt != known.attempt || index->writer != known.writer ||
      index->nonce != known.nonce) {
    return absl::DataLossError(absl::StrCat("index of '", name, "' is that of another pack"));
  }
  for (const format::TableReference& table : index->tables) {
    if (table.pack == 0 && table.chunk_count * sizeof(format::ChunkRecord) + table.offset > known.pack_bytes) {
      return absl::DataLossError(absl::StrCat("index of '", name, "': the chunk table at ", table.offset, " ends beyond the pack"));
    }
  }
  state.index = *std::move(index);
  state.table_charged.assign(state.index.tables.size(), false);
  state.chunks_charged = state.table_charged;
  state.index_offset = static_cast<int64_t>(footer->index_offset);
  state.loaded = true;
  return absl::OkStatus();
}

absl::StatusOr<const format::Index*> StepReader::IndexOf(uint32_t writer) {
  env::MutexLock lock(mutex_);
  if (writer >= writers_.size()) return absl::DataLossError(absl::StrCat("the catalog names writer ", writer, " of ", writers_.size()));
  WriterState& state = writers_[writer];
  if (!state.loaded) LAMINA_RETURN_IF_ERROR(LoadIndex(writer, state));
  return &state.index;
}

const format::CatalogTensor* StepReader::FindTensor(std::string_view name) const {
  const auto found = std::lower_bound(catalog_.tensors.begin(), catalog_.tensors.end(), name,
                                      [](const format::CatalogTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != catalog_.tensors.end() && found->name == name ? &*found : nullptr;
}

absl::Status StepReader::CheckTables(const format::CatalogTensor& tensor) {
  const format::CatalogTensor& stored = tensor.alias_of.empty() ? tensor : *FindTensor(tensor.alias_of);
  const int64_t element_bytes = DTypeBytes(stored.dtype);
  for (const format::StoredBox& box : stored.boxes) {
    const int64_t box_bytes = shard::ElementCount(box.box.extent) * element_bytes;
    const absl::Status known = Table(box.writer, box.table, box_bytes, element_bytes).status();
    if (!known.ok()) return base::Annotate(known, format::ShownName(stored.name));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StepReader::IndexOffset(uint32_t writer) {
  LAMINA_RETURN_IF_ERROR(IndexOf(writer).status());
  env::MutexLock lock(mutex_);
  return writers_[writer].index_offset;
}

std::string StepReader::PackName(uint32_t writer, uint32_t pack_ordinal) {
  absl::StatusOr<const format::Index*> index = IndexOf(writer);
  if (index.ok() && pack_ordinal < (*index)->packs.size()) {
    const format::PackReference& pack = (*index)->packs[pack_ordinal];
    return format::PackPath(pack.attempt, pack.writer);
  }
  if (writer >= catalog_.writers.size()) return format::CatalogPath(entry_.attempt);
  return format::PackPath(catalog_.writers[writer].attempt, catalog_.writers[writer].writer);
}

absl::StatusOr<StepReader::Pack*> StepReader::OpenReferenced(const format::PackReference& reference) {
  return OpenPack(reference.attempt, reference.writer, reference.nonce);
}

absl::StatusOr<tier::ObjectReader*> StepReader::PackOf(uint32_t writer, uint32_t pack_ordinal) {
  LAMINA_ASSIGN_OR_RETURN(const format::Index* index, IndexOf(writer));
  if (pack_ordinal >= index->packs.size()) {
    return absl::DataLossError(absl::StrCat("the index of writer ", writer, " has no pack ", pack_ordinal));
  }
  env::MutexLock lock(mutex_);
  LAMINA_ASSIGN_OR_RETURN(Pack * pack, OpenReferenced(index->packs[pack_ordinal]));
  return pack->object.get();
}

absl::StatusOr<int64_t> StepReader::PackBytes(const format::AttemptId& attempt, uint32_t writer, const format::Digest& nonce) {
  env::MutexLock lock(mutex_);
  LAMINA_ASSIGN_OR_RETURN(const Pack* pack, OpenPack(attempt, writer, nonce));
  return pack->object->bytes();
}

// The pack that a table lies in, once the table's own bytes have been taken from what the pack has left.
absl::StatusOr<tier::ObjectReader*> StepReader::ChargeTable(uint32_t writer, uint32_t table) {
  LAMINA_ASSIGN_OR_RETURN(const format::Index* index, IndexOf(writer));
  const auto where = [&] { return absl::StrCat("chunk table ", table, " of '", PackName(writer, 0), "'"); };
  if (table >= index->tables.size()) {
    return absl::DataLossError(absl::StrCat("the index of '", PackName(writer, 0), "' has no chunk table ", table));
  }
  const format::TableReference& reference = index->tables[table];
  const uint64_t table_bytes = reference.chunk_count * sizeof(format::ChunkRecord);
  tier::ObjectReader* object = nullptr;
  bool fits = true;
  {
    env::MutexLock lock(mutex_);
    LAMINA_ASSIGN_OR_RETURN(Pack * pack, OpenReferenced(index->packs[reference.pack]));
    object = pack->object.get();
    std::vector<bool>::reference charged = writers_[writer].table_charged[table];
    if (!charged) charged = fits = Take(pack->left_bytes, table_bytes);
  }
  if (!fits) return SaysTooMuch(where(), PackName(writer, reference.pack));
  const uint64_t pack_bytes = static_cast<uint64_t>(object->bytes());
  if (reference.offset > pack_bytes || table_bytes > pack_bytes - reference.offset) {
    return absl::DataLossError(absl::StrCat(where(), ": its ", table_bytes, " bytes at ", reference.offset, " are beyond '",
                                            PackName(writer, reference.pack), "' of ", pack_bytes, " bytes"));
  }
  return object;
}

// Checks that the chunks lie in their packs, and takes them from what those have left.
absl::Status StepReader::ChargeChunks(uint32_t writer, uint32_t table, std::span<const format::ChunkRecord> chunks) {
  LAMINA_ASSIGN_OR_RETURN(const format::Index* index, IndexOf(writer));
  const auto name_of = [&](const format::ChunkRecord& chunk) {
    return format::PackPath(index->packs[chunk.pack].attempt, index->packs[chunk.pack].writer);
  };
  env::MutexLock lock(mutex_);
  std::map<uint32_t, Pack*> packs;  // by ordinal in the index
  for (size_t ordinal = 0; ordinal < chunks.size(); ++ordinal) {
    const format::ChunkRecord& chunk = chunks[ordinal];
    Pack*& pack = packs[chunk.pack];
    if (pack == nullptr) {
      LAMINA_ASSIGN_OR_RETURN(pack, OpenReferenced(index->packs[chunk.pack]));
    }
    const uint64_t pack_bytes = static_cast<uint64_t>(pack->object->bytes());
    if (chunk.offset > pack_bytes || chunk.stored_bytes > pack_bytes - chunk.offset) {
      return absl::DataLossError(absl::StrCat("chunk ", ordinal, ": its ", chunk.stored_bytes, " bytes at ", chunk.offset, " are beyond '",
                                              name_of(chunk), "' of ", pack_bytes, " bytes"));
    }
  }
  std::vector<bool>::reference charged = writers_[writer].chunks_charged[table];
  if (charged) return absl::OkStatus();
  for (size_t ordinal = 0; ordinal < chunks.size(); ++ordinal) {
    const format::ChunkRecord& chunk = chunks[ordinal];
    if (!Take(packs[chunk.pack]->left_bytes, chunk.stored_bytes)) return SaysTooMuch(absl::StrCat("chunk ", ordinal), name_of(chunk));
  }
  charged = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<format::ChunkRecord>> StepReader::Table(uint32_t writer, uint32_t table, int64_t box_bytes,
                                                                   int64_t element_bytes) {
  LAMINA_ASSIGN_OR_RETURN(tier::ObjectReader * object, ChargeTable(writer, table));
  LAMINA_ASSIGN_OR_RETURN(const format::Index* index, IndexOf(writer));
  const format::TableReference& reference = index->tables[table];
  const auto where = [&] { return absl::StrCat("chunk table ", table, " of '", PackName(writer, 0), "'"); };
  std::string bytes(reference.chunk_count * sizeof(format::ChunkRecord), '\0');
  LAMINA_RETURN_IF_ERROR(object->ReadRange(static_cast<int64_t>(reference.offset), std::as_writable_bytes(std::span<char>(bytes))));
  absl::StatusOr<std::vector<format::ChunkRecord>> chunks =
      format::DecodeChunkTable(base::AsBytes(bytes), reference, index->packs.size(), box_bytes, element_bytes);
  if (!chunks.ok()) return base::Annotate(chunks.status(), where());
  if (const absl::Status charged = ChargeChunks(writer, table, *chunks); !charged.ok()) return base::Annotate(charged, where());
  return chunks;
}

absl::Status StepReader::ReadChunk(uint32_t writer, const format::ChunkRecord& chunk, std::string_view entry_name, size_t ordinal,
                                   std::span<std::byte> raw) {
  const auto where = [&] {
    return absl::StrCat("chunk ", ordinal, " of ", format::ShownName(entry_name), " in '", PackName(writer, chunk.pack), "'");
  };
  LAMINA_ASSIGN_OR_RETURN(tier::ObjectReader * object, PackOf(writer, chunk.pack));
  const absl::Status read = object->ReadRange(static_cast<int64_t>(chunk.offset), raw);
  if (!read.ok()) return base::Annotate(read, where());
  // Raw chunks are stored as they are: the fingerprint, the stronger of the two, vouches for both, and the bytes are hashed once.
  const format::Digest fingerprint = format::Fingerprint(raw, store_.fingerprint_seed);
  if (fingerprint == chunk.fingerprint) return absl::OkStatus();
  const uint64_t checksum = format::Checksum64(raw);
  if (checksum != chunk.stored_checksum) {
    return absl::DataLossError(absl::StrCat(where(), ": checksum ", absl::Hex(checksum, absl::kZeroPad16), ", expected ",
                                            absl::Hex(chunk.stored_checksum, absl::kZeroPad16)));
  }
  return absl::DataLossError(absl::StrCat(where(), ": fingerprint ", format::ToString(fingerprint), ", expected ",
                                          format::ToString(chunk.fingerprint),
                                          " (its checksum is right: it was wrong when it was written)"));
}

absl::StatusOr<std::string> StepReader::ReadBlob(const format::CatalogBlob& blob) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<format::ChunkRecord> chunks,
                          Table(blob.writer, blob.table, static_cast<int64_t>(blob.bytes), /*element_bytes=*/1));
  std::string bytes(blob.bytes, '\0');
  const auto target = std::as_writable_bytes(std::span<char>(bytes));
  for (size_t ordinal = 0; ordinal < chunks.size(); ++ordinal) {
    const format::ChunkRecord& chunk = chunks[ordinal];
    LAMINA_RETURN_IF_ERROR(ReadChunk(blob.writer, chunk, blob.name, ordinal, target.subspan(chunk.element_begin, chunk.raw_bytes)));
  }
  return bytes;
}

}  // namespace lamina::engine
