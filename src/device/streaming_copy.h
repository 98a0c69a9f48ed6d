// Copies that leave the caches to the trainer.
#pragma once

#include <cstddef>

namespace lamina::device {

// memcpy. Large copies store past the caches where the processor can, since the target is read by a device and not by this core: about
// twice as fast, and the trainer's working set stays cached. Source and target do not overlap; either may have any alignment.
void StreamingCopy(std::byte* target, const std::byte* source, size_t bytes);

}  // namespace lamina::device
