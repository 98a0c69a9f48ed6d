// libFuzzer's side of the targets, all in one program:
//   fuzz --target=catalog [libFuzzer's flags] CORPUS...
//   fuzz --seeds=FOLDER        writes each target's seeds to FOLDER/<target>/
// Findings end the program, and so does memory: one block, or all blocks that are held at once, above 2 × input + 64 MiB.
#include <sanitizer/allocator_interface.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "format/chunk.h"
#include "fuzz/targets.h"

namespace {

using lamina::fuzz::AllTargets;
using lamina::fuzz::Bytes;
using lamina::fuzz::Target;

constexpr size_t kSlackBytes = size_t{64} << 20;

std::atomic<bool> metering{false};
std::atomic<size_t> held_bytes{0};
std::atomic<size_t> peak_bytes{0};
std::atomic<size_t> largest_bytes{0};

void Raise(std::atomic<size_t>& to, size_t value) {
  if (value > to.load(std::memory_order_relaxed)) to.store(value, std::memory_order_relaxed);
}

void OnMalloc(const volatile void*, size_t bytes) {
  if (!metering.load(std::memory_order_relaxed)) return;
  Raise(largest_bytes, bytes);
  Raise(peak_bytes, held_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

void OnFree(const volatile void* block) {
  if (block == nullptr || !metering.load(std::memory_order_relaxed)) return;
  // Blocks from before the run may go in it.
  const size_t bytes = __sanitizer_get_allocated_size(const_cast<const void*>(block));
  held_bytes.store(held_bytes.load(std::memory_order_relaxed) - std::min(bytes, held_bytes.load(std::memory_order_relaxed)),
                   std::memory_order_relaxed);
}

const Target* target = nullptr;

void WriteSeeds(const std::filesystem::path& folder) {
  for (const Target& one : AllTargets()) {
    std::filesystem::create_directories(folder / one.name);
    for (const std::string& seed : one.seeds) {
      const std::string name = lamina::format::ToString(lamina::format::Checksum128(std::as_bytes(std::span(seed)))).substr(0, 16);
      std::ofstream(folder / one.name / name, std::ios::binary) << seed;
    }
  }
}

std::string_view ValueOf(std::string_view argument, std::string_view flag) {
  return argument.starts_with(flag) ? argument.substr(flag.size()) : std::string_view();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static const std::vector<Target> targets = AllTargets();
  for (int i = 1; i < *argc; ++i) {
    if (const std::string_view folder = ValueOf((*argv)[i], "--seeds="); !folder.empty()) {
      WriteSeeds(folder);
      std::exit(0);
    }
    const std::string_view name = ValueOf((*argv)[i], "--target=");
    for (const Target& one : targets) target = one.name == name ? &one : target;
  }
  if (target == nullptr) {
    for (const Target& one : targets) absl::PrintF("%s\n", one.name);
    std::exit(2);
  }
  if (__sanitizer_install_malloc_and_free_hooks(OnMalloc, OnFree) == 0) std::abort();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  held_bytes = peak_bytes = largest_bytes = 0;
  metering = true;
  const absl::Status status = target->attack(std::as_bytes(std::span(data, size)));
  metering = false;
  if (!status.ok()) {
    absl::FPrintF(stderr, "%s: %s\n", target->name, status.ToString());
    std::abort();
  }
  if (const size_t limit = 2 * size + kSlackBytes; largest_bytes > limit || peak_bytes > limit) {
    absl::FPrintF(stderr, "%s: %d bytes in one block, %d held at once, for an input of %d\n", target->name, largest_bytes.load(),
                  peak_bytes.load(), size);
    std::abort();
  }
  return 0;
}
