// A save's consistent copy of the state, laid out in the window as the data of its pack will be on disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "device/pinned_window.h"
#include "format/chunk.h"
#include "lamina/tensor_view.h"

namespace lamina::snapshot {

// A run of a box's row-major elements in the window and in the pack.
struct ChunkSlot {
  int64_t element_begin = 0;
  int64_t element_count = 0;
  int64_t bytes = 0;
  int64_t offset = 0;  // from the start of the data: window lease and pack data section alike
};

// One box or blob to copy, in the order of the pack.
struct SnapshotItem {
  const BoxView* box = nullptr;  // either a box of a tensor ...
  DType dtype = DType::kUint8;
  std::string_view blob;  // ... or plain bytes (dtype kUint8)
};

// Chunks of items in order: format::kChunkElements elements each (bytes of a blob likewise, 4 MiB), those of kLargeChunkBytes and more at
// kPackAlignment, smaller ones at kSmallChunkAlignment, never reordered. Pure.
struct Layout {
  std::vector<std::vector<ChunkSlot>> items;
  int64_t data_bytes = 0;  // multiple of kSmallChunkAlignment
};
Layout PlanLayout(std::span<const SnapshotItem> items);

struct Snapshot {
  device::WindowLease lease;  // gaps are zero
  Layout layout;
};

// Copies all items into a lease of the window; returns when the sources may be changed. ResourceExhausted when the window is too small
// (says what to set) before the first byte; DeadlineExceeded when no room came free.
absl::StatusOr<Snapshot> Take(device::Device& device, device::PinnedWindow& window, std::span<const SnapshotItem> items,
                              int64_t deadline_ns);

// Fingerprints of a box that this rank holds but does not write, chunk by chunk as a writer would cut it, from the trainer's memory; their
// digest.
absl::StatusOr<format::Digest> HashInPlace(const BoxView& box, DType dtype, uint64_t seed);
// The same digest from the chunks of a box that was written.
format::Digest DigestOfFingerprints(std::span<const format::Digest> fingerprints);

}  // namespace lamina::snapshot
