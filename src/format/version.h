// The format's version. Until the first release it is 0 and may break; from 1 on old roots are read for ever.
#pragma once

#include <cstdint>

namespace lamina::format {

inline constexpr uint32_t kVersion = 0;
inline constexpr uint64_t kRequiredFeatures = 0;  // bits a reader must know; others are refused as Unimplemented
inline constexpr int64_t kMetadataBytesMax = int64_t{1} << 30;

}  // namespace lamina::format
