#include "tier/reader_lease.h"

#include "base/units.h"
#include "format/paths.h"

namespace lamina::tier {
namespace {

constexpr int64_t kTouchNs = 30 * base::kSecondNs;

}  // namespace

ReaderLease::ReaderLease(env::Env& env, Tier& tier)
    : env_(env),
      tier_(tier),
      name_(format::ReaderLeasePath(env::RandomHex(env, format::kNonceDigits))),
      status_(tier.Touch(name_)),
      mutex_(env),
      changed_(env) {
  if (status_.ok()) task_ = env_.Start("lamina-reader", [this] { Keep(); });
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
  while (true) {
    const int64_t next_ns = env_.MonotonicNs() + kTouchNs;
    {
      env::MutexLock lock(mutex_);
      while (!ended_ && changed_.WaitUntil(mutex_, next_ns)) {
      }
      if (ended_) break;
    }
    tier_.Touch(name_).IgnoreError();  // the next one is in time too: a reader counts as gone after 120 s
  }
  tier_.Delete(name_).IgnoreError();  // one that stays runs out by itself
}

}  // namespace lamina::tier
