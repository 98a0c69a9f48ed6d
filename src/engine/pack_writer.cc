#include "engine/pack_writer.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::engine {
namespace {

constexpr int64_t kUnseenNs = 30 * base::kSecondNs;  // network file systems remember absence for so long
constexpr int64_t kUnseenPauseNs = 200 * base::kMillisecondNs;
constexpr int64_t kStrideBytes = 64 * base::kMiB;  // a look at progress and at the other ranks' failures between parts

// Appends to an object and remembers where the next byte goes. Texts are kept until the object is finished, since Append borrows.
class PackStream {
 public:
  PackStream(tier::ObjectWriter& object, const std::function<absl::Status(int64_t)>& progress) : object_(object), progress_(progress) {}

  int64_t offset() const { return object_.bytes_appended(); }

  absl::Status AppendBorrowed(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min<size_t>(bytes.size(), kStrideBytes));
      LAMINA_RETURN_IF_ERROR(object_.Append(part));
      LAMINA_RETURN_IF_ERROR(progress_(object_.bytes_written()));
      bytes = bytes.subspan(part.size());
    }
    return absl::OkStatus();
  }

  absl::Status AppendText(std::string text) {
    texts_.push_back(std::move(text));
    return AppendBorrowed(base::AsBytes(texts_.back()));
  }

  absl::Status PadTo(int64_t alignment) {
    const int64_t gap = base::AlignUp(offset(), alignment) - offset();
    return gap == 0 ? absl::OkStatus() : AppendText(std::string(static_cast<size_t>(gap), '\0'));
  }

 private:
  tier::ObjectWriter& object_;
  const std::function<absl::Status(int64_t)>& progress_;
  std::deque<std::string> texts_;
};

// Chunks that follow one another alike in the snapshot and in the pack, with nothing but zeros between them, go out as one run.
class RunAppender {
 public:
  RunAppender(PackStream& stream, std::span<const std::byte> snapshot) : stream_(stream), snapshot_(snapshot) {}

  absl::Status Add(int64_t source_offset, int64_t pack_offset, int64_t bytes) {
    const int64_t shift = pack_offset - source_offset;
    if (end_ > begin_ && shift == shift_ && IsGap(source_offset)) {
      end_ = source_offset + bytes;
      return absl::OkStatus();
    }
    LAMINA_RETURN_IF_ERROR(Flush());
    begin_ = source_offset;
    end_ = source_offset + bytes;
    shift_ = shift;
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (end_ == begin_) return absl::OkStatus();
    const int64_t gap = begin_ + shift_ - stream_.offset();
    if (gap > 0) LAMINA_RETURN_IF_ERROR(stream_.AppendText(std::string(static_cast<size_t>(gap), '\0')));
    const auto run = snapshot_.subspan(static_cast<size_t>(begin_), static_cast<size_t>(end_ - begin_));
    begin_ = end_ = 0;
    return stream_.AppendBorrowed(run);
  }

 private:
  bool IsGap(int64_t next) const {
    if (next < end_ || next - end_ >= format::kPackAlignment) return false;
    const auto gap = snapshot_.subspan(static_cast<size_t>(end_), static_cast<size_t>(next - end_));
    return std::all_of(gap.begin(), gap.end(), [](std::byte byte) { return byte == std::byte{0}; });
  }

  PackStream& stream_;
  std::span<const std::byte> snapshot_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t shift_ = 0;
};

struct PackBody {
  std::vector<std::string> tables;  // encoded, one an item
  WrittenPack pack;
};

// Where the next chunk begins in the pack, by the rule that snapshot::PlanLayout follows too.
int64_t ChunkOffset(int64_t offset, int64_t bytes) {
  return base::AlignUp(offset, bytes >= format::kLargeChunkBytes ? format::kPackAlignment : format::kSmallChunkAlignment);
}

absl::StatusOr<PackBody> AppendChunks(PackStream& stream, uint64_t seed, std::span<const std::byte> snapshot,
                                      std::span<const PackItem> items) {
  PackBody body;
  RunAppender runs(stream, snapshot);
  int64_t offset = format::kPackHeaderBytes;
  for (const PackItem& item : items) {
    std::vector<format::ChunkRecord> records;
    std::vector<format::Digest>& fingerprints = body.pack.fingerprints.emplace_back();
    for (const snapshot::ChunkSlot& slot : item.slots) {
      const auto raw = snapshot.subspan(static_cast<size_t>(slot.offset), static_cast<size_t>(slot.bytes));
      format::ChunkRecord& record = records.emplace_back();
      offset = ChunkOffset(offset, slot.bytes);
      record.element_begin = static_cast<uint64_t>(slot.element_begin);
      record.raw_bytes = record.stored_bytes = static_cast<uint32_t>(slot.bytes);
      record.fingerprint = format::Fingerprint(raw, seed);
      record.offset = static_cast<uint64_t>(offset);
      record.stored_checksum = format::Checksum64(raw);
      fingerprints.push_back(record.fingerprint);
      LAMINA_RETURN_IF_ERROR(runs.Add(slot.offset, offset, slot.bytes));
      offset += slot.bytes;
      body.pack.chunk_bytes += static_cast<uint64_t>(slot.bytes);
    }
    body.pack.chunk_count += records.size();
    body.tables.push_back(format::EncodeChunkTable(records));
  }
  LAMINA_RETURN_IF_ERROR(runs.Flush());
  return body;
}

