#include "engine/save_messages.h"

#include "absl/strings/str_cat.h"
#include "base/serial.h"
#include "engine/agreement.h"

namespace lamina::engine {
namespace {

absl::Status Unreadable(const char* what) {
  return absl::InternalError(absl::StrCat("a rank sent a ", what, " that cannot be read: do all ranks run the same release of Lamina?"));
}

void PutAttempt(base::Writer& writer, const format::AttemptId& attempt) {
  writer.Put(attempt.step);
  writer.Put(attempt.incarnation);
  writer.Put(attempt.attempt);
}

format::AttemptId GetAttempt(base::Reader& reader) {
  format::AttemptId attempt;
  attempt.step = reader.Get<int64_t>();
  attempt.incarnation = reader.Get<uint64_t>();
  attempt.attempt = reader.Get<uint32_t>();
  return attempt;
}

}  // namespace

std::string Encode(const Ready& ready) {
  base::Writer writer;
  writer.PutText(EncodeStatus(ready.status));
  writer.Put(ready.plan_digest);
  writer.Put<uint8_t>(ready.description_changed);
  return writer.Take();
}

absl::StatusOr<Ready> DecodeReady(std::string_view text) {
  base::Reader reader(text);
  Ready ready;
  ready.status = DecodeStatus(reader.GetText());
  ready.plan_digest = reader.Get<format::Digest>();
  ready.description_changed = reader.Get<uint8_t>() != 0;
  if (!reader.AtEnd()) return Unreadable("readiness");
  return ready;
}

std::string Encode(const Go& go) {
  base::Writer writer;
  writer.Put<uint8_t>(go.proceed);
  writer.Put<uint8_t>(go.plan_anew);
  PutAttempt(writer, go.attempt);
  return writer.Take();
}

absl::StatusOr<Go> DecodeGo(std::string_view text) {
  base::Reader reader(text);
  Go go;
  go.proceed = reader.Get<uint8_t>() != 0;
  go.plan_anew = reader.Get<uint8_t>() != 0;
  go.attempt = GetAttempt(reader);
  if (!reader.AtEnd()) return Unreadable("go");
  return go;
}

std::string Encode(const Vote& vote) {
  base::Writer writer;
  writer.Put(vote.plan_digest);
  writer.Put(vote.nonce);
  writer.Put(vote.index_digest);
  writer.Put(vote.pack_bytes);
  writer.Put(vote.chunk_bytes);
  writer.Put(vote.tree_digest);
  writer.Put<uint64_t>(vote.replica_digests.size());
  for (const format::Digest& digest : vote.replica_digests) writer.Put(digest);
  writer.Put<uint64_t>(vote.blobs.size());
  for (const VotedBlob& blob : vote.blobs) {
    writer.PutText(blob.name);
    writer.Put(blob.table);
    writer.Put(blob.bytes);
  }
  writer.Put(vote.totals);
  return writer.Take();
}

absl::StatusOr<Vote> DecodeVote(std::string_view text) {
  base::Reader reader(text);
  Vote vote;
  vote.plan_digest = reader.Get<format::Digest>();
  vote.nonce = reader.Get<format::Digest>();
  vote.index_digest = reader.Get<format::Digest>();
  vote.pack_bytes = reader.Get<uint64_t>();
  vote.chunk_bytes = reader.Get<uint64_t>();
  vote.tree_digest = reader.Get<format::Digest>();
  vote.replica_digests.resize(reader.GetCount(sizeof(format::Digest)));
  for (format::Digest& digest : vote.replica_digests) digest = reader.Get<format::Digest>();
  vote.blobs.resize(reader.GetCount(2 * sizeof(uint64_t)));
  for (VotedBlob& blob : vote.blobs) {
    blob.name = reader.GetText();
    blob.table = reader.Get<uint32_t>();
    blob.bytes = reader.Get<uint64_t>();
  }
  vote.totals = reader.Get<SaveTotals>();
  if (!reader.AtEnd()) return Unreadable("vote");
  return vote;
}

std::string Encode(const Ended& ended) {
  base::Writer writer;
  writer.Put(static_cast<uint8_t>(ended.kind));
  writer.PutText(EncodeStatus(ended.cause));
  writer.PutText(ended.reason);
  writer.Put(ended.commit);
  writer.Put(ended.total);
  writer.PutText(EncodeStatus(ended.fence));
  return writer.Take();
}

absl::StatusOr<Ended> DecodeEnded(std::string_view text) {
  base::Reader reader(text);
  Ended ended;
  const uint8_t kind = reader.Get<uint8_t>();
  ended.cause = DecodeStatus(reader.GetText());
  ended.reason = reader.GetText();
  ended.commit = reader.Get<uint64_t>();
  ended.total = reader.Get<SaveTotals>();
  ended.fence = DecodeStatus(reader.GetText());
  if (!reader.AtEnd() || kind > static_cast<uint8_t>(Ended::Kind::kSkipped)) return Unreadable("verdict");
  ended.kind = static_cast<Ended::Kind>(kind);
  return ended;
}

}  // namespace lamina::engine
