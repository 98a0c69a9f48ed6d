// The simulator's generator: small, and the same on every machine for a seed.
#pragma once

#include <cstdint>

namespace lamina::env {

// SplitMix64 (Steele, Lea, Flood 2014).
class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15ULL); }
  int64_t Below(int64_t bound) { return bound <= 1 ? 0 : static_cast<int64_t>(Next() % static_cast<uint64_t>(bound)); }
  bool Chance(double probability) { return static_cast<double>(Next() >> 11) * 0x1.0p-53 < probability; }

  static uint64_t Mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace lamina::env
