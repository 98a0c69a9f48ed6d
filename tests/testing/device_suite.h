// What every Device promises. `make_device` gives a fresh device; its memory is host memory here, which every device can read.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "testing/random_source.h"

namespace lamina::testing {

using DeviceFactory = std::function<std::unique_ptr<device::Device>()>;

inline device::StridedSource View(const RandomSource& source) {
  return {source.data(), source.element_bytes, source.extent, source.strides};
}

inline void WaitForAll(device::Device& device) {
  const auto event = device.Record();
  REQUIRE(event.ok());
  REQUIRE((*event)->Wait().ok());
  REQUIRE((*event)->Complete());
}

inline void CheckGathersAnyRange(const DeviceFactory& make_device) {
  std::mt19937_64 random(11);
  const auto device = make_device();
  for (int round = 0; round < 300; ++round) {
    const RandomSource source = MakeRandomSource(random, int64_t{1} << (round % 5), 9);
    const std::vector<std::byte> expected = source.Packed();
    const int64_t count_max = source.ElementCount();
    const int64_t begin = count_max == 0 ? 0 : static_cast<int64_t>(random() % static_cast<uint64_t>(count_max));
    const int64_t count = count_max == 0 ? 0 : static_cast<int64_t>(random() % static_cast<uint64_t>(count_max - begin + 1));
    const size_t bytes = static_cast<size_t>(count * source.element_bytes);
    std::vector<std::byte> target(bytes + 1, std::byte{0x5A});
    REQUIRE(device->EnqueueGather(View(source), begin, count, target.data()).ok());
    WaitForAll(*device);
    REQUIRE(std::equal(target.begin(), target.end() - 1, expected.begin() + begin * source.element_bytes));
    REQUIRE(target.back() == std::byte{0x5A});
  }
}

inline void CheckCopiesLargeSources(const DeviceFactory& make_device) {
  std::mt19937_64 random(12);
  const auto device = make_device();
  std::vector<std::byte> source((9 << 20) + 77);
  FillRandom(source, random);
  const std::vector<int64_t> extent = {static_cast<int64_t>(source.size()) - 5};
  const std::vector<int64_t> strides = {1};
  for (const size_t shift : {size_t{0}, size_t{3}, size_t{64}}) {
    std::vector<std::byte> target(source.size() + 128, std::byte{0x5A});
    REQUIRE(device->EnqueueGather({source.data() + 5, 1, extent, strides}, 0, extent[0], target.data() + shift).ok());
    WaitForAll(*device);
    REQUIRE(std::equal(source.begin() + 5, source.end(), target.begin() + static_cast<std::ptrdiff_t>(shift)));
    REQUIRE(target[shift + source.size() - 5] == std::byte{0x5A});
  }
}

inline void CheckTransposesLargeSources(const DeviceFactory& make_device) {
  std::mt19937_64 random(13);
  const auto device = make_device();
  RandomSource source;
  source.element_bytes = 4;
  source.extent = {1500, 1101};
  source.strides = {1, 1500};
  source.storage.resize(size_t{1500} * 1101 * 4);
  FillRandom(source.storage, random);
  std::vector<std::byte> target(source.storage.size());
  REQUIRE(device->EnqueueGather(View(source), 0, source.ElementCount(), target.data()).ok());
  WaitForAll(*device);
  REQUIRE(target == source.Packed());
}

// An event stands for all that was enqueued before it, though later copies may still run.
inline void CheckEventsCoverWhatCameBefore(const DeviceFactory& make_device) {
  std::mt19937_64 random(14);
  const auto device = make_device();
  std::vector<RandomSource> sources;
  for (int i = 0; i < 20; ++i) sources.push_back(MakeRandomSource(random, 8, 8));
  std::vector<std::vector<std::byte>> targets(sources.size());
  std::vector<std::unique_ptr<device::Event>> events;
  for (size_t i = 0; i < sources.size(); ++i) {
    targets[i].resize(static_cast<size_t>(sources[i].ElementCount() * 8));
    REQUIRE(device->EnqueueGather(View(sources[i]), 0, sources[i].ElementCount(), targets[i].data()).ok());
    auto event = device->Record();
    REQUIRE(event.ok());
    events.push_back(*std::move(event));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    REQUIRE(events[i]->Wait().ok());
    REQUIRE(events[i]->Complete());
    REQUIRE(targets[i] == sources[i].Packed());
  }
}

inline void CheckRefusesWhatMakesNoSense(const DeviceFactory& make_device) {
  const auto device = make_device();
  const std::vector<std::byte> memory(64);
  std::vector<std::byte> target(64, std::byte{0x5A});
  const std::vector<int64_t> extent = {4, 4};
  const std::vector<int64_t> strides = {4, 1};
  const std::vector<int64_t> negative = {4, -1};
  const std::vector<int64_t> huge = {int64_t{1} << 40, int64_t{1} << 40};
  const auto code = [&](const device::StridedSource& source, int64_t begin, int64_t count) {
    return device->EnqueueGather(source, begin, count, target.data()).code();
  };
  const device::StridedSource good{memory.data(), 4, extent, strides};
  REQUIRE(code(good, 0, 17) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code(good, 16, 1) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code(good, -1, 1) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code(good, INT64_MAX, INT64_MAX) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code({memory.data(), 3, extent, strides}, 0, 1) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code({memory.data(), 4, extent, {}}, 0, 1) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code({memory.data(), 4, negative, strides}, 0, 1) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code({memory.data(), 4, huge, strides}, 0, 1) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code({nullptr, 4, extent, strides}, 0, 1) == absl::StatusCode::kInternal);
  REQUIRE(device->EnqueueGather(good, 0, 1, nullptr).code() == absl::StatusCode::kInternal);
  WaitForAll(*device);
  REQUIRE(std::ranges::count(target, std::byte{0x5A}) == 64);
}

inline void RunDeviceSuite(const DeviceFactory& make_device) {
  SECTION("gathers any range of any source") { CheckGathersAnyRange(make_device); }
  SECTION("copies large sources to any alignment") { CheckCopiesLargeSources(make_device); }
  SECTION("transposes large sources") { CheckTransposesLargeSources(make_device); }
  SECTION("completes an event when all before it is done") { CheckEventsCoverWhatCameBefore(make_device); }
  SECTION("refuses what makes no sense and touches nothing") { CheckRefusesWhatMakesNoSense(make_device); }
}

}  // namespace lamina::testing
