#include "engine/open.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/units.h"
#include "coord/file_meeting.h"
#include "coord/in_process.h"
#include "device/host_device.h"
#include "engine/agreement.h"
#include "engine/in_time.h"
#include "engine/inert_in_child.h"
#include "engine/runtime.h"
#include "env/posix_env.h"
#include "hooks/dispatcher.h"
#include "hooks/verdicts.h"
#include "io/thread_queue.h"
#include "tier/file_tier.h"

namespace lamina {
namespace engine {
namespace {

constexpr int64_t kEventsMax = 4096;
constexpr int64_t kLeaveNs = 5 * base::kSecondNs;  // a directory of files that took the saves' talk answers sooner
constexpr int32_t kDepthFactor = 4;                // requests that wait for each thread

// In the order of construction: what is later stands on what is before.
struct Parts {
  Parts(env::Env& shared_env, const Options& options)
      : env(shared_env),
        queue(env, options.io_threads, kDepthFactor * options.io_threads),
        tier(env, options.root, queue),
        alone(env, hub),
        device(env),
        events(env, kEventsMax, SecondsToNs(options.verdict_timeout_s)),
        verdicts(env, SecondsToNs(options.verdict_timeout_s), [this, rank = options.rank](std::string line) {
          Event event;
          event.kind = EventKind::kFallback;
          event.rank = rank;
          event.cause = std::move(line);
          events.Post(std::move(event));
        }) {}

  env::Env& env;
  io::ThreadQueue queue;
  tier::FileTier tier;
  coord::InProcessHub hub;
  coord::InProcessCoordinator alone;
  std::shared_ptr<coord::FileMeeting> meeting;  // null: this rank is alone. Shared with a leave that is left behind
  device::HostDevice device;
  hooks::Dispatcher events;
  hooks::Verdicts verdicts;
  std::unique_ptr<CoreEngine> engine;
};

// Everything is the engine's; closing ends what it stands on too.
class StandingEngine : public Engine {
 public:
  explicit StandingEngine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

  absl::StatusOr<std::shared_ptr<SaveHandle>> Save(const SaveRequest& request) override {
    return base::WithinMemory([&] { return parts_->engine->Save(request); });
  }
  absl::StatusOr<std::unique_ptr<RestoreSession>> BeginRestore(std::optional<int64_t> step) override {
    return base::WithinMemory([&] { return parts_->engine->BeginRestore(step); });
  }
  absl::StatusOr<RestoreInfo> Restore(std::span<const TensorView> targets, std::optional<int64_t> step) override {
    return base::WithinMemory([&] { return parts_->engine->Restore(targets, step); });
  }
  absl::Status Fence() override {
    return base::WithinMemory([&] { return parts_->engine->Fence(); });
  }
  absl::Status Close(double grace_s) override {
    return base::WithinMemory([&]() -> absl::Status {
      LAMINA_RETURN_IF_ERROR(parts_->engine->Close(grace_s));
      if (closed_) return absl::OkStatus();
      parts_->events.Stop();
      if (parts_->meeting != nullptr) Leave();
      closed_ = true;
      return absl::OkStatus();
    });
  }
  void Abandon() override { parts_->engine->Abandon(); }

 protected:
  std::unique_ptr<Parts> parts_;

  // Work that uses the Env goes on behind a deadline.
  bool LeavesWorkBehind() const { return left_behind_.use_count() > 1 || parts_->events.LeavesBehind(); }

 private:
  // The saves have their outcomes, whatever becomes of the files that the ranks spoke through; a later launch removes those.
  void Leave() {
    RunInTime(parts_->env, parts_->env.MonotonicNs() + kLeaveNs, "leaving the coordination directory", left_behind_,
              [meeting = parts_->meeting] { return meeting->Leave(); })
        .IgnoreError();
  }

  const std::shared_ptr<void> left_behind_ = std::make_shared<char>();
  bool closed_ = false;
};

absl::StatusOr<std::unique_ptr<Parts>> MakeParts(env::Env& env, Options options, std::vector<std::shared_ptr<Hook>> hooks,
                                                 std::vector<std::shared_ptr<VerdictHook>> verdict_hooks) {
  LAMINA_RETURN_IF_ERROR(options.Validate());
  if (options.rank_count > 1 && options.coordination_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("option coordination_dir is not set, and rank_count is ", options.rank_count,
                                                   ": the ranks of a job find each other in a directory that all of them see"));
  }
  auto parts = std::make_unique<Parts>(env, options);
  coord::Coordinator* coordinator = &parts->alone;
  if (options.rank_count > 1) {
    LAMINA_ASSIGN_OR_RETURN(parts->meeting, coord::FileMeeting::Join(env, {options.coordination_dir, options.coordination_prefix,
                                                                           options.rank, options.rank_count, options.begin_timeout_s}));
    options.coordination_prefix = parts->meeting->nonce();
    coordinator = &parts->meeting->coordinator();
  }
  const bool has_hooks = !hooks.empty();
  for (std::shared_ptr<Hook>& hook : hooks) parts->events.AddHook(std::move(hook));
  if (has_hooks) LAMINA_RETURN_IF_ERROR(parts->events.Start());
  for (size_t i = 0; i < verdict_hooks.size(); ++i) parts->verdicts.Add(absl::StrCat("hook ", i), std::move(verdict_hooks[i]));
  LAMINA_ASSIGN_OR_RETURN(parts->engine, NewEngine(options, {env, parts->tier, *coordinator, parts->device,
                                                             has_hooks ? &parts->events : nullptr, &parts->verdicts}));
  return parts;
}

// Keeps its Env, and may wait when it is destroyed.
class ProcessEngine final : public StandingEngine {
 public:
  ProcessEngine(std::shared_ptr<env::Env> env, std::unique_ptr<Parts> parts, double exit_grace_s)
      : StandingEngine(std::move(parts)), env_(std::move(env)), exit_grace_s_(exit_grace_s) {}
  ~ProcessEngine() override {
    bool closed = Close(exit_grace_s_).ok();
    if (!closed) {
      Abandon();
      closed = Close(0).ok();
    }
    // What hangs, in storage or in a beat, must not hang the program's end: what it stands on stays for as long as the process does.
    const bool hangs = !closed || parts_->engine->BeatHangs();
    if (hangs || LeavesWorkBehind()) static_cast<void>(new std::shared_ptr<env::Env>(env_));
    if (hangs) static_cast<void>(parts_.release());
    parts_.reset();  // before the env that it stands on
  }

 private:
  const std::shared_ptr<env::Env> env_;
  const double exit_grace_s_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> OpenOn(env::Env& env, const Options& options, std::vector<std::shared_ptr<Hook>> hooks,
                                               std::vector<std::shared_ptr<VerdictHook>> verdict_hooks) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<Parts> parts, MakeParts(env, options, std::move(hooks), std::move(verdict_hooks)));
  return std::make_unique<StandingEngine>(std::move(parts));
}

}  // namespace engine

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(const Options& options, std::vector<std::shared_ptr<Hook>> hooks,
                                                     std::vector<std::shared_ptr<VerdictHook>> verdict_hooks) {
  return base::WithinMemory([&]() -> absl::StatusOr<std::unique_ptr<Engine>> {
    const std::shared_ptr<env::Env> env = env::NewPosixEnv();
    LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<engine::Parts> parts,
                            engine::MakeParts(*env, options, std::move(hooks), std::move(verdict_hooks)));
    return engine::InertInChild(env, std::make_unique<engine::ProcessEngine>(env, std::move(parts), options.exit_grace_s));
  });
}

}  // namespace lamina
