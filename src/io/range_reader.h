// Reads many ranges of one file through a queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "env/env.h"
#include "env/file_system.h"
#include "io/io_queue.h"

namespace lamina::io {

struct ReadRange {
  int64_t offset = 0;
  std::span<std::byte> target;  // says how many bytes
};

// Fills all targets and returns when no transfer is under way any more. They are disjoint in memory; in the file they may lie as they like.
// DataLoss naming offset and lengths when the file is too short. After a failure it is not known which targets are filled. Thread-safe.
absl::Status ReadRanges(env::Env& env, IoQueue& queue, env::File& file, std::span<const ReadRange> ranges);

}  // namespace lamina::io
