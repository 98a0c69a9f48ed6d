// Sizes and times by name.
#pragma once

#include <cstdint>

namespace lamina::base {

inline constexpr int64_t kKiB = 1024;
inline constexpr int64_t kMiB = 1024 * kKiB;
inline constexpr int64_t kGiB = 1024 * kMiB;
inline constexpr int64_t kMicrosecondNs = 1000;
inline constexpr int64_t kMillisecondNs = 1000 * kMicrosecondNs;
inline constexpr int64_t kSecondNs = 1000 * kMillisecondNs;

}  // namespace lamina::base
