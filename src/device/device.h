// Copies between device memory and the window, in stream order. HostDevice needs no GPU; a CUDA module implements the same interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lamina/tensor_view.h"

namespace lamina::device {

// A strided rectangle of elements in memory the trainer owns.
struct StridedSource {
  const std::byte* data = nullptr;
  int64_t element_bytes = 0;
  std::span<const int64_t> extent;
  std::span<const int64_t> strides;  // in elements
};

// Marks a point in a stream: complete once all that was enqueued before it is.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Complete() = 0;
  virtual absl::Status Wait() = 0;  // through Env
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Enqueues: elements [element_begin, element_begin + element_count) of the source in row-major order, packed, to `target`. The source may
  // be changed by the trainer only after the event recorded behind it is complete.
  virtual absl::Status EnqueueGather(const StridedSource& source, int64_t element_begin, int64_t element_count, std::byte* target) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> Record() = 0;
};

}  // namespace lamina::device
