#include "tier/reader_lease.h"

#include <utility>

#include "base/memory.h"
#include "base/units.h"
#include "env/no_thread.h"
#include "format/paths.h"

namespace lamina::tier {
namespace {

constexpr int64_t kTouchNs = 30 * base::kSecondNs;

}  // namespace

ReaderLease::ReaderLease(env::Env& env, Tier& tier, std::function<void(const absl::Status&)> tell)
    : env_(env),
      tier_(tier),
      name_(format::ReaderLeasePath(env::RandomHex(env, format::kNonceDigits))),
      tell_(std::move(tell)),
      mutex_(env),
      changed_(env),
      status_(tier.Touch(name_)) {
  if (!status_.ok()) return;
  task_ = env_.Start("lamina-reader", [this] { Keep(); });
  if (task_ != nullptr) return;
  status_ = env::NoThread("a reader's registration");
  tier_.Delete(name_).IgnoreError();
}

absl::Status ReaderLease::status() const {
  env::MutexLock lock(mutex_);
  return status_;
}

void ReaderLease::End() {
  {
    env::MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }
  task_.reset();
}

void ReaderLease::Keep() {
  bool failing = false;
  while (true) {
    const int64_t next_ns = env_.MonotonicNs() + kTouchNs;
    {
      env::MutexLock lock(mutex_);
      while (!ended_ && changed_.WaitUntil(mutex_, next_ns)) {
      }
      if (ended_) break;
    }
    const absl::Status touched = base::WithinMemory([this] { return tier_.Touch(name_); });
    // One that fails does no harm, the next one is in time too: a reader counts as gone after 120 s.
    if (!touched.ok() && !failing && tell_) tell_(touched);
    failing = !touched.ok();
    env::MutexLock lock(mutex_);
    status_ = touched;
  }
  base::WithinMemory([this] { return tier_.Delete(name_); }).IgnoreError();  // one that stays runs out by itself
}

}  // namespace lamina::tier
