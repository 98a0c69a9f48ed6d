#include "engine/drop_watch.h"

#include <algorithm>

#include "base/units.h"
#include "tier/log.h"

namespace lamina::engine {
namespace {

constexpr int64_t kLooksMin = 16;
constexpr int64_t kLookAgainNs = base::kSecondNs;

}  // namespace

bool DropWatch::IsDropped(const format::StepEntry& entry) {
  if (IsKnown(entry)) return true;
  if (!MayLook()) return false;
  Look();
  return IsKnown(entry);
}

bool DropWatch::MayLook() {
  const int64_t now_ns = env_.MonotonicNs();
  const env::MutexLock lock(mutex_);
  if (look_count_ >= kLooksMin && now_ns - looked_ns_ < kLookAgainNs) return false;
  ++look_count_;
  looked_ns_ = now_ns;
  return true;
}

// A record older than the commit, as a stale view may show it, knows nothing of the step.
bool DropWatch::IsKnown(const format::StepEntry& entry) {
  const env::MutexLock lock(mutex_);
  return seen_ >= entry.commit && !std::binary_search(left_.begin(), left_.end(), entry.commit);
}

void DropWatch::Look() {
  tier::Log log(env_, tier_);
  const absl::StatusOr<format::LogRecord> newest = log.Newest(/*damage_ok=*/true);
  if (!newest.ok() || newest->damaged != 0) return;
  std::vector<uint64_t> left;
  left.reserve(newest->steps.size());
  for (const format::StepEntry& step : newest->steps) {
    if (step.state != format::StepState::kDropped) left.push_back(step.commit);
  }
  const env::MutexLock lock(mutex_);
  if (newest->number <= seen_) return;
  seen_ = newest->number;
  left_ = std::move(left);
}

}  // namespace lamina::engine
