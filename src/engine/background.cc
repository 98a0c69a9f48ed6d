// EngineImpl's own threads: saves, beats, the lease.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/engine_impl.h"
#include "engine/in_time.h"

namespace lamina::engine {
namespace {

constexpr std::string_view kWritingPhase = "writing";
constexpr int64_t kLeaseNs = 10 * base::kSecondNs;
constexpr size_t kSavesKeptInStore = 2;  // a rank that is two saves on has seen all that was said before

}  // namespace

void EngineImpl::SaveLoop() {
  while (true) {
    std::shared_ptr<PendingSave> pending;
    bool abandoned = false;
    {
      env::MutexLock lock(mutex_);
      while (pending_.empty() && !stopping_) changed_.Wait(mutex_);
      if (pending_.empty()) return;
      pending = pending_.front();
      abandoned = abandoned_;
    }
    bool committed = false;
    if (abandoned) {
      pending->ticket->End(absl::CancelledError(absl::StrCat("the save of step ", pending->job.step, " was given up at exit")));
    } else {
      // A run tells want of memory as any failure. Where there is none even for that, nobody knows the outcome.
      const absl::Status ran = base::WithinMemory([&] {
        committed = RunSave(*pending);
        return absl::OkStatus();
      });
      if (!ran.ok()) GiveUp(*pending, ran);
    }
    if (agreement_.IsLeader() && !abandoned) Retain(committed);
    {
      env::MutexLock lock(mutex_);
      pending_.pop_front();
      --active_count_;
      changed_.NotifyAll();
    }
  }
}

void EngineImpl::GiveUp(PendingSave& pending, const absl::Status& why) {
  pending.job.snapshot = {};
  {
    env::MutexLock lock(mutex_);
    phase_ = "idle";
    claimed_->parent = kUnknownCommit;  // the next save looks what the head is
  }
  pending.ticket->End(base::Annotate(why, absl::StrCat("the save of step ", pending.job.step, ": outcome unknown")));
}

bool EngineImpl::RunSave(PendingSave& pending) {
  Claimed claimed;
  {
    env::MutexLock lock(mutex_);
    claimed = *claimed_;
  }
  SaveCallbacks callbacks;
  callbacks.may_vote = [this, &pending] {
    env::MutexLock lock(mutex_);
    pending.voted = !pending.given_up && !abandoned_;
    return pending.voted;
  };
  callbacks.abandoned = [this] {
    env::MutexLock lock(mutex_);
    return abandoned_;
  };
  callbacks.set_phase = [this](std::string_view phase) { SetPhase(phase, 0); };
  callbacks.progress = [this](int64_t bytes) { SetPhase(kWritingPhase, bytes); };
  callbacks.post = [this, &pending](EventKind kind, int64_t bytes, int64_t duration_ns, std::string cause) {
    Post(kind, pending.job, bytes, duration_ns, std::move(cause));
    if (kind != EventKind::kWriteDone) return;
    std::optional<std::string> slow = write_speed_.Judge(bytes, duration_ns);
    if (slow.has_value()) Post(EventKind::kIoSlow, pending.job, bytes, duration_ns, *std::move(slow));
  };
  SaveRun run(options_, runtime_, agreement_, log_, claimed, static_cast<uint32_t>(pending.job.number), pending.job, pending.deadline_ns,
              std::move(callbacks));
  const RunResult result = run.Run();
  pending.job.snapshot = {};  // the window's room is free for the next save
  // They mostly differ at each save alike: once will do.
  if (!result.differing.empty() && result.differing != told_differing_) {
    told_differing_ = result.differing;
    Post(EventKind::kReplicaMismatch, pending.job, 0, 0, result.differing);
  }
  Finish(pending, result);
  said_keys_.push_back(pending.job.key);
  if (said_keys_.size() > kSavesKeptInStore) {
    SaveRun::Forget(agreement_, said_keys_.front());
    said_keys_.pop_front();
  }
  return result.ended.kind == Ended::Kind::kCommitted;
}

// Here and not on the task that deletes, since it is one record: a close that has waited for the saves finds the line as `keep` wants it,
// and no restore meets a drop under way. The head, which the next save follows, is never among what is dropped.
void EngineImpl::Retain(bool committed) {
  uint64_t incarnation = 0;
  {
    env::MutexLock lock(mutex_);
    incarnation = claimed_->incarnation;
  }
  if (committed && options_.keep > 0) {
    const absl::Status dropped = base::WithinMemory(
        [&] { return log_.Retain({.keep = options_.keep}, absl::StrCat("keep=", options_.keep), incarnation).status(); });
    const bool fenced = absl::IsAborted(dropped);  // the next save tells
    if (!dropped.ok() && !fenced) TellFallback("steps beyond keep=", options_.keep, " stay: ", dropped.message());
  }
  if (retention_ != nullptr) retention_->SweepSoon(/*at_once=*/!committed || options_.keep > 0);
}

void EngineImpl::Finish(PendingSave& pending, const RunResult& result) {
  const int64_t duration_ns = runtime_.env.MonotonicNs() - pending.job.begun_ns;
  SaveReport report = pending.report;
  report.rank = result.totals;
  report.total = result.ended.total;
  report.durable_s = NsToSeconds(duration_ns);
  report.reason = result.ended.reason;
  const bool committed = result.ended.kind == Ended::Kind::kCommitted;
  const bool skipped = result.ended.kind == Ended::Kind::kSkipped;
  report.outcome = skipped ? Outcome::kSkipped : Outcome::kCommitted;
  bool fenced = false;
  {
    env::MutexLock lock(mutex_);
    phase_ = "idle";
    RememberPlans(pending.job.number, result.plans);
    if (committed) {
      claimed_->parent = result.ended.commit;
      claimed_->restored_step = -1;
      last_save_s_ = NsToSeconds(duration_ns);
    } else if (result.ended.commit == kUnknownCommit || absl::IsFailedPrecondition(result.ended.cause)) {
      claimed_->parent = kUnknownCommit;  // or somebody has dropped it: the next save follows the head
      if (result.ended.commit != kUnknownCommit) claimed_->restored_step = -1;
    }
    fenced = fence_.ok() && !result.ended.fence.ok();
    if (fenced) {
      fence_ = result.ended.fence;
      fenced_number_ = pending.job.number;
    }
  }
  const std::string cause = skipped ? result.ended.reason : std::string(result.ended.cause.message());
  Post(committed ? EventKind::kCommitted
       : skipped ? EventKind::kSaveSkipped
                 : EventKind::kSaveFailed,
       pending.job, result.ended.total.written_bytes, duration_ns, committed ? "" : cause);
  if (fenced) Post(EventKind::kFenced, pending.job, 0, 0, std::string(result.ended.fence.message()));
  if (committed || skipped) {
    pending.ticket->End(report);
  } else {
    pending.ticket->End(base::Annotate(result.ended.cause, absl::StrCat("the save of step ", pending.job.step, " failed")));
  }
}

// The save thread may hang in file I/O. What has not voted by its deadline never will, so nothing of it can be committed; where the vote
// was cast, only the log knows.
void EngineImpl::GiveUpIfLate() {
  const int64_t now_ns = runtime_.env.MonotonicNs();
  std::vector<std::shared_ptr<PendingSave>> late;
  std::vector<std::shared_ptr<PendingSave>> unknown;
  {
    env::MutexLock lock(mutex_);
    for (const std::shared_ptr<PendingSave>& pending : pending_) {
      if (now_ns < pending->deadline_ns) continue;
      if (!pending->voted) {
        pending->given_up = true;
        late.push_back(pending);
      } else if (now_ns >= LaterBy(pending->deadline_ns, kHungNs)) {
        unknown.push_back(pending);
      }
    }
  }
  for (const auto& pending : late) {
    pending->ticket->End(absl::DeadlineExceededError(
        absl::StrCat("the save of step ", pending->job.step, " did not end by its deadline on rank ", options_.rank)));
  }
  for (const auto& pending : unknown) {
    pending->ticket->End(
        absl::UnavailableError(absl::StrCat("the save of step ", pending->job.step, ": outcome unknown, storage hangs on rank ",
                                            options_.rank, "; 'lamina ls' tells whether the step exists")));
  }
  if (late.empty() && unknown.empty()) return;
  env::MutexLock lock(mutex_);
  changed_.NotifyAll();  // to who closes
}

void EngineImpl::BeatLoop() {
  while (true) {
    std::string phase;
    int64_t bytes = 0;
    {
      env::MutexLock lock(mutex_);
      while (active_count_ == 0 && !stopping_) changed_.Wait(mutex_);
      if (stopping_ && pending_.empty()) return;
      phase = phase_;
      bytes = phase_bytes_;
      beat_begun_ns_ = runtime_.env.MonotonicNs();
    }
    if (options_.rank_count > 1) {
      base::WithinMemory([&] {
        agreement_.Beat(phase, bytes);
        return absl::OkStatus();
      }).IgnoreError();  // one beat is not missed
    }
    {
      env::MutexLock lock(mutex_);
      beat_begun_ns_ = -1;
      changed_.NotifyAll();  // to who closes
    }
    const int64_t next_ns = DeadlineAfter(runtime_.env, options_.beat_s);
    env::MutexLock lock(mutex_);
    while (!(stopping_ && pending_.empty()) && changed_.WaitUntil(mutex_, next_ns)) {
    }
  }
}

void EngineImpl::LateLoop() {
  while (true) {
    {
      env::MutexLock lock(mutex_);
      while (pending_.empty() && !stopping_) changed_.Wait(mutex_);
      if (pending_.empty()) return;
    }
    base::WithinMemory([this] {
      GiveUpIfLate();
      TellIfWritingStands();
      return absl::OkStatus();
    }).IgnoreError();  // the next round does it
    const int64_t next_ns = DeadlineAfter(runtime_.env, options_.beat_s);
    env::MutexLock lock(mutex_);
    while (!(stopping_ && pending_.empty()) && changed_.WaitUntil(mutex_, next_ns)) {
    }
  }
}

void EngineImpl::SetPhase(std::string_view phase, int64_t bytes) {
  const int64_t now_ns = runtime_.env.MonotonicNs();
  env::MutexLock lock(mutex_);
  phase_ = phase;
  phase_bytes_ = bytes;
  phase_moved_ns_ = now_ns;
  phase_stands_ = false;
}

// A rank that lives and gets nowhere is no failure, and worth knowing.
void EngineImpl::TellIfWritingStands() {
  std::shared_ptr<PendingSave> pending;
  int64_t bytes = 0;
  int64_t moved_ns = 0;
  const int64_t now_ns = runtime_.env.MonotonicNs();
  {
    env::MutexLock lock(mutex_);
    const bool stands = phase_ == kWritingPhase && now_ns - phase_moved_ns_ >= SecondsToNs(options_.beat_timeout_s);
    if (!stands || phase_stands_ || pending_.empty()) return;
    phase_stands_ = true;
    pending = pending_.front();
    bytes = phase_bytes_;
    moved_ns = phase_moved_ns_;
  }
  Post(EventKind::kIoSlow, pending->job, bytes, now_ns - moved_ns,
       absl::StrCat("the write has not gone on for ", options_.beat_timeout_s, " s, at ", bytes, " bytes"));
}

// A coordinator may wait for a thread of the trainer's that does not come to serve it, such as one that needs the GIL while a long call
// holds it. The rank is alive all the same, and shows it by a file of its own until its beats are taken again.
void EngineImpl::LifeLoop() {
  const int64_t beat_ns = SecondsToNs(options_.beat_s);
  bool shown = false;
  while (true) {
    bool late = false;
    {
      env::MutexLock lock(mutex_);
      while (active_count_ == 0 && !stopping_ && !shown) changed_.Wait(mutex_);
      if (stopping_ && pending_.empty()) break;
      late = beat_begun_ns_ >= 0 && runtime_.env.MonotonicNs() - beat_begun_ns_ >= beat_ns;
    }
    if (late) {
      shown = ShowLife(true) || shown;
    } else if (shown) {
      shown = !ShowLife(false);
    }
    const int64_t next_ns = DeadlineAfter(runtime_.env, options_.beat_s);
    env::MutexLock lock(mutex_);
    while (!(stopping_ && pending_.empty()) && changed_.WaitUntil(mutex_, next_ns)) {
    }
  }
  if (shown) ShowLife(false);  // what stays is removed by the next claim's sweep
}

uint64_t EngineImpl::Incarnation() {
  env::MutexLock lock(mutex_);
  return claimed_.has_value() ? claimed_->incarnation : 0;
}

bool EngineImpl::ShowLife(bool alive) {
  const uint64_t incarnation = Incarnation();
  if (incarnation == 0) return false;
  const absl::Status shown = base::WithinMemory([&] {
    return RunInTime(runtime_.env, DeadlineAfter(runtime_.env, options_.beat_timeout_s), "a sign of life", HoldForStorage(),
                     [&tier = runtime_.tier, name = format::SignOfLifePath(incarnation, options_.rank), alive] {
                       return alive ? tier.Touch(name) : tier.Delete(name);
                     });
  });
  return shown.ok();
}

// The directory is listed and the file opened, so that a network file system asks its server and does not answer from memory.
std::optional<int64_t> EngineImpl::SignOfLife(int32_t rank) {
  const uint64_t incarnation = Incarnation();
  if (incarnation == 0) return std::nullopt;
  const std::string name = format::SignOfLifePath(incarnation, rank);
  const absl::StatusOr<tier::ObjectInfo> info =
      ValueInTime<tier::ObjectInfo>(runtime_.env, DeadlineAfter(runtime_.env, options_.beat_timeout_s), "a sign of life", HoldForStorage(),
                                    [&tier = runtime_.tier, name]() -> absl::StatusOr<tier::ObjectInfo> {
                                      LAMINA_RETURN_IF_ERROR(tier.ListNames(format::kWritersPrefix).status());
                                      LAMINA_RETURN_IF_ERROR(tier.OpenObject(name).status());
                                      return tier.Stat(name);
                                    });
  return info.ok() ? std::optional(info->modified_ns) : std::nullopt;
}

void EngineImpl::LeaseLoop() {
  tier::Log log(runtime_.env, runtime_.tier);
  bool failing = false;
  while (true) {
    uint64_t incarnation = 0;
    {
      env::MutexLock lock(mutex_);
      incarnation = claimed_->incarnation;
    }
    // A lease that could not be renewed is renewed next time; losing it shows as a fence at the next commit. Told once until it goes well.
    const absl::Status renewed = base::WithinMemory([&] { return log.RenewLease(incarnation); });
    if (!renewed.ok() && !failing) {
      TellFallback("the lease on the root is not renewed, and another job may take the root for left: ", renewed.message());
    }
    failing = !renewed.ok();
    const int64_t next_ns = runtime_.env.MonotonicNs() + kLeaseNs;
    env::MutexLock lock(mutex_);
    while (!stopping_ && changed_.WaitUntil(mutex_, next_ns)) {
    }
    if (stopping_) break;
  }
  uint64_t incarnation = 0;
  {
    env::MutexLock lock(mutex_);
    incarnation = claimed_->incarnation;
  }
  // Whoever comes next need not watch a lease that nobody holds; one that stays runs out by itself.
  base::WithinMemory([&] { return runtime_.tier.Delete(format::WriterLeasePath(incarnation)); }).IgnoreError();
  env::MutexLock lock(mutex_);
  --storage_count_;
  changed_.NotifyAll();
}

void EngineImpl::Post(EventKind kind, const SaveJob& job, int64_t bytes, int64_t duration_ns, std::string cause) {
  if (runtime_.events == nullptr) return;
  Event event;
  event.kind = kind;
  event.monotonic_ns = runtime_.env.MonotonicNs();
  event.wall_ns = runtime_.env.WallNs();
  event.rank = options_.rank;
  event.step = job.step;
  event.save_number = job.number;
  event.bytes = bytes;
  event.duration_ns = duration_ns;
  event.cause = std::move(cause);
  runtime_.events->Post(event);
}

}  // namespace lamina::engine
