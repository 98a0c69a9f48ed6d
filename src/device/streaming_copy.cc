#include "device/streaming_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lamina::device {
namespace {

using CopyFunction = void (*)(std::byte* target, const std::byte* source, size_t bytes);

void PlainCopy(std::byte* target, const std::byte* source, size_t bytes) { std::memcpy(target, source, bytes); }

#if defined(__x86_64__)

constexpr size_t kLineBytes = 64;
constexpr size_t kBlockBytes = 4 * kLineBytes;

// The functions below copy whole blocks to a target that starts a cache line.
__attribute__((target("avx512f"))) void StreamBlocksAvx512(std::byte* target, const std::byte* source, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kBlockBytes) {
    const __m512i a = _mm512_loadu_si512(source + at);
    const __m512i b = _mm512_loadu_si512(source + at + kLineBytes);
    const __m512i c = _mm512_loadu_si512(source + at + 2 * kLineBytes);
    const __m512i d = _mm512_loadu_si512(source + at + 3 * kLineBytes);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + kLineBytes), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + 2 * kLineBytes), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at + 3 * kLineBytes), d);
  }
}

__attribute__((target("avx2"))) void StreamBlocksAvx2(std::byte* target, const std::byte* source, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLineBytes) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + kLineBytes / 2));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + kLineBytes / 2), b);
  }
}

template <CopyFunction kStreamBlocks>
void StreamedCopy(std::byte* target, const std::byte* source, size_t bytes) {
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(target) % kLineBytes) % kLineBytes;
  const size_t body = (bytes - head) / kBlockBytes * kBlockBytes;
  std::memcpy(target, source, head);
  kStreamBlocks(target + head, source + head, body);
  std::memcpy(target + head + body, source + head + body, bytes - head - body);
  // Streamed stores are weakly ordered: whoever is told that the copy is done must see them.
  _mm_sfence();
}

CopyFunction ChooseCopy() {
  if (__builtin_cpu_supports("avx512f")) return StreamedCopy<StreamBlocksAvx512>;
  if (__builtin_cpu_supports("avx2")) return StreamedCopy<StreamBlocksAvx2>;
  return PlainCopy;
}

#else

CopyFunction ChooseCopy() { return PlainCopy; }

#endif

// Below this the fence and the lost cache hits cost more than they save.
constexpr size_t kStreamedBytesMin = 1024;

}  // namespace

void StreamingCopy(std::byte* target, const std::byte* source, size_t bytes) {
  static const CopyFunction large_copy = ChooseCopy();
  if (bytes >= kStreamedBytesMin) {
    large_copy(target, source, bytes);
  } else if (bytes > 0) {
    std::memcpy(target, source, bytes);
  }
}

}  // namespace lamina::device