absl::StatusOr<WrittenPack> FillPack(PackStream& stream, const format::StoreHeader& store, const format::PackHeader& header,
                                     std::span<const std::byte> snapshot, std::span<const PackItem> items) {
  LAMINA_RETURN_IF_ERROR(stream.AppendText(format::EncodePackHeader(header)));
  LAMINA_ASSIGN_OR_RETURN(PackBody body, AppendChunks(stream, store.fingerprint_seed, snapshot, items));

  format::Index index{header.store_id, header.attempt, header.writer, header.nonce, {}, {}, {}};
  index.packs.push_back({0, header.attempt, header.writer, header.nonce});
  for (std::string& table : body.tables) {
    LAMINA_RETURN_IF_ERROR(stream.PadTo(format::kSmallChunkAlignment));
    const auto bytes = base::AsBytes(table);
    index.tables.push_back(
        {format::Checksum128(bytes), 0, static_cast<uint64_t>(stream.offset()), table.size() / sizeof(format::ChunkRecord)});
    LAMINA_RETURN_IF_ERROR(stream.AppendText(std::move(table)));
  }
  LAMINA_RETURN_IF_ERROR(stream.PadTo(format::kSmallChunkAlignment));
  std::string index_bytes = format::EncodeIndex(index);
  if (index_bytes.empty()) return absl::ResourceExhaustedError("the index of this rank's pack would be larger than metadata may be");
  format::PackFooter footer;
  footer.nonce = header.nonce;
  footer.index_offset = static_cast<uint64_t>(stream.offset());
  footer.index_bytes = index_bytes.size();
  footer.index_digest = format::Checksum128(base::AsBytes(index_bytes));
  footer.pack_bytes = footer.index_offset + footer.index_bytes + static_cast<uint64_t>(format::kPackFooterBytes);
  LAMINA_RETURN_IF_ERROR(stream.AppendText(std::move(index_bytes)));
  LAMINA_RETURN_IF_ERROR(stream.AppendText(format::EncodePackFooter(footer)));

  body.pack.nonce = header.nonce;
  body.pack.index_digest = footer.index_digest;
  body.pack.pack_bytes = footer.pack_bytes;
  return std::move(body.pack);
}

// The leader has made the directory; a client of a network file system may not see it yet.
absl::StatusOr<std::unique_ptr<tier::ObjectWriter>> CreatePatiently(env::Env& env, tier::Tier& tier, const std::string& path,
                                                                    const std::function<absl::Status(int64_t)>& progress) {
  const int64_t deadline_ns = env.MonotonicNs() + kUnseenNs;
  while (true) {
    absl::StatusOr<std::unique_ptr<tier::ObjectWriter>> object = tier.CreateObject(path);
    if (!absl::IsNotFound(object.status()) || env.MonotonicNs() >= deadline_ns) return object;
    LAMINA_RETURN_IF_ERROR(progress(0));
    env.SleepNs(kUnseenPauseNs);
  }
}

}  // namespace

absl::StatusOr<WrittenPack> WritePack(env::Env& env, tier::Tier& tier, const format::StoreHeader& store, const format::AttemptId& attempt,
                                      uint32_t writer, std::span<const std::byte> snapshot, std::span<const PackItem> items,
                                      const std::function<absl::Status(int64_t)>& progress) {
  const std::string path = format::PackPath(attempt, writer);
  const format::PackHeader header{store.store_id, attempt, writer, {env.RandomU64(), env.RandomU64()}};
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<tier::ObjectWriter> object, CreatePatiently(env, tier, path, progress));
  PackStream stream(*object, progress);  // lives until the object has let go of what it borrows
  // Caught here, so that what the object has borrowed of the stream is given back before that goes.
  absl::StatusOr<WrittenPack> pack = base::WithinMemory([&] { return FillPack(stream, store, header, snapshot, items); });
  if (pack.ok()) {
    const absl::Status finished = base::WithinMemory([&object] { return object->Finish(); });
    if (!finished.ok()) pack = finished;
  }
  if (!pack.ok()) {
    // The room is given back at once: a full disk must take the record that says so.
    const absl::Status abort = object->Abort();
    if (!abort.ok()) return base::Annotate(pack.status(), absl::StrCat("(and what was written stays, ", abort.ToString(), ")"));
  }
  return pack;
}

}  // namespace lamina::engine
