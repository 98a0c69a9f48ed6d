#include "snapshot/snapshotter.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/host_device.h"
#include "env/posix_env.h"
#include "testing/random_source.h"

namespace lamina::snapshot {
namespace {

using testing::RandomSource;

constexpr int64_t kWindowBytes = 64 * base::kMiB;

// Sources and blobs with the items that point into them.
struct State {
  std::vector<RandomSource> sources;
  std::vector<BoxView> boxes;
  std::vector<std::string> blobs;
  std::vector<SnapshotItem> items;

  void Add(RandomSource source, DType dtype) {
    sources.push_back(std::move(source));
    dtypes_.push_back(dtype);
  }

  // Every second blob stands between the boxes, the others behind them.
  void MakeItems() {
    for (RandomSource& source : sources) {
      boxes.push_back(
          {{std::vector<int64_t>(source.extent.size()), source.extent}, source.storage.data() + source.first_byte, source.strides});
    }
    for (size_t i = 0; i < boxes.size(); ++i) {
      items.push_back({&boxes[i], dtypes_[i], {}});
      if (i < blobs.size()) items.push_back({nullptr, DType::kUint8, blobs[i]});
    }
  }

  std::vector<std::byte> Expected(size_t item) const {
    if (items[item].box != nullptr) return sources[static_cast<size_t>(items[item].box - boxes.data())].Packed();
    const auto bytes = std::as_bytes(std::span(items[item].blob));
    return {bytes.begin(), bytes.end()};
  }

  int64_t ElementCount(size_t item) const { return sources[static_cast<size_t>(items[item].box - boxes.data())].ElementCount(); }

