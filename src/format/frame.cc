#include "format/frame.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/chunk.h"
#include "format/version.h"

namespace lamina::format {
namespace {

struct FrameHeader {
  std::array<char, 8> magic{};
  uint32_t version = kVersion;
  uint32_t reserved = 0;
  uint64_t required_features = kRequiredFeatures;
  uint64_t optional_features = 0;
  uint64_t payload_bytes = 0;
  Digest payload_checksum;
  uint64_t header_checksum = 0;
};
static_assert(sizeof(FrameHeader) == kFrameBytes);

uint64_t OwnChecksum(const FrameHeader& header) {
  return Checksum64(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_checksum)));
}

std::string Hex64(uint64_t value) { return absl::StrFormat("%016x", value); }

absl::Status Unsupported(const FrameKind& kind, std::string_view what) {
  return absl::UnimplementedError(absl::StrCat(std::string(kind.name), ": ", std::string(what), "; a newer release of Lamina reads it"));
}

// Order matters: the header's checksum first, so that a flipped bit in the version is damage and not a newer format.
absl::Status CheckHeader(const FrameKind& kind, const FrameHeader& header) {
  if (std::string_view(header.magic.data(), header.magic.size()) != kind.magic) {
    return Damaged(kind, "magic", base::Hex(std::as_bytes(std::span(header.magic))), base::Hex(base::AsBytes(kind.magic)));
  }
  if (const uint64_t found = OwnChecksum(header); found != header.header_checksum) {
    return Damaged(kind, "checksum of the frame", Hex64(found), Hex64(header.header_checksum));
  }
  if (header.version > kVersion) {
    return Unsupported(kind, absl::StrCat("format version ", header.version, ", the newest known version is ", kVersion));
  }
  if (const uint64_t unknown = header.required_features & ~kRequiredFeatures; unknown != 0) {
    return Unsupported(kind, absl::StrCat("required features ", Hex64(unknown), " are unknown, the newest known version is ", kVersion));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Damaged(const FrameKind& kind, std::string_view what, std::string_view found, std::string_view expected) {
  return absl::DataLossError(
      absl::StrCat(std::string(kind.name), ": ", std::string(what), " is ", std::string(found), ", expected ", std::string(expected)));
}

std::string Framed(const FrameKind& kind, std::string_view payload) {
  if (payload.size() > static_cast<uint64_t>(kMetadataBytesMax) - kFrameBytes) return {};
  FrameHeader header{.payload_bytes = payload.size(), .payload_checksum = Checksum128(base::AsBytes(payload))};
  std::memcpy(header.magic.data(), kind.magic.data(), header.magic.size());
  header.header_checksum = OwnChecksum(header);
  std::string bytes(base::AsText(std::as_bytes(std::span(&header, 1))));
  return bytes.append(payload);
}

absl::StatusOr<std::span<const std::byte>> Unframed(const FrameKind& kind, std::span<const std::byte> bytes) {
  const std::optional<FrameHeader> header = base::ReadAt<FrameHeader>(bytes, 0);
  if (!header) return Damaged(kind, "length", absl::StrCat(bytes.size()), absl::StrCat("at least ", kFrameBytes));
  LAMINA_RETURN_IF_ERROR(CheckHeader(kind, *header));
  const std::span<const std::byte> rest = bytes.subspan(kFrameBytes);
  if (header->payload_bytes > rest.size() || header->payload_bytes > static_cast<uint64_t>(kMetadataBytesMax) - kFrameBytes) {
    return Damaged(kind, "length of the payload", absl::StrCat(header->payload_bytes), absl::StrCat("at most ", rest.size(), " and 1 GiB"));
  }
  const std::span<const std::byte> payload = rest.first(header->payload_bytes);
  if (const Digest found = Checksum128(payload); found != header->payload_checksum) {
    return Damaged(kind, "checksum of the payload", ToString(found), ToString(header->payload_checksum));
  }
  return payload;
}

absl::StatusOr<std::span<const std::byte>> UnframedWhole(const FrameKind& kind, std::span<const std::byte> bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::span<const std::byte> payload, Unframed(kind, bytes));
  const size_t whole = payload.size() + kFrameBytes;
  if (whole != bytes.size()) return Damaged(kind, "length", absl::StrCat(bytes.size()), absl::StrCat(whole));
  return payload;
}

}  // namespace lamina::format
