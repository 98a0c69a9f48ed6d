#include "format/pack.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/frame.h"
#include "format/version.h"

namespace lamina::format {
namespace {

struct HeaderPayload {
  Digest store_id;
  int64_t step = 0;
  uint64_t incarnation = 0;
  uint32_t attempt = 0;
  uint32_t writer = 0;
  Digest nonce;
};
static_assert(sizeof(HeaderPayload) == 56);

struct FooterPayload {
  Digest nonce;
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;
  Digest index_digest;
  uint64_t pack_bytes = 0;
  uint64_t reserved = 0;
};
static_assert(sizeof(FooterPayload) + kFrameBytes == kPackFooterBytes);

template <typename Payload>
std::string FramedStruct(const FrameKind& kind, const Payload& payload, size_t payload_bytes) {
  std::string bytes(base::AsText(std::as_bytes(std::span(&payload, 1))));
  bytes.resize(payload_bytes);
  return Framed(kind, bytes);
}

// The payload's front as a struct; its length is given by the kind.
template <typename Payload>
absl::StatusOr<Payload> UnframedStruct(const FrameKind& kind, std::span<const std::byte> bytes, int64_t whole_bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::span<const std::byte> found, UnframedWhole(kind, bytes));
  const std::optional<Payload> payload = base::ReadAt<Payload>(found, 0);
  if (!payload || bytes.size() != static_cast<size_t>(whole_bytes)) {
    return Damaged(kind, "length", absl::StrCat(bytes.size()), absl::StrCat(whole_bytes));
  }
  return *payload;
}

// All in terms of what is left, so that no sum can overflow.
bool FillsFile(const FooterPayload& footer, uint64_t file_bytes) {
  const uint64_t fixed = kPackHeaderBytes + kPackFooterBytes;
  if (footer.pack_bytes != file_bytes || file_bytes < fixed) return false;
  if (footer.index_offset < kPackHeaderBytes || footer.index_offset > file_bytes - kPackFooterBytes) return false;
  return footer.index_bytes == file_bytes - kPackFooterBytes - footer.index_offset;
}

}  // namespace

std::string EncodePackHeader(const PackHeader& header) {
  const HeaderPayload payload{.store_id = header.store_id,
                              .step = header.attempt.step,
                              .incarnation = header.attempt.incarnation,
                              .attempt = header.attempt.attempt,
                              .writer = header.writer,
                              .nonce = header.nonce};
  return FramedStruct(kPackHeaderFrame, payload, kPackHeaderBytes - kFrameBytes);
}

absl::StatusOr<PackHeader> DecodePackHeader(std::span<const std::byte> bytes) {
  LAMINA_ASSIGN_OR_RETURN(const HeaderPayload found, UnframedStruct<HeaderPayload>(kPackHeaderFrame, bytes, kPackHeaderBytes));
  if (found.step < 0) return Damaged(kPackHeaderFrame, "step", absl::StrCat(found.step), "0 or more");
  if (found.incarnation == 0) return Damaged(kPackHeaderFrame, "incarnation", "0", "1 or more");
  return PackHeader{.store_id = found.store_id,
                    .attempt = {.step = found.step, .incarnation = found.incarnation, .attempt = found.attempt},
                    .writer = found.writer,
                    .nonce = found.nonce};
}

std::string EncodePackFooter(const PackFooter& footer) {
  const FooterPayload payload{.nonce = footer.nonce,
                              .index_offset = footer.index_offset,
                              .index_bytes = footer.index_bytes,
                              .index_digest = footer.index_digest,
                              .pack_bytes = footer.pack_bytes};
  return FramedStruct(kPackFooterFrame, payload, sizeof(payload));
}

absl::StatusOr<PackFooter> DecodePackFooter(std::span<const std::byte> bytes, int64_t file_bytes) {
  LAMINA_ASSIGN_OR_RETURN(const FooterPayload found, UnframedStruct<FooterPayload>(kPackFooterFrame, bytes, kPackFooterBytes));
  if (file_bytes < 0 || !FillsFile(found, static_cast<uint64_t>(file_bytes))) {
    return Damaged(kPackFooterFrame, "place of the index",
                   absl::StrCat(found.index_offset, " + ", found.index_bytes, " of ", found.pack_bytes),
                   absl::StrCat("one that ends where the footer of a file of ", file_bytes, " bytes begins"));
  }
  if (found.index_bytes > static_cast<uint64_t>(kMetadataBytesMax)) {
    return Damaged(kPackFooterFrame, "length of the index", absl::StrCat(found.index_bytes), "at most 1 GiB");
  }
  return PackFooter{.nonce = found.nonce,
                    .index_offset = found.index_offset,
                    .index_bytes = found.index_bytes,
                    .index_digest = found.index_digest,
                    .pack_bytes = found.pack_bytes};
}

}  // namespace lamina::format
