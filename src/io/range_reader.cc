#include "io/range_reader.h"

#include <algorithm>

#include "base/status.h"

namespace lamina::io {

absl::Status ReadRanges(env::Env& env, IoQueue& queue, env::File& file, std::span<const ReadRange> ranges) {
  IoBatch batch(env);
  for (ReadRange range : ranges) {
    while (!range.target.empty()) {
      if (!batch.status().ok()) return batch.Wait();
      const auto piece = range.target.first(std::min(range.target.size(), static_cast<size_t>(kRequestBytesMax)));
      queue.Submit(batch, {.file = &file, .offset = range.offset, .source = {}, .target = piece});
      range.offset += static_cast<int64_t>(piece.size());
      range.target = range.target.subspan(piece.size());
    }
  }
  return batch.Wait();
}

}  // namespace lamina::io