 private:
  std::vector<DType> dtypes_;
};

RandomSource ContiguousSource(std::mt19937_64& random, int64_t element_bytes, int64_t count) {
  RandomSource source;
  source.element_bytes = element_bytes;
  source.extent = {count};
  source.strides = {1};
  source.storage.resize(static_cast<size_t>(count * element_bytes));
  testing::FillRandom(source.storage, random);
  return source;
}

State RandomState(uint64_t seed) {
  std::mt19937_64 random(seed);
  State state;
  for (int number = 1; number <= 22; ++number) {
    const DType dtype = *DTypeFromNumber(static_cast<uint8_t>(number));
    state.Add(testing::MakeRandomSource(random, DTypeBytes(dtype), 12), dtype);
    state.blobs.emplace_back(random() % 300, static_cast<char>(number));
  }
  state.Add(ContiguousSource(random, 4, format::kChunkElements * 2 + 17), DType::kFloat32);
  state.Add(ContiguousSource(random, 1, format::kChunkElements + 70'000), DType::kBool);
  state.blobs.emplace_back();
  state.blobs.emplace_back(5 * base::kMiB, 'b');
  state.MakeItems();
  return state;
}

std::vector<std::byte> BytesOf(const Snapshot& snapshot, size_t item) {
  std::vector<std::byte> bytes;
  for (const ChunkSlot& slot : snapshot.layout.items[item]) {
    const auto chunk = snapshot.lease.bytes().subspan(static_cast<size_t>(slot.offset), static_cast<size_t>(slot.bytes));
    bytes.insert(bytes.end(), chunk.begin(), chunk.end());
  }
  return bytes;
}

TEST_CASE("Take copies boxes of every dtype and stride as the slow way does, early or late", "[snapshot]") {
  const auto env = env::NewPosixEnv();
  const std::optional<uint64_t> chaos_seed = GENERATE(std::optional<uint64_t>(), std::optional<uint64_t>(3));
  device::HostDevice device(*env, {.threads = 2, .chaos_seed = chaos_seed});
  const auto window = *device::PinnedWindow::Create(*env, kWindowBytes);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const State state = RandomState(seed);
    {
      // What an earlier lease left behind must not show in the gaps.
      const auto dirty = *window->Acquire(kWindowBytes, 0);
      std::ranges::fill(dirty.bytes(), std::byte{0xEE});
    }
    const auto snapshot = Take(device, *window, state.items, 0);
    REQUIRE(snapshot.ok());
    REQUIRE(snapshot->layout.items.size() == state.items.size());
    REQUIRE(std::ssize(snapshot->lease.bytes()) == snapshot->layout.data_bytes);
    int64_t end = 0;
    bool gaps_are_zero = true;
    const auto check_gap = [&](int64_t begin) {
      for (; end < begin; ++end) gaps_are_zero &= snapshot->lease.bytes()[static_cast<size_t>(end)] == std::byte{0};
    };
    for (size_t i = 0; i < state.items.size(); ++i) {
      REQUIRE(BytesOf(*snapshot, i) == state.Expected(i));
      for (const ChunkSlot& slot : snapshot->layout.items[i]) {
        check_gap(slot.offset);
        end = slot.offset + slot.bytes;
      }
    }
    check_gap(snapshot->layout.data_bytes);
    REQUIRE(gaps_are_zero);
  }
}

TEST_CASE("PlanLayout keeps order and alignment and wastes no more than a page a chunk", "[snapshot]") {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const State state = RandomState(seed);
    const Layout layout = PlanLayout(state.items);
    int64_t end = 0;
    for (size_t i = 0; i < layout.items.size(); ++i) {
      const bool is_box = state.items[i].box != nullptr;
      const int64_t element_bytes = DTypeBytes(state.items[i].dtype);
      const int64_t chunk_elements = is_box ? format::kChunkElements : 4 * base::kMiB;
      int64_t next_element = 0;
      for (const ChunkSlot& slot : layout.items[i]) {
        REQUIRE(slot.element_begin == next_element);
        REQUIRE(slot.element_begin % chunk_elements == 0);
        REQUIRE(slot.element_count > 0);
        REQUIRE(slot.element_count <= chunk_elements);
        REQUIRE(slot.bytes == slot.element_count * element_bytes);
        const int64_t alignment = slot.bytes >= format::kLargeChunkBytes ? format::kPackAlignment : format::kSmallChunkAlignment;
        REQUIRE(slot.offset % alignment == 0);
        REQUIRE(slot.offset >= end);
        REQUIRE(slot.offset - end < alignment);
        end = slot.offset + slot.bytes;
        next_element += slot.element_count;
      }
      REQUIRE(next_element == (is_box ? state.ElementCount(i) : std::ssize(state.items[i].blob)));
    }
    REQUIRE(layout.data_bytes >= end);
    REQUIRE(layout.data_bytes - end < format::kSmallChunkAlignment);
    REQUIRE(layout.data_bytes % format::kSmallChunkAlignment == 0);
  }
}

TEST_CASE("PlanLayout aligns chunks from 64 KiB on to pages and smaller ones to cache lines", "[snapshot]") {
  const std::string line(1, 'l');
  const std::string small(64 * base::kKiB - 1, 's');
  const std::string large(64 * base::kKiB, 'L');
  const std::vector<SnapshotItem> items = {
      {nullptr, DType::kUint8, line}, {nullptr, DType::kUint8, small}, {nullptr, DType::kUint8, {}}, {nullptr, DType::kUint8, large}};
  const Layout layout = PlanLayout(items);
  CHECK(layout.items[0][0].offset == 0);
  CHECK(layout.items[1][0].offset == 64);
  CHECK(layout.items[2].empty());
  CHECK(layout.items[3][0].offset == 68 * base::kKiB);
  CHECK(layout.data_bytes == 132 * base::kKiB);
}

TEST_CASE("Take of nothing, and of nothing but empty boxes, needs no room", "[snapshot]") {
  const auto env = env::NewPosixEnv();
  device::HostDevice device(*env);
  const auto window = *device::PinnedWindow::Create(*env, 4096);
  const BoxView empty{{{0, 0}, {0, 5}}, nullptr, {5, 1}};
  const std::vector<SnapshotItem> items = {{&empty, DType::kFloat32, {}}};
  for (const std::span<const SnapshotItem> some : {std::span<const SnapshotItem>(), std::span<const SnapshotItem>(items)}) {
    const auto snapshot = Take(device, *window, some, 0);
    REQUIRE(snapshot.ok());
    REQUIRE(snapshot->layout.data_bytes == 0);
    REQUIRE(snapshot->lease.bytes().empty());
  }
}

TEST_CASE("Take refuses a state larger than the window before it copies a byte", "[snapshot]") {
  const auto env = env::NewPosixEnv();
  device::HostDevice device(*env);
  const auto window = *device::PinnedWindow::Create(*env, 4096);
  const std::string blob(5000, 'b');
  const std::vector<SnapshotItem> items = {{nullptr, DType::kUint8, blob}};
  const absl::Status status = Take(device, *window, items, env::kForeverNs).status();
  REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(status.message()).find("needs 5056 bytes, the window has 4096; set memory=5056") != std::string::npos);
  CHECK(window->leased_bytes() == 0);
}

TEST_CASE("Take keeps two snapshots side by side and waits for room for a third", "[snapshot]") {
  const auto env = env::NewPosixEnv();
  device::HostDevice device(*env);
  const auto window = *device::PinnedWindow::Create(*env, 2 * 4096);
  const std::string a(4096, 'a');
  const std::string b(4096, 'b');
  const std::vector<SnapshotItem> items_a = {{nullptr, DType::kUint8, a}};
  const std::vector<SnapshotItem> items_b = {{nullptr, DType::kUint8, b}};
  auto first = Take(device, *window, items_a, 0);
  const auto second = Take(device, *window, items_b, 0);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(std::ranges::count(first->lease.bytes(), std::byte{'a'}) == 4096);
  CHECK(std::ranges::count(second->lease.bytes(), std::byte{'b'}) == 4096);
  CHECK(Take(device, *window, items_a, 0).status().code() == absl::StatusCode::kDeadlineExceeded);
  first->lease = device::WindowLease();
  CHECK(Take(device, *window, items_a, 0).ok());
}

TEST_CASE("Take names the item with a null pointer and gives its room back", "[snapshot]") {
  const auto env = env::NewPosixEnv();
  device::HostDevice device(*env, {.chaos_seed = 9});
  const auto window = *device::PinnedWindow::Create(*env, 4096);
  int32_t value = 1;
  const BoxView good{{{}, {}}, &value, {}};
  const BoxView bad{{{0}, {3}}, nullptr, {1}};
  const std::vector<SnapshotItem> items = {{&good, DType::kInt32, {}}, {&bad, DType::kInt32, {}}};
  const absl::Status status = Take(device, *window, items, 0).status();
  REQUIRE(status.code() == absl::StatusCode::kInternal);
  CHECK(std::string(status.message()).find("snapshot item 1: a null pointer") != std::string::npos);
  CHECK(window->leased_bytes() == 0);
}

TEST_CASE("HashInPlace equals the digest of what Take would write, whatever the strides", "[snapshot]") {
  const auto env = env::NewPosixEnv();
  device::HostDevice device(*env);
  const auto window = *device::PinnedWindow::Create(*env, kWindowBytes);
  State state = RandomState(77);
  std::mt19937_64 random(1);
  RandomSource transposed = ContiguousSource(random, 2, 700 * 900);
  transposed.extent = {700, 900};
  transposed.strides = {1, 700};
  State with_transposed;
  with_transposed.Add(std::move(transposed), DType::kBfloat16);
  with_transposed.MakeItems();
  for (const State* part : {static_cast<const State*>(&state), static_cast<const State*>(&with_transposed)}) {
    const auto snapshot = Take(device, *window, part->items, 0);
    REQUIRE(snapshot.ok());
    for (size_t i = 0; i < part->items.size(); ++i) {
      if (part->items[i].box == nullptr) continue;
      std::vector<format::Digest> fingerprints;
      for (const ChunkSlot& slot : snapshot->layout.items[i]) {
        const auto chunk = snapshot->lease.bytes().subspan(static_cast<size_t>(slot.offset), static_cast<size_t>(slot.bytes));
        fingerprints.push_back(format::Fingerprint(chunk, 42));
      }
      REQUIRE(*HashInPlace(*part->items[i].box, part->items[i].dtype, 42) == DigestOfFingerprints(fingerprints));
    }
  }
}

TEST_CASE("HashInPlace sees a changed element and another seed", "[snapshot]") {
  std::vector<int16_t> memory(300'000, 5);
  const BoxView every_second{{{0}, {150'000}}, memory.data(), {2}};
  const auto before = HashInPlace(every_second, DType::kInt16, 1);
  REQUIRE(before.ok());
  CHECK(*HashInPlace(every_second, DType::kInt16, 2) != *before);
  memory[150'001] = 6;  // between the elements
  CHECK(*HashInPlace(every_second, DType::kInt16, 1) == *before);
  memory[150'000] = 6;
  CHECK(*HashInPlace(every_second, DType::kInt16, 1) != *before);
  CHECK(HashInPlace({{{0}, {3}}, nullptr, {1}}, DType::kInt16, 1).status().code() == absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace lamina::snapshot
