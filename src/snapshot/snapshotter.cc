#include "snapshot/snapshotter.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "device/gather.h"
#include "shard/box.h"

namespace lamina::snapshot {
namespace {

constexpr int64_t kBlobChunkBytes = 4 * 1024 * 1024;

int64_t AlignmentOf(int64_t chunk_bytes) {
  return chunk_bytes >= format::kLargeChunkBytes ? format::kPackAlignment : format::kSmallChunkAlignment;
}

// Appends the chunks of `element_count` elements behind `cursor` and moves it to their end.
std::vector<ChunkSlot> CutChunks(int64_t element_count, int64_t element_bytes, int64_t chunk_elements, int64_t& cursor) {
  std::vector<ChunkSlot> slots;
  slots.reserve(static_cast<size_t>((element_count + chunk_elements - 1) / chunk_elements));
  for (int64_t begin = 0; begin < element_count; begin += chunk_elements) {
    const int64_t count = std::min(chunk_elements, element_count - begin);
    const int64_t bytes = count * element_bytes;
    cursor = base::AlignUp(cursor, AlignmentOf(bytes));
    slots.push_back({begin, count, bytes, cursor});
    cursor += bytes;
  }
  return slots;
}

device::StridedSource SourceOf(const BoxView& box, DType dtype) {
  return {static_cast<const std::byte*>(box.data), DTypeBytes(dtype), box.box.extent, box.strides};
}

absl::Status CopyBox(device::Device& device, const SnapshotItem& item, std::span<const ChunkSlot> slots, std::byte* data) {
  const device::StridedSource source = SourceOf(*item.box, item.dtype);
  while (!slots.empty()) {
    // Chunks that follow each other without a gap, as most do, are one copy for the device.
    const ChunkSlot& first = slots.front();
    size_t joined = 1;
    int64_t count = first.element_count;
    while (joined < slots.size() && slots[joined].offset == slots[joined - 1].offset + slots[joined - 1].bytes) {
      count += slots[joined++].element_count;
    }
    LAMINA_RETURN_IF_ERROR(device.EnqueueGather(source, first.element_begin, count, data + first.offset));
    slots = slots.subspan(joined);
  }
  return absl::OkStatus();
}

absl::Status CopyItems(device::Device& device, std::span<const SnapshotItem> items, const Layout& layout, std::span<std::byte> data) {
  int64_t cursor = 0;
  const auto zero_gap = [&](int64_t end) {
    if (end > cursor) std::memset(data.data() + cursor, 0, static_cast<size_t>(end - cursor));
  };
  for (size_t i = 0; i < items.size(); ++i) {
    const SnapshotItem& item = items[i];
    for (const ChunkSlot& slot : layout.items[i]) {
      zero_gap(slot.offset);
      if (item.box == nullptr)
        std::memcpy(data.data() + slot.offset, item.blob.data() + slot.element_begin, static_cast<size_t>(slot.bytes));
      cursor = slot.offset + slot.bytes;
    }
    if (item.box == nullptr) continue;
    LAMINA_RETURN_IF_ERROR(base::Annotate(CopyBox(device, item, layout.items[i], data.data()), absl::StrCat("snapshot item ", i)));
  }
  zero_gap(layout.data_bytes);
  return absl::OkStatus();
}

absl::Status WaitForCopies(device::Device& device) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<device::Event> copied, device.Record());
  return copied->Wait();
}

}  // namespace

Layout PlanLayout(std::span<const SnapshotItem> items) {
  Layout layout;
  layout.items.reserve(items.size());
  int64_t cursor = 0;
  for (const SnapshotItem& item : items) {
    if (item.box == nullptr) {
      layout.items.push_back(CutChunks(static_cast<int64_t>(item.blob.size()), 1, kBlobChunkBytes, cursor));
    } else {
      layout.items.push_back(CutChunks(shard::ElementCount(item.box->box.extent), DTypeBytes(item.dtype), format::kChunkElements, cursor));
    }
  }
  layout.data_bytes = base::AlignUp(cursor, format::kSmallChunkAlignment);
  return layout;
}

absl::StatusOr<Snapshot> Take(device::Device& device, device::PinnedWindow& window, std::span<const SnapshotItem> items,
                              int64_t deadline_ns) {
  Snapshot snapshot;
  snapshot.layout = PlanLayout(items);
  LAMINA_ASSIGN_OR_RETURN(snapshot.lease, window.Acquire(snapshot.layout.data_bytes, deadline_ns));
  const absl::Status enqueued = CopyItems(device, items, snapshot.layout, snapshot.lease.bytes());
  // Waited for on failure too: the device must not write into a lease that was given back.
  const absl::Status copied = WaitForCopies(device);
  if (!enqueued.ok()) return enqueued;
  if (!copied.ok()) return copied;
  return snapshot;
}

absl::StatusOr<format::Digest> HashInPlace(const BoxView& box, DType dtype, uint64_t seed) {
  LAMINA_ASSIGN_OR_RETURN(const device::GatherPlan source, device::GatherPlan::Make(SourceOf(box, dtype)));
  int64_t data_bytes = 0;
  const std::vector<ChunkSlot> slots = CutChunks(source.element_count(), source.element_bytes(), format::kChunkElements, data_bytes);
  std::vector<std::byte> scratch(source.contiguous() || slots.empty() ? 0 : static_cast<size_t>(slots.front().bytes));
  std::vector<format::Digest> fingerprints;
  fingerprints.reserve(slots.size());
  for (const ChunkSlot& slot : slots) {
    const std::byte* raw = source.data() + slot.element_begin * source.element_bytes();
    if (!source.contiguous()) {
      source.Gather(slot.element_begin, slot.element_count, scratch.data());
      raw = scratch.data();
    }
    fingerprints.push_back(format::Fingerprint({raw, static_cast<size_t>(slot.bytes)}, seed));
  }
  return DigestOfFingerprints(fingerprints);
}

format::Digest DigestOfFingerprints(std::span<const format::Digest> fingerprints) {
  static_assert(sizeof(format::Digest) == 16, "no padding is hashed");
  return format::Checksum128(std::as_bytes(fingerprints));
}

}  // namespace lamina::snapshot
