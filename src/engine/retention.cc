#include "engine/retention.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/agreement.h"
#include "env/no_thread.h"

namespace lamina::engine {
namespace {

constexpr int64_t kSweepNs = 60 * base::kSecondNs;
constexpr int64_t kStopNs = 2 * base::kSecondNs;
constexpr int64_t kAbandonedNs = 3600 * base::kSecondNs;  // between looks for abandoned steps that may go

}  // namespace

Retention::Retention(env::Env& env, tier::Tier& tier, const Options& options, uint64_t incarnation, std::shared_ptr<tier::Swept> swept,
                     std::shared_ptr<void> hold, std::function<void(const std::string&)> tell)
    : env_(env),
      tier_(tier),
      options_(options),
      incarnation_(incarnation),
      swept_(std::move(swept)),
      hold_(std::move(hold)),
      tell_(std::move(tell)),
      mutex_(env),
      changed_(env) {
  task_ = env_.Start("lamina-retention", [this] { Run(); });
  if (task_ != nullptr) return;
  tell_(absl::StrCat("files that nothing needs stay on disk: ", env::NoThread("deleting").message()));
  hold_.reset();
  env::MutexLock lock(mutex_);
  ended_ = true;
}

Retention::~Retention() {
  {
    env::MutexLock lock(mutex_);
    stop_ns_ = std::min<int64_t>(stop_ns_, 0);
    changed_.NotifyAll();
  }
  if (task_ != nullptr) task_->Join();
}

void Retention::SweepSoon(bool at_once) {
  const int64_t now_ns = env_.MonotonicNs();
  env::MutexLock lock(mutex_);
  wanted_ = wanted_ || at_once || now_ns >= next_idle_ns_;
  changed_.NotifyAll();
}

void Retention::Stop() {
  const int64_t deadline_ns = env_.MonotonicNs() + kStopNs;
  env::MutexLock lock(mutex_);
  stop_ns_ = std::min(stop_ns_, deadline_ns);
  changed_.NotifyAll();
  while (!ended_ && changed_.WaitUntil(mutex_, deadline_ns)) {
  }
}

bool Retention::MayGoOn() {
  const int64_t now_ns = env_.MonotonicNs();
  env::MutexLock lock(mutex_);
  return now_ns < stop_ns_;
}

// False when there will be none.
bool Retention::WaitForWork() {
  env::MutexLock lock(mutex_);
  while (!wanted_ && stop_ns_ == env::kForeverNs && changed_.WaitUntil(mutex_, next_ns_)) {
  }
  if (!wanted_ && stop_ns_ != env::kForeverNs) return false;
  wanted_ = false;
  return true;
}

void Retention::Run() {
  tier::Log log(env_, tier_, swept_);
  while (!fenced_ && WaitForWork()) Sweep(log);
  hold_.reset();
  env::MutexLock lock(mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

// A step that was rolled back by mistake can be gone back to for a while; without `keep` nothing is dropped unasked.
absl::Status Retention::DropAbandoned(tier::Log& log) {
  if (options_.keep == 0 || env_.MonotonicNs() < next_abandoned_ns_) return absl::OkStatus();
  next_abandoned_ns_ = env_.MonotonicNs() + kAbandonedNs;
  return log.Retain({.keep = 0, .abandoned_ns = SecondsToNs(options_.abandoned_grace_s)}, "abandoned", incarnation_).status();
}

void Retention::Sweep(tier::Log& log) {
  const absl::Status dropped = base::WithinMemory([&] { return DropAbandoned(log); });
  tier::SweepOptions sweep;
  sweep.reader_grace_ns = SecondsToNs(options_.gc_grace_s);
  sweep.may_go_on = [this] { return MayGoOn(); };
  const absl::StatusOr<tier::SweepReport> swept = base::WithinMemory([&] { return log.Sweep(incarnation_, sweep); });
  const int64_t now_ns = env_.MonotonicNs();
  int64_t next_ns = env::kForeverNs;
  if (swept.ok()) {
    for (const tier::WaitingStep& step : swept->waiting) {
      next_ns = std::min(next_ns, now_ns + (step.readers.empty() ? std::min(step.grace_left_ns, kSweepNs) : kSweepNs));
    }
  }
  fenced_ = absl::IsAborted(dropped) || absl::IsAborted(swept.status());
  const absl::Status& failed = swept.ok() ? dropped : swept.status();
  const auto tell = [&] {
    std::string failure = failed.ok() || fenced_ ? "" : std::string(failed.message());
    if (!failure.empty() && failure != told_) tell_(absl::StrCat("files that nothing needs stay on disk: ", failure));
    told_ = std::move(failure);
    return absl::OkStatus();
  };
  base::WithinMemory(tell).IgnoreError();  // the next sweep tells it
  env::MutexLock lock(mutex_);
  next_ns_ = next_ns;
  next_idle_ns_ = now_ns + kSweepNs;
}

}  // namespace lamina::engine
