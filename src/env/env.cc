#include "env/env.h"

namespace lamina::env {

std::string RandomHex(Env& env, int count) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr int kDigitsPerWord = 16;
  std::string text;
  uint64_t word = 0;
  for (int i = 0; i < count; ++i) {
    if (i % kDigitsPerWord == 0) word = env.RandomU64();
    text.push_back(kDigits[word & 15]);
    word >>= 4;
  }
  return text;
}

}  // namespace lamina::env
