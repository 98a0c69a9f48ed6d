#include "device/host_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace lamina::device {
namespace {

// A piece is large against the hand-off and small against what the last thread to finish may lag behind.
constexpr int64_t kPieceBytes = 2 * base::kMiB;
// Up to this the calling thread copies faster than another one wakes.
constexpr int64_t kAtOnceBytesMax = 32 * base::kKiB;
constexpr int64_t kChaosDelayNsMax = 200 * base::kMicrosecondNs;

}  // namespace

class HostDevice::HostEvent final : public Event {
 public:
  HostEvent(HostDevice& device, int64_t ordinal) : device_(device), ordinal_(ordinal) {}

  bool Complete() override {
    env::MutexLock lock(device_.mutex_);
    return device_.DoneBefore(ordinal_);
  }

  absl::Status Wait() override {
    device_.env_.Operation("device.wait");
    device_.WaitBefore(ordinal_);
    return absl::OkStatus();
  }

 private:
  HostDevice& device_;
  const int64_t ordinal_;
};

HostDevice::HostDevice(env::Env& env, const HostDeviceOptions& options)
    : env_(env), options_(options), mutex_(env), changed_(env), random_(options.chaos_seed.value_or(0)) {
  const int32_t task_count = options_.chaos_seed.has_value() ? 1 : options_.threads - 1;
  for (int32_t i = 0; i < task_count; ++i) {
    // Where the system grants no thread, the one that waits copies alone.
    if (std::unique_ptr<env::Task> task = env_.Start("lamina-copy", [this] { Work(); }); task != nullptr) tasks_.push_back(std::move(task));
  }
}

HostDevice::~HostDevice() {
  {
    env::MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (const std::unique_ptr<env::Task>& task : tasks_) task->Join();
}

absl::Status HostDevice::EnqueueGather(const StridedSource& source, int64_t element_begin, int64_t element_count, std::byte* target) {
  env_.Operation("device.enqueue");
  LAMINA_ASSIGN_OR_RETURN(GatherPlan plan, GatherPlan::Make(source));
  LAMINA_RETURN_IF_ERROR(plan.CheckRange(element_begin, element_count));
  const int64_t bytes = element_count * source.element_bytes;
  if (bytes == 0) return absl::OkStatus();
  if (target == nullptr) return absl::InternalError(absl::StrCat("a null target was handed over for ", bytes, " bytes"));
  if (options_.chaos_seed.has_value()) {
    std::memset(target, static_cast<int>(kPoison), static_cast<size_t>(bytes));
  } else if (bytes <= kAtOnceBytesMax || tasks_.empty()) {
    plan.Gather(element_begin, element_count, target);
    return absl::OkStatus();
  }
  const auto shared = std::make_shared<const GatherPlan>(std::move(plan));
  const int64_t piece_elements = kPieceBytes / source.element_bytes;
  {
    env::MutexLock lock(mutex_);
    for (int64_t done = 0; done < element_count; done += piece_elements) {
      const int64_t count = std::min(piece_elements, element_count - done);
      unfinished_.insert(next_ordinal_);
      pending_.push_back({next_ordinal_++, shared, element_begin + done, count, target + done * source.element_bytes});
    }
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Event>> HostDevice::Record() {
  env_.Operation("device.record");
  env::MutexLock lock(mutex_);
  return std::make_unique<HostEvent>(*this, next_ordinal_);
}

void HostDevice::Work() {
  while (const std::optional<Piece> piece = WaitForPiece()) {
    if (options_.chaos_seed.has_value()) {
      int64_t delay_ns = 0;
      {
        env::MutexLock lock(mutex_);
        delay_ns = static_cast<int64_t>(random_() % static_cast<uint64_t>(kChaosDelayNsMax));
      }
      env_.SleepNs(delay_ns);
    }
    Copy(*piece);
  }
}

std::optional<HostDevice::Piece> HostDevice::WaitForPiece() {
  env::MutexLock lock(mutex_);
  while (pending_.empty() && !stopping_) changed_.Wait(mutex_);
  if (stopping_) return std::nullopt;
  return TakePiece();
}

HostDevice::Piece HostDevice::TakePiece() {
  const size_t position = options_.chaos_seed.has_value() ? random_() % pending_.size() : 0;
  Piece piece = std::move(pending_[position]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(position));
  return piece;
}

void HostDevice::Copy(const Piece& piece) {
  piece.source->Gather(piece.element_begin, piece.element_count, piece.target);
  {
    env::MutexLock lock(mutex_);
    unfinished_.erase(piece.ordinal);
  }
  changed_.NotifyAll();
}

bool HostDevice::DoneBefore(int64_t ordinal) { return unfinished_.empty() || *unfinished_.begin() >= ordinal; }

void HostDevice::WaitBefore(int64_t ordinal) {
  for (;;) {
    std::optional<Piece> piece;
    {
      env::MutexLock lock(mutex_);
      const bool helps = !options_.chaos_seed.has_value() || tasks_.empty();
      while (!DoneBefore(ordinal) && (!helps || pending_.empty())) changed_.Wait(mutex_);
      if (DoneBefore(ordinal)) return;
      piece = TakePiece();
    }
    Copy(*piece);
  }
}

}  // namespace lamina::device
