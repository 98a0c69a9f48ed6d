#include "memory_meter.h"

#include <malloc.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <new>

namespace {

size_t held_bytes = 0;
size_t peak_bytes = 0;

void* Take(size_t bytes) {
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  held_bytes += malloc_usable_size(block);
  peak_bytes = std::max(peak_bytes, held_bytes);
  return block;
}

void GiveBack(void* block) noexcept {
  if (block != nullptr) held_bytes -= malloc_usable_size(block);
  std::free(block);
}

}  // namespace

void* operator new(size_t bytes) { return Take(bytes); }
void* operator new[](size_t bytes) { return Take(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Take(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return Take(bytes); }
void operator delete(void* block) noexcept { GiveBack(block); }
void operator delete[](void* block) noexcept { GiveBack(block); }
void operator delete(void* block, size_t) noexcept { GiveBack(block); }
void operator delete[](void* block, size_t) noexcept { GiveBack(block); }

namespace lamina::format {

MemoryMeter::MemoryMeter() : begin_bytes_(held_bytes) { peak_bytes = held_bytes; }

size_t MemoryMeter::PeakBytes() const { return peak_bytes - begin_bytes_; }

}  // namespace lamina::format

TEST_CASE("The memory meter sees a block that is gone again", "[format]") {
  const lamina::format::MemoryMeter meter;
  { const auto block = std::make_unique<char[]>(1 << 20); }
  CHECK(meter.PeakBytes() >= 1u << 20);
  CHECK(meter.PeakBytes() < 2u << 20);
}
