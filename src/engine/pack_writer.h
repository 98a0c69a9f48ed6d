// Writes one rank's pack of a save: header, chunks from the snapshot, chunk tables, index, footer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "env/env.h"
#include "format/index.h"
#include "format/pack.h"
#include "format/store_header.h"
#include "snapshot/snapshotter.h"
#include "tier/tier.h"

namespace lamina::engine {

// A box or blob of the snapshot that goes into the pack; the n-th becomes chunk table n.
struct PackItem {
  std::span<const snapshot::ChunkSlot> slots;  // where its chunks lie in the snapshot
};

struct WrittenPack {
  format::Digest nonce;
  format::Digest index_digest;
  uint64_t pack_bytes = 0;
  uint64_t chunk_bytes = 0;  // of the chunks alone, gaps left out
  uint64_t chunk_count = 0;
  std::vector<std::vector<format::Digest>> fingerprints;  // of each item's chunks
};

// Blocks until the pack is durable. After a failure nothing of it is left, as far as the store obeys. `progress` is told the bytes handed
// to the store; a status it returns ends the write.
absl::StatusOr<WrittenPack> WritePack(env::Env& env, tier::Tier& tier, const format::StoreHeader& store, const format::AttemptId& attempt,
                                      uint32_t writer, std::span<const std::byte> snapshot, std::span<const PackItem> items,
                                      const std::function<absl::Status(int64_t)>& progress);

}  // namespace lamina::engine
