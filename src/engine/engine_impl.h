// The engine of one rank: what its caller's thread, its save thread and its beat thread share. Lock order: mutex_ alone; nothing is called
// with it held but Env's waits.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "base/units.h"
#include "device/pinned_window.h"
#include "engine/restore_run.h"
#include "engine/retention.h"
#include "engine/save_run.h"
#include "engine/save_ticket.h"
#include "engine/write_speed.h"
#include "env/sync.h"

namespace lamina::engine {

inline constexpr int64_t kHungNs = 60 * base::kSecondNs;  // behind a save's deadline: by then every rank and the log have settled it

class EngineImpl final : public CoreEngine {
 public:
  EngineImpl(const Options& options, const Runtime& runtime);
  ~EngineImpl() override;

  bool HasThreads() const { return save_task_ != nullptr && beat_task_ != nullptr && late_task_ != nullptr; }  // all that it needs
  absl::StatusOr<std::shared_ptr<SaveHandle>> Save(const SaveRequest& request) override;
  absl::StatusOr<std::unique_ptr<RestoreSession>> BeginRestore(std::optional<int64_t> step) override;
  absl::StatusOr<RestoreInfo> Restore(std::span<const TensorView> targets, std::optional<int64_t> step) override;
  absl::Status Fence() override;
  absl::Status Close(double grace_s) override;
  void Abandon() override;
  bool BeatHangs() override;

 private:
  struct PendingSave {
    SaveJob job;
    std::shared_ptr<SaveTicket> ticket;
    SaveReport report;
    int64_t deadline_ns = 0;
    bool voted = false;     // may_vote was asked and granted
    bool given_up = false;  // the deadline passed before the vote
  };

  // Keeps the beats going while it lives.
  class Active {
   public:
    explicit Active(EngineImpl& engine);
    ~Active();

   private:
    EngineImpl& engine_;
  };

  // Save, in its parts; all on the caller's thread.
  absl::Status CheckMaySave(int64_t step);
  absl::Status CheckNotFenced(int64_t number);
  absl::Status WaitForInFlight(int64_t saves_max);
  std::shared_ptr<const PlanSet> PlansFor(int64_t number);
  void RememberPlans(int64_t number, std::shared_ptr<const PlanSet> plans) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MeetAtRoot(const std::string& key, const std::string& what, const absl::Status& mine, int64_t deadline_ns);
  absl::Status Prologue(SaveJob& job, const absl::Status& mine);
  void ForgetPast();
  absl::StatusOr<std::shared_ptr<const PlanSet>> PlanTogether(const SaveJob& job);
  // The cheap ones of Preflight's checks; a warning becomes an event.
  absl::Status CheckPlace();  // of the leader, before it claims: whether the log can be kept there
  // Collective, when the plan is known and nothing of the state is written.
  absl::Status CheckRoom(const SaveJob& job, int64_t deadline_ns);
  absl::Status TakeSnapshot(SaveJob& job, const SaveRequest& request);
  absl::StatusOr<device::PinnedWindow*> WindowFor(int64_t bytes);
  bool WindowHoldsAll(int64_t bytes) const;
  void SayOneAtATime(int64_t bytes);
  absl::Status HashReplicas(SaveJob& job, std::span<const TensorView> tensors);

  // Restore: whether the step that the session stands at fits the targets of all ranks; the same on all of them. `round` counts steps.
  absl::Status CheckFit(RestoreSession& session, std::span<const TensorView> targets, int round);

