// The only memory that devices and queues touch: page-aligned, allocated once, not inherited by forked children, handed out in leases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "env/env.h"

namespace lamina::device {

class PinnedWindow;

// A part of the window. Move-only; gives itself back when destroyed. The window outlives it.
class WindowLease {
 public:
  WindowLease() = default;
  WindowLease(WindowLease&& other) noexcept;
  WindowLease& operator=(WindowLease&& other) noexcept;
  ~WindowLease();
  std::span<std::byte> bytes() const { return bytes_; }   // page-aligned

 private:
  friend class PinnedWindow;
  PinnedWindow* window_ = nullptr;
  std::span<std::byte> bytes_;
};

// Thread-safe. Leases are granted in the order they were asked for.
class PinnedWindow {
 public:
  // Maps `bytes` (rounded up to pages), touches every page, MADV_DONTFORK and huge pages where the system has them. ResourceExhausted with the figure.
  static absl::StatusOr<std::unique_ptr<PinnedWindow>> Create(env::Env& env, int64_t bytes);
  ~PinnedWindow();
  int64_t bytes() const;
  int64_t leased_bytes() const;
  // Waits for room until `deadline_ns`: DeadlineExceeded. More than the window holds at all: ResourceExhausted, saying what to set.
  absl::StatusOr<WindowLease> Acquire(int64_t bytes, int64_t deadline_ns);
};

}  // namespace lamina::device
