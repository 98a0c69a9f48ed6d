// The only memory that devices and queues touch: page-aligned, allocated once, not inherited by forked children, handed out in leases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "env/env.h"
#include "env/sync.h"

namespace lamina::device {

class PinnedWindow;

// A part of the window. Move-only; gives itself back when destroyed. The window outlives it.
class WindowLease {
 public:
  WindowLease() = default;
  WindowLease(WindowLease&& other) noexcept;
  WindowLease& operator=(WindowLease&& other) noexcept;
  ~WindowLease();
  std::span<std::byte> bytes() const { return bytes_; }  // page-aligned

 private:
  friend class PinnedWindow;
  PinnedWindow* window_ = nullptr;
  std::span<std::byte> bytes_;
};

// Thread-safe. Leases are granted in the order they were asked for.
class PinnedWindow {
 public:
  // Maps `bytes` (rounded up to pages) and takes no memory yet; MADV_DONTFORK and huge pages where the system has them. InvalidArgument
  // unless `bytes` is more than 0; ResourceExhausted with the figure.
  static absl::StatusOr<std::unique_ptr<PinnedWindow>> Create(env::Env& env, int64_t bytes);
  PinnedWindow(const PinnedWindow&) = delete;
  PinnedWindow& operator=(const PinnedWindow&) = delete;
  ~PinnedWindow();
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }
  int64_t leased_bytes() const;   // whole pages
  int64_t waiting_count() const;  // of those that stand in Acquire
  // One unbroken range, its content unspecified, as low in the window as there is room. Pages that no lease has had before are touched
  // here, so that the window takes as much memory as was ever leased at once. Waits for room until `deadline_ns` (of Env::MonotonicNs):
  // DeadlineExceeded. More than the window holds at all, or than the system has free: ResourceExhausted, saying what to set.
  absl::StatusOr<WindowLease> Acquire(int64_t bytes, int64_t deadline_ns);

 private:
  friend class WindowLease;
  class Turn;

  PinnedWindow(env::Env& env, std::span<std::byte> memory) : memory_(memory), mutex_(env), changed_(env) {}
  absl::StatusOr<int64_t> WaitForRoom(int64_t bytes, int64_t deadline_ns);  // its offset, leased
  absl::Status TouchFirst(int64_t begin, int64_t end);
  void GiveBack(std::span<std::byte> bytes);
  // The lowest offset with `bytes` free behind it.
  std::optional<int64_t> FindRoom(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::span<std::byte> memory_;
  mutable env::Mutex mutex_;
  env::CondVar changed_;
  std::map<int64_t, int64_t> leased_ ABSL_GUARDED_BY(mutex_);  // offset → bytes; what lies between is free
  int64_t touched_bytes_ ABSL_GUARDED_BY(mutex_) = 0;          // from the window's start
  std::list<const Turn*> turns_ ABSL_GUARDED_BY(mutex_);       // who waits, oldest first
};

}  // namespace lamina::device
