// A Device whose memory is this process's own.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/gather.h"
#include "env/env.h"
#include "env/sync.h"

namespace lamina::device {

struct HostDeviceOptions {
  int32_t threads = 2;  // that copy, the one that waits for an event included; two fill the memory bus. 1: copies are done when enqueued
  // Set in tests and the simulator: one task does all copies, late and out of order as the seed says, and targets hold kPoison until then.
  std::optional<uint64_t> chaos_seed = std::nullopt;
};

// Small copies are done at once; large ones are cut in pieces that tasks started at construction and the thread in Event::Wait share.
// Thread-safe. Outlives its events. Destruction gives up the copies that nobody waited for: targets must outlive the device or be waited
// for.
class HostDevice final : public Device {
 public:
  static constexpr std::byte kPoison{0xDB};

  explicit HostDevice(env::Env& env, const HostDeviceOptions& options = {});
  ~HostDevice() override;

  std::string name() const override { return "host"; }
  absl::Status EnqueueGather(const StridedSource& source, int64_t element_begin, int64_t element_count, std::byte* target) override;
  absl::StatusOr<std::unique_ptr<Event>> Record() override;

 private:
  class HostEvent;

  struct Piece {
    int64_t ordinal = 0;
    std::shared_ptr<const GatherPlan> source;
    int64_t element_begin = 0;
    int64_t element_count = 0;
    std::byte* target = nullptr;
  };

  void Work();
  std::optional<Piece> WaitForPiece();
  Piece TakePiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Copy(const Piece& piece);
  bool DoneBefore(int64_t ordinal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitBefore(int64_t ordinal);

  env::Env& env_;
  const HostDeviceOptions options_;
  env::Mutex mutex_;
  env::CondVar changed_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t next_ordinal_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Piece> pending_ ABSL_GUARDED_BY(mutex_);
  std::set<int64_t> unfinished_ ABSL_GUARDED_BY(mutex_);  // ordinals of pieces not yet copied: those pending and those under way
  std::vector<std::unique_ptr<env::Task>> tasks_;         // last: they use all of the above
};

}  // namespace lamina::device
