#include "format/store_header.h"

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/frame.h"

namespace lamina::format {
namespace {

constexpr uint32_t kFingerprintXxh3Leaves16KiB = 1;

struct StorePayload {
  Digest store_id;
  uint64_t fingerprint_seed = 0;
  uint32_t fingerprint_algorithm = kFingerprintXxh3Leaves16KiB;
  uint32_t reserved = 0;
};
static_assert(sizeof(StorePayload) == 32);

}  // namespace

std::string EncodeStoreHeader(const StoreHeader& header) {
  const StorePayload payload{.store_id = header.store_id, .fingerprint_seed = header.fingerprint_seed};
  return Framed(kStoreFrame, base::AsText(std::as_bytes(std::span(&payload, 1))));
}

absl::StatusOr<StoreHeader> DecodeStoreHeader(std::span<const std::byte> bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::span<const std::byte> found, UnframedWhole(kStoreFrame, bytes));
  const std::optional<StorePayload> payload = base::ReadAt<StorePayload>(found, 0);
  if (!payload || found.size() != sizeof(StorePayload)) {
    return Damaged(kStoreFrame, "length of the payload", absl::StrCat(found.size()), absl::StrCat(sizeof(StorePayload)));
  }
  if (payload->fingerprint_algorithm != kFingerprintXxh3Leaves16KiB) {
    return absl::UnimplementedError(absl::StrCat("LAMINA: fingerprint algorithm ", payload->fingerprint_algorithm,
                                                 ", the only known one is ", kFingerprintXxh3Leaves16KiB));
  }
  return StoreHeader{.store_id = payload->store_id, .fingerprint_seed = payload->fingerprint_seed};
}

}  // namespace lamina::format
