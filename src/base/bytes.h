// Overflow-checked arithmetic and bounded little-endian access, for numbers that come from a file or a caller.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lamina::base {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and written by plain copies");

template <std::integral T>
std::optional<T> CheckedAdd(T a, T b) {
  T sum{};
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
std::optional<T> CheckedMultiply(T a, T b) {
  T product{};
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The smallest multiple of `alignment` (a power of two) that is at least `value`. The caller knows that it does not overflow.
constexpr int64_t AlignUp(int64_t value, int64_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

inline std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span<const char>(text.data(), text.size())); }

inline std::string_view AsText(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Reads a T at `offset`; nullopt when it does not lie wholly inside.
template <typename T>
requires std::is_trivially_copyable_v<T> std::optional<T> ReadAt(std::span<const std::byte> bytes, size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Lower-case hexadecimal text of the bytes, first byte first.
std::string Hex(std::span<const std::byte> bytes);

}  // namespace lamina::base
