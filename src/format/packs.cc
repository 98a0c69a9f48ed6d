#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/catalog.h"
#include "format/flat.h"
#include "format/packs_generated.h"

namespace lamina::format {
namespace {

flat::ReachedPack ToFlat(const ReachedPack& pack) {
  return {format::ToFlat(pack.attempt), format::ToFlat(pack.nonce), pack.pack_bytes, pack.live_bytes, pack.writer};
}

ReachedPack FromFlat(const flat::ReachedPack& pack) {
  return {.attempt = format::FromFlat(pack.attempt()),
          .writer = pack.writer(),
          .nonce = format::FromFlat(pack.nonce()),
          .pack_bytes = pack.pack_bytes(),
          .live_bytes = pack.live_bytes()};
}

}  // namespace

absl::Status ValidatePacks(const Packs& packs) {
  const ReachedPack* before = nullptr;
  for (const ReachedPack& pack : packs.packs) {
    const std::string path = PackPath(pack.attempt, pack.writer);
    if (pack.attempt.step < 0) return absl::InvalidArgumentError(absl::StrCat("packs: step of ", path, " is negative"));
    if (pack.attempt.incarnation == 0) return absl::InvalidArgumentError(absl::StrCat("packs: incarnation of ", path, " is 0"));
    if (before != nullptr && std::tie(before->attempt, before->writer) >= std::tie(pack.attempt, pack.writer)) {
      return absl::InvalidArgumentError(absl::StrCat("packs: ", path, " is out of order"));
    }
    if (pack.live_bytes > pack.pack_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("packs: live bytes of ", path, " are ", pack.live_bytes, ", expected at most ", pack.pack_bytes));
    }
    before = &pack;
  }
  return absl::OkStatus();
}

std::string EncodePacks(const Packs& packs) {
  if (!Fits(1024 + sizeof(flat::ReachedPack) * packs.packs.size())) return {};
  flatbuffers::FlatBufferBuilder builder;
  const auto reached = builder.CreateVectorOfStructs<flat::ReachedPack>(
      packs.packs.size(), [&](size_t i, flat::ReachedPack* pack) { *pack = ToFlat(packs.packs[i]); });
  const flat::PacksFacts facts(format::ToFlat(packs.store_id), format::ToFlat(packs.attempt));
  builder.Finish(flat::CreatePacks(builder, &facts, reached));
  return FramedFlat(kPacksFrame, builder);
}

absl::StatusOr<Packs> DecodePacks(std::span<const std::byte> bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::span<const std::byte> payload, UnframedWhole(kPacksFrame, bytes));
  LAMINA_ASSIGN_OR_RETURN(const auto flat, FlatPayload<flat::Packs>::Read(kPacksFrame, payload));
  const flat::Packs& root = flat.root();
  Packs packs{.store_id = format::FromFlat(root.facts()->store_id()), .attempt = format::FromFlat(root.facts()->attempt()), .packs = {}};
  if (!Budget(payload.size()).Reserve(root.packs(), packs.packs)) return OverBudget(kPacksFrame);
  ForEachStruct(root.packs(), [&](const flat::ReachedPack& pack) { packs.packs.push_back(FromFlat(pack)); });
  if (const absl::Status valid = ValidatePacks(packs); !valid.ok()) return absl::DataLossError(valid.message());
  return packs;
}

}  // namespace lamina::format
