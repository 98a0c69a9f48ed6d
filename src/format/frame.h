// The 64 bytes in front of every metadata payload: what it is, which version wrote it, how long it is, and checksums. docs/format.md,
// "Frame".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lamina::format {

struct FrameKind {
  std::string_view magic;  // 8 bytes
  std::string_view name;   // for messages
};

inline constexpr FrameKind kStoreFrame{"LamStore", "LAMINA"};
inline constexpr FrameKind kLogFrame{"LamLogRc", "log record"};
inline constexpr FrameKind kPackHeaderFrame{"LamPackH", "pack header"};
inline constexpr FrameKind kPackFooterFrame{"LamPackF", "pack footer"};
inline constexpr FrameKind kIndexFrame{"LamIndex", "index"};
inline constexpr FrameKind kCatalogFrame{"LamCatlg", "catalog"};
inline constexpr FrameKind kPacksFrame{"LamPacks", "packs"};

inline constexpr size_t kFrameBytes = 64;

// Frame and payload. Empty when that is more than kMetadataBytesMax, which every decoder refuses: the caller publishes nothing then.
std::string Framed(const FrameKind& kind, std::string_view payload);

// The payload, borrowed from `bytes`. What follows it is the caller's to judge. DataLoss for damage; Unimplemented for a newer version or
// an unknown required feature, and only when the frame's own checksum vouches for those fields.
absl::StatusOr<std::span<const std::byte>> Unframed(const FrameKind& kind, std::span<const std::byte> bytes);

// The same, when the payload must end where `bytes` end.
absl::StatusOr<std::span<const std::byte>> UnframedWhole(const FrameKind& kind, std::span<const std::byte> bytes);

// DataLoss "<name>: <what> is <found>, expected <expected>".
absl::Status Damaged(const FrameKind& kind, std::string_view what, std::string_view found, std::string_view expected);

}  // namespace lamina::format
