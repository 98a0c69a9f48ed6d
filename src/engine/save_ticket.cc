#include "engine/save_ticket.h"

#include <utility>

#include "engine/agreement.h"

namespace lamina::engine {

absl::StatusOr<SaveReport> SaveTicket::Wait(double timeout_s) {
  env::MutexLock lock(mutex_);
  if (result_.has_value()) return *result_;  // the engine, and the Env with it, may be gone by now
  const int64_t deadline_ns = timeout_s < 0 ? env::kForeverNs : DeadlineAfter(env_, timeout_s);
  while (!result_.has_value()) {
    if (!ended_.WaitUntil(mutex_, deadline_ns) && !result_.has_value()) {
      return absl::DeadlineExceededError("the save is still under way, and goes on: the wait for it ran out");
    }
  }
  return *result_;
}

bool SaveTicket::Done() {
  env::MutexLock lock(mutex_);
  return result_.has_value();
}

void SaveTicket::End(absl::StatusOr<SaveReport> result) {
  env::MutexLock lock(mutex_);
  if (!result_.has_value()) result_ = std::move(result);
  ended_.NotifyAll();
}

}  // namespace lamina::engine
