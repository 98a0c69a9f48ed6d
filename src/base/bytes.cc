#include "base/bytes.h"

namespace lamina::base {

std::string Hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[std::to_integer<size_t>(byte) >> 4]);
    text.push_back(kDigits[std::to_integer<size_t>(byte) & 15]);
  }
  return text;
}

}  // namespace lamina::base