  // Kept by work on storage: closing waits for it, and leaves it behind in the end.
  std::shared_ptr<void> HoldForStorage();
  absl::Status WaitForStorage(int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The root.
  absl::StatusOr<Claimed> EnsureClaimed(bool for_first_save);
  absl::StatusOr<Claimed> Claim(bool for_first_save);  // on one thread at a time
  absl::Status ShareClaim(const std::string& key, const Patience& patience, const absl::Status& mine, bool for_first_save);

  void SaveLoop();
  bool RunSave(PendingSave& pending);  // true: committed
  void GiveUp(PendingSave& pending, const absl::Status& why);
  void Retain(bool committed);
  void Finish(PendingSave& pending, const RunResult& result);
  void BeatLoop();
  void LifeLoop();
  bool ShowLife(bool alive);  // by this rank's file beside the lease; false: there is nothing to show it in, or storage does not answer
  std::optional<int64_t> SignOfLife(int32_t rank);
  uint64_t Incarnation();  // 0: nothing is claimed
  void LeaseLoop();
  void LateLoop();
  void GiveUpIfLate();
  void SetPhase(std::string_view phase, int64_t bytes);
  void TellIfWritingStands();
  void Post(EventKind kind, const SaveJob& job, int64_t bytes, int64_t duration_ns, std::string cause);

  // Untold when there is no memory to say it in: the work that it is about goes on.
  template <typename... Pieces>
  void TellFallback(const Pieces&... pieces) {
    base::WithinMemory([&] {
      Post(EventKind::kFallback, SaveJob{}, 0, 0, absl::StrCat(pieces...));
      return absl::OkStatus();
    }).IgnoreError();
  }

  const Options options_;
  const Runtime runtime_;
  Agreement agreement_;

  std::unique_ptr<device::PinnedWindow> window_;  // used by the caller's thread; outlives the saves that hold leases of it
  int64_t window_snapshot_bytes_max_ = 0;         // a larger snapshot has a new one made, unless memory_bytes says how large it is

  env::Mutex mutex_;
  env::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t give_up_ns_ ABSL_GUARDED_BY(mutex_) = -1;    // when closing waits for storage no longer; -1: it does not wait yet
  int32_t storage_count_ ABSL_GUARDED_BY(mutex_) = 0;  // pieces of work on storage that closing waits for, the lease among them
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status fence_ ABSL_GUARDED_BY(mutex_);         // Aborted once a newer incarnation has the root
  int64_t fenced_number_ ABSL_GUARDED_BY(mutex_) = 0;  // the save that told all ranks so
  int32_t active_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string phase_ ABSL_GUARDED_BY(mutex_) = "idle";
  int64_t beat_begun_ns_ ABSL_GUARDED_BY(mutex_) = -1;  // of a beat that the coordinator has not taken yet; -1: there is none
  int64_t phase_bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // done of it
  int64_t phase_moved_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // when it was last seen to go on
  bool phase_stands_ ABSL_GUARDED_BY(mutex_) = false;   // and has been told so
  std::deque<std::shared_ptr<PendingSave>> pending_ ABSL_GUARDED_BY(mutex_);  // the first one runs
  std::optional<Claimed> claimed_ ABSL_GUARDED_BY(mutex_);
  bool claiming_ ABSL_GUARDED_BY(mutex_) = false;    // a thread is at it, perhaps one that nobody waits for any more
  bool line_known_ ABSL_GUARDED_BY(mutex_) = false;  // of the leader: a restore has ended well, or there was nothing to restore
  std::map<int64_t, std::shared_ptr<const PlanSet>> plans_after_ ABSL_GUARDED_BY(mutex_);  // of saves that have ended, by number
  std::shared_ptr<const PlanSet> first_plans_ ABSL_GUARDED_BY(mutex_);                     // agreed on in the last prologue
  int64_t first_plans_number_ ABSL_GUARDED_BY(mutex_) = 0;                                 // the save of that prologue
  double last_save_s_ ABSL_GUARDED_BY(mutex_) = 0;

  const std::shared_ptr<tier::Swept> swept_;

  // Of the save thread alone.
  tier::Log log_;
  WriteSpeed write_speed_;
  std::string told_differing_;         // of buffers, the last time
  std::deque<std::string> said_keys_;  // of saves whose messages others may still read

  // Of the caller's thread alone.
  int64_t save_count_ = 0;
  int64_t restore_count_ = 0;
  int64_t last_step_ = -1;
  int64_t restored_step_ = -1;
  bool half_restored_ = false;          // the last restore has touched its targets, and has not ended well
  bool root_is_shared_ = false;         // all ranks have seen so
  std::vector<std::string> past_keys_;  // of restores, and of saves that failed before they ran: what begins the keys

  std::unique_ptr<env::Task> save_task_;
  std::unique_ptr<env::Task> beat_task_;
  std::unique_ptr<env::Task> life_task_;   // where there are several ranks
  std::unique_ptr<env::Task> late_task_;   // apart from the beats, which go through files where ranks meet in a directory, and may hang
  std::unique_ptr<env::Task> lease_task_;  // these two of the leader, once it has claimed
  std::unique_ptr<Retention> retention_;
};

}  // namespace lamina::engine
