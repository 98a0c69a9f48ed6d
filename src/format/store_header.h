// The file LAMINA at the root: which store this is.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "format/chunk.h"

namespace lamina::format {

struct StoreHeader {
  Digest store_id;  // random
  uint64_t fingerprint_seed = 0;
  bool operator==(const StoreHeader&) const = default;
};

std::string EncodeStoreHeader(const StoreHeader& header);
// DataLoss for damage; Unimplemented for a newer version or an unknown required feature.
absl::StatusOr<StoreHeader> DecodeStoreHeader(std::span<const std::byte> bytes);

}  // namespace lamina::format
