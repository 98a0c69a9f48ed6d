#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/serial.h"
#include "base/status.h"
#include "engine/engine_impl.h"
#include "engine/in_time.h"
#include "engine/memory_budget.h"
#include "engine/preflight.h"
#include "engine/runtime.h"
#include "engine/shared_path.h"
#include "env/no_thread.h"
#include "format/version.h"
#include "tier/patient_tier.h"

namespace lamina::engine {
namespace {

constexpr double kSaveDeadlineFactor = 10;  // times the last save, or kSaveDeadlineS, whichever is larger
constexpr size_t kKeptPlans = 4;            // more than saves in flight look back at
constexpr int64_t kPageBytes = 4096;        // leases of the window are whole pages
constexpr int kProbeTries = 5;
constexpr int64_t kProbePauseNs = 100 * base::kMillisecondNs;
constexpr int64_t kStorageGraceNs = 5 * base::kSecondNs;  // for what is about to end when an engine closes

struct Room {
  std::optional<env::FileSystemInfo> capacity;
  int64_t steps_held = 0;  // with those that wait to be deleted
};

absl::StatusOr<Room> LookAtRoom(tier::Tier& tier) {
  Room room;
  LAMINA_ASSIGN_OR_RETURN(room.capacity, tier.Capacity());
  const absl::StatusOr<std::vector<std::string>> steps = tier.ListNames(format::kStepsPrefix);
  if (steps.ok()) room.steps_held = static_cast<int64_t>(steps->size());
  return room;
}

}  // namespace

EngineImpl::Active::Active(EngineImpl& engine) : engine_(engine) {
  env::MutexLock lock(engine_.mutex_);
  ++engine_.active_count_;
  engine_.changed_.NotifyAll();
}

EngineImpl::Active::~Active() {
  env::MutexLock lock(engine_.mutex_);
  --engine_.active_count_;
}

EngineImpl::EngineImpl(const Options& options, const Runtime& runtime)
    : options_(options),
      runtime_(runtime),
      agreement_(runtime.env, runtime.coordinator, options_, [this](int32_t rank) { return SignOfLife(rank); }),
      mutex_(runtime.env),
      changed_(runtime.env),
      swept_(std::make_shared<tier::Swept>(runtime.env)),
      log_(runtime.env, runtime.tier, swept_, runtime.log_records_kept) {
  save_task_ = runtime_.env.Start("lamina-save", [this] { SaveLoop(); });
  beat_task_ = runtime_.env.Start("lamina-beat", [this] { BeatLoop(); });
  if (options_.rank_count > 1) life_task_ = runtime_.env.Start("lamina-life", [this] { LifeLoop(); });
  late_task_ = runtime_.env.Start("lamina-late", [this] { LateLoop(); });
}

EngineImpl::~EngineImpl() {
  {
    env::MutexLock lock(mutex_);
    stopping_ = closed_ = true;
    changed_.NotifyAll();
  }
  if (lease_task_ != nullptr) lease_task_->Join();
  if (save_task_ != nullptr) save_task_->Join();
  if (beat_task_ != nullptr) beat_task_->Join();
  if (life_task_ != nullptr) life_task_->Join();
  if (late_task_ != nullptr) late_task_->Join();
  retention_.reset();
  // What a deadline left behind stands on this too. Whoever must not wait for it leaves the engine behind as well, as Close() told him to.
  env::MutexLock lock(mutex_);
  while (storage_count_ > 0 && changed_.WaitUntil(mutex_, env::kForeverNs)) {
  }
}

absl::StatusOr<std::unique_ptr<CoreEngine>> NewEngine(const Options& options, const Runtime& runtime) {
  LAMINA_RETURN_IF_ERROR(options.Validate());
  auto engine = std::make_unique<EngineImpl>(options, runtime);
  if (!engine->HasThreads()) return env::NoThread("saving");
  return engine;
}

absl::Status EngineImpl::Close(double grace_s) {
  const int64_t deadline_ns = grace_s < 0 ? env::kForeverNs : DeadlineAfter(runtime_.env, grace_s);
  Retention* retention = nullptr;
  {
    env::MutexLock lock(mutex_);
    closed_ = true;
    const auto without_outcome = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::count_if(pending_.begin(), pending_.end(), [](const auto& pending) { return !pending->ticket->Done(); });
    };
    while (without_outcome() > 0) {
      if (!changed_.WaitUntil(mutex_, deadline_ns) && without_outcome() > 0) {
        return absl::DeadlineExceededError(
            absl::StrCat("closing: saves are still under way: ", pending_.size(), ", the first of step ", pending_.front()->job.step));
      }
    }
    stopping_ = true;
    changed_.NotifyAll();
    if (give_up_ns_ < 0) give_up_ns_ = LaterBy(runtime_.env.MonotonicNs(), kStorageGraceNs);
    // A save that has its outcome may still have to ask for a sweep.
    while (!pending_.empty() && changed_.WaitUntil(mutex_, std::min(deadline_ns, give_up_ns_))) {
    }
    retention = retention_.get();
  }
  if (retention != nullptr) retention->Stop();
  env::MutexLock lock(mutex_);
  LAMINA_RETURN_IF_ERROR(WaitForStorage(deadline_ns));
  // The saves have their outcomes, whatever becomes of a last beat.
  while (beat_begun_ns_ >= 0 && changed_.WaitUntil(mutex_, std::min(deadline_ns, give_up_ns_))) {
  }
  return absl::OkStatus();
}

bool EngineImpl::BeatHangs() {
  env::MutexLock lock(mutex_);
  return beat_begun_ns_ >= 0;
}

// For what is about to end, and hangs where storage does.
absl::Status EngineImpl::WaitForStorage(int64_t deadline_ns) {
  while (!pending_.empty() || storage_count_ > 0) {
    const bool changed = changed_.WaitUntil(mutex_, std::min(deadline_ns, give_up_ns_));
    if (changed || (pending_.empty() && storage_count_ == 0)) continue;
    if (runtime_.env.MonotonicNs() < give_up_ns_) return absl::DeadlineExceededError("closing: storage has not answered yet");
    return absl::UnavailableError(absl::StrCat("closing: '", runtime_.tier.Describe(), "' does not answer on rank ", options_.rank,
                                               ": what hangs there is left behind, and the lease on the root runs out by itself"));
  }
  return absl::OkStatus();
}

std::shared_ptr<void> EngineImpl::HoldForStorage() {
  {
    env::MutexLock lock(mutex_);
    ++storage_count_;
  }
  return std::shared_ptr<void>(nullptr, [this](void*) {
    env::MutexLock lock(mutex_);
    --storage_count_;
    changed_.NotifyAll();
  });
}

void EngineImpl::Abandon() {
  env::MutexLock lock(mutex_);
  abandoned_ = closed_ = true;
  changed_.NotifyAll();
}

absl::Status EngineImpl::CheckMaySave(int64_t step) {
  if (options_.mode == Mode::kRead) return absl::FailedPreconditionError("a checkpointer of mode 'read' does not save");
  if (step < 0) return absl::InvalidArgumentError(absl::StrCat("step ", step, " is negative"));
  const bool again = step == restored_step_ && last_step_ < 0;
  if (step < restored_step_ || (step <= std::max(last_step_, restored_step_) && !again)) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step, " does not follow step ", std::max(last_step_, restored_step_),
                                                   "; to go back, restore(step=...) first"));
  }
  if (half_restored_) {
    return absl::FailedPreconditionError("the last restore failed with targets filled, so the state may be a mixture: restore again first");
  }
  env::MutexLock lock(mutex_);
  return closed_ ? absl::FailedPreconditionError("this checkpointer is closed") : absl::OkStatus();
}

// Of saves that have ended on every rank by the time that this one is called, so that all ranks raise at the same call. The one in between
// has looked at the log before it wrote anything.
absl::Status EngineImpl::CheckNotFenced(int64_t number) {
  env::MutexLock lock(mutex_);
  if (fence_.ok() || fenced_number_ > number - options_.saves_in_flight_max) return absl::OkStatus();
  return base::Annotate(fence_, "a newer incarnation has the root, and this job saves no more");
}

absl::Status EngineImpl::WaitForInFlight(int64_t saves_max) {
  env::MutexLock lock(mutex_);
  while (static_cast<int64_t>(pending_.size()) > saves_max) {
    const int64_t deadline_ns = LaterBy(pending_.front()->deadline_ns, kHungNs);
    if (!changed_.WaitUntil(mutex_, deadline_ns) && runtime_.env.MonotonicNs() >= deadline_ns) {
      return absl::DeadlineExceededError(absl::StrCat("the save of step ", pending_.front()->job.step, " hangs on rank ", options_.rank,
                                                      " beyond its deadline: its storage does not answer"));
    }
  }
  return absl::OkStatus();
}

// Saves in flight may end with other plans on a slow rank than on a fast one, so a save looks only at what had ended everywhere when it was
// called.
std::shared_ptr<const PlanSet> EngineImpl::PlansFor(int64_t number) {
  env::MutexLock lock(mutex_);
  const int64_t settled = number - options_.saves_in_flight_max;
  if (first_plans_ == nullptr || settled < first_plans_number_) return first_plans_;
  const auto found = plans_after_.find(settled);
  return found == plans_after_.end() ? nullptr : found->second;
}

void EngineImpl::RememberPlans(int64_t number, std::shared_ptr<const PlanSet> plans) {
  plans_after_[number] = std::move(plans);
  while (plans_after_.size() > kKeptPlans) plans_after_.erase(plans_after_.begin());
}

absl::StatusOr<std::shared_ptr<SaveHandle>> EngineImpl::Save(const SaveRequest& request) {
  const int64_t begun_ns = runtime_.env.MonotonicNs();
  // From here on a rank does not raise alone: what only this one knows ends the handle, so that the ranks go on side by side.
  LAMINA_RETURN_IF_ERROR(CheckMaySave(request.step));
  const int64_t number = save_count_++;
  last_step_ = request.step;
  if (const absl::Status room = WaitForInFlight(options_.saves_in_flight_max - 1); !room.ok()) {
    {
      // The other ranks know this save, and later ones look back at it: as one that failed and kept its plans.
      env::MutexLock lock(mutex_);
      if (!pending_.empty()) RememberPlans(number, pending_.front()->job.plans);
    }
    auto ticket = std::make_shared<SaveTicket>(runtime_.env);
    ticket->End(FromRank(room, options_.rank, "waiting"));
    return std::static_pointer_cast<SaveHandle>(ticket);
  }
  LAMINA_RETURN_IF_ERROR(CheckNotFenced(number));

  const auto active = std::make_shared<Active>(*this);
  auto pending = std::make_shared<PendingSave>();
  SaveJob& job = pending->job;
  job.number = number;
  job.step = request.step;
  job.begun_ns = begun_ns;
  job.topology = request.topology;
  job.key = absl::StrCat("save/", restore_count_, "/", request.step);
  Post(EventKind::kSaveBegin, job, 0, 0, "");

  job.status = request.refused;
  if (job.status.ok()) {
    absl::StatusOr<plan::RankDescription> description = plan::Describe(request.tensors, request.topology);
    job.status = description.status();
    if (description.ok()) job.description = *std::move(description);
  }
  job.plans = PlansFor(job.number);
  if (job.plans == nullptr) {
    const absl::Status met = Prologue(job, job.status);
    if (!met.ok()) past_keys_.push_back(job.key);
    LAMINA_RETURN_IF_ERROR(met);
  }
  if (job.status.ok()) job.status = TakeSnapshot(job, request);
  const int64_t staged_ns = runtime_.env.MonotonicNs();
  if (job.status.ok()) Post(EventKind::kSnapshotDone, job, job.snapshot.layout.data_bytes, staged_ns - begun_ns, "");

  pending->ticket = std::make_shared<SaveTicket>(runtime_.env);
  pending->report.step = request.step;
  pending->report.hold_s = pending->report.stage_s = NsToSeconds(staged_ns - begun_ns);
  env::MutexLock lock(mutex_);
  const double save_s =
      options_.save_timeout_s > 0 ? options_.save_timeout_s : std::max(kSaveDeadlineS, kSaveDeadlineFactor * last_save_s_);
  const int64_t save_ns = SecondsToNs(save_s);
  pending->deadline_ns = save_ns > env::kForeverNs - begun_ns ? env::kForeverNs : begun_ns + save_ns;
  pending_.push_back(pending);
  ++active_count_;  // until it has ended
  changed_.NotifyAll();
  return std::static_pointer_cast<SaveHandle>(pending->ticket);
}

// One at a time: a claim that storage held up, so that its caller gave up, may come back at any time and is the job's claim then. A second
// one beside it would fence the first, and the job with it.
absl::StatusOr<Claimed> EngineImpl::EnsureClaimed(bool for_first_save) {
  {
    env::MutexLock lock(mutex_);
    while (claiming_ && !stopping_) changed_.Wait(mutex_);
    if (claiming_) return absl::CancelledError("this checkpointer is closed");
    claiming_ = true;
  }
  const absl::Cleanup end = [this] {
    env::MutexLock lock(mutex_);
    claiming_ = false;
    changed_.NotifyAll();
  };
  return Claim(for_first_save);
}

absl::StatusOr<Claimed> EngineImpl::Claim(bool for_first_save) {
  std::optional<Claimed> before;
  {
    env::MutexLock lock(mutex_);
    if (claimed_.has_value() && (line_known_ || !for_first_save)) return *claimed_;
    before = claimed_;  // by a restore that failed, when there is any
  }
  tier::PatientTier tier(runtime_.env, runtime_.tier, tier::LogPatience(runtime_.tier, SecondsToNs(options_.restore_retry_s)));
  tier::Log log(runtime_.env, tier);
  Claimed claimed;
  if (options_.mode == Mode::kTrain && !before.has_value()) LAMINA_RETURN_IF_ERROR(CheckPlace());
  LAMINA_ASSIGN_OR_RETURN(claimed.store, OpenRoot(options_, log));
  if (options_.mode == Mode::kRead) return claimed;
  const auto check = [&](const format::LogRecord& record) -> absl::Status {
    if (!for_first_save || record.head == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("'", runtime_.tier.Describe(), "' holds steps already, newest ",
                                                      tier::LineOf(record).front().attempt.step,
                                                      ", and nothing was restored: call restore(state) first to go on from there, "
                                                      "restore(state, step=...) to go back, or use another root"));
  };
  // Before the claim, so that a mistake fences nobody, and after it, since only then nobody else commits.
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord newest, log.Newest(/*damage_ok=*/true));
  LAMINA_RETURN_IF_ERROR(check(newest));
  if (before.has_value()) {
    env::MutexLock lock(mutex_);
    line_known_ = true;
    return *before;
  }
  tier::ClaimOptions options;
  options.run_id = options_.run_id;
  options.takeover = options_.takeover;
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord opened, log.Claim(options));
  LAMINA_RETURN_IF_ERROR(check(opened));
  claimed.incarnation = opened.number;
  claimed.parent = opened.head;
  auto retention = std::make_unique<Retention>(runtime_.env, runtime_.tier, options_, claimed.incarnation, swept_, HoldForStorage(),
                                               [this](const std::string& cause) { Post(EventKind::kFallback, SaveJob{}, 0, 0, cause); });
  env::MutexLock lock(mutex_);
  claimed_ = claimed;
  line_known_ = for_first_save;
  if (stopping_) return claimed;  // the claim took so long that nobody waits for it any more
  lease_task_ = runtime_.env.Start("lamina-lease", [this] { LeaseLoop(); });
  if (lease_task_ == nullptr) {  // the next try claims anew
    claimed_.reset();
    return env::NoThread("the lease on the root");
  }
  ++storage_count_;
  retention_ = std::move(retention);
  return claimed;
}

// Once, before the first claim.
absl::Status EngineImpl::MeetAtRoot(const std::string& key, const std::string& what, const absl::Status& mine, int64_t deadline_ns) {
  if (root_is_shared_ || options_.rank_count == 1) return absl::OkStatus();
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  absl::Status met = RunInTime(runtime_.env, deadline_ns, what, HoldForStorage(), [this, key, what, mine, begun] {
    *begun = true;
    return CheckSharedPath(options_, runtime_, agreement_, key, what, mine);
  });
  if (absl::IsResourceExhausted(met) && !*begun) {
    // For want of a thread. The others hear of it; nothing is asked of storage then.
    met = CheckSharedPath(options_, runtime_, agreement_, key, what, mine.ok() ? met : mine);
  }
  LAMINA_RETURN_IF_ERROR(met);
  root_is_shared_ = true;
  return absl::OkStatus();
}

// The first save, and the first after a restore: the ranks meet, the leader claims the root, and all make the plan from what all hold.
absl::Status EngineImpl::Prologue(SaveJob& job, const absl::Status& mine) {
  const std::string what = absl::StrCat("save of step ", job.step, ", first meeting");
  const int64_t deadline_ns = DeadlineAfter(runtime_.env, options_.save_timeout_s > 0 ? options_.save_timeout_s : kSaveDeadlineS);
  LAMINA_RETURN_IF_ERROR(MeetAtRoot(job.key + "/root", what, mine, deadline_ns));
  const auto claim = [this, what, deadline_ns]() -> absl::StatusOr<std::string> {
    LAMINA_ASSIGN_OR_RETURN(const Claimed claimed, ValueInTime<Claimed>(runtime_.env, deadline_ns, what, HoldForStorage(),
                                                                        [this] { return EnsureClaimed(/*for_first_save=*/true); }));
    base::Writer writer;
    writer.Put(claimed.store.store_id);
    writer.Put(claimed.store.fingerprint_seed);
    writer.Put(claimed.incarnation);
    return writer.Take();
  };
  absl::StatusOr<std::string> answer = agreement_.Assemble(job.key + "/first", what, options_.begin_timeout_s, mine, claim);
  LAMINA_RETURN_IF_ERROR(answer.status());
  ForgetPast();
  base::Reader reader(*answer);
  Claimed claimed;
  claimed.store.store_id = reader.Get<format::Digest>();
  claimed.store.fingerprint_seed = reader.Get<uint64_t>();
  claimed.incarnation = reader.Get<uint64_t>();
  if (!reader.AtEnd()) return absl::InternalError(absl::StrCat(what, ": rank 0 sent a claim that cannot be read"));
  LAMINA_ASSIGN_OR_RETURN(job.plans, PlanTogether(job));
  LAMINA_RETURN_IF_ERROR(CheckRoom(job, deadline_ns));
  env::MutexLock lock(mutex_);
  if (!claimed_.has_value()) claimed_ = claimed;
  first_plans_ = job.plans;
  first_plans_number_ = job.number;
  return absl::OkStatus();
}

// When the ranks have come together: each is past what it did before.
void EngineImpl::ForgetPast() {
  for (const std::string& key : past_keys_) agreement_.Forget(key + "/");
  past_keys_.clear();
}

absl::StatusOr<std::shared_ptr<const PlanSet>> EngineImpl::PlanTogether(const SaveJob& job) {
  const std::string what = absl::StrCat("save of step ", job.step, ", the descriptions");
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          agreement_.Exchange(job.key + "/first/description", plan::EncodeDescription(job.description),
                                              {.what = what, .deadline_ns = DeadlineAfter(runtime_.env, kSaveDeadlineS)}));
  auto plans = std::make_shared<PlanSet>();
  for (const std::string& text : texts) {
    LAMINA_ASSIGN_OR_RETURN(plans->descriptions.emplace_back(), plan::DecodeDescription(base::AsBytes(text)));
  }
  LAMINA_ASSIGN_OR_RETURN(plans->plan, plan::PlanSave(plans->descriptions));
  return std::shared_ptr<const PlanSet>(std::move(plans));
}

absl::Status EngineImpl::CheckPlace() {
  absl::Status placed;
  // A network file system may lose track of a file: what may pass is tried again.
  for (int tries = 0; tries < kProbeTries; ++tries) {
    if (tries > 0) runtime_.env.SleepNs(kProbePauseNs);
    const std::optional<tier::FileProbe> probe = runtime_.tier.Probe();
    if (!probe.has_value()) return absl::OkStatus();
    placed = FirstFailure(JudgeProbe(*probe, options_.root), [](const std::string&) {});
    if (!absl::IsUnavailable(placed)) break;
  }
  return placed;
}

absl::Status EngineImpl::CheckRoom(const SaveJob& job, int64_t deadline_ns) {
  const std::string what = absl::StrCat("save of step ", job.step, ", the room for it");
  return agreement_
      .Assemble(job.key + "/first/room", what, kSaveDeadlineS, absl::OkStatus(),
                [&]() -> absl::StatusOr<std::string> {
                  const absl::StatusOr<Room> room = ValueInTime<Room>(runtime_.env, deadline_ns, what, HoldForStorage(),
                                                                      [&tier = runtime_.tier] { return LookAtRoom(tier); });
                  if (absl::IsDeadlineExceeded(room.status())) return room.status();
                  if (!room.ok() || !room->capacity.has_value()) return std::string();  // one that does not tell is tried
                  const StateSize size{job.plans->plan.state_bytes, 0};
                  const auto warn = [&](std::string text) { Post(EventKind::kFallback, job, 0, 0, std::move(text)); };
                  LAMINA_RETURN_IF_ERROR(FirstFailure(JudgeRoom(*room->capacity, options_.root, options_, size, room->steps_held), warn));
                  return std::string();
                })
      .status();
}

absl::StatusOr<device::PinnedWindow*> EngineImpl::WindowFor(int64_t bytes) {
  if (window_ == nullptr || (options_.memory_bytes == 0 && bytes > window_snapshot_bytes_max_)) {
    // The state has grown since the window was made, as it does once an optimizer has its moments: a new one, when nothing lies in the old
    // one.
    LAMINA_RETURN_IF_ERROR(WaitForInFlight(0));
    window_.reset();
    LAMINA_ASSIGN_OR_RETURN(const int64_t window_bytes, WindowBytes(runtime_.env, options_, bytes));
    LAMINA_ASSIGN_OR_RETURN(window_, device::PinnedWindow::Create(runtime_.env, window_bytes));
    const int64_t grown_bytes = static_cast<int64_t>(static_cast<double>(bytes) * kSnapshotFactor);
    window_snapshot_bytes_max_ = std::max(window_->bytes() / options_.saves_in_flight_max, std::min(window_->bytes(), grown_bytes));
    if (!WindowHoldsAll(bytes)) SayOneAtATime(bytes);
  }
  // What the third call does where the window holds two.
  if (!WindowHoldsAll(bytes)) LAMINA_RETURN_IF_ERROR(WaitForInFlight(0));
  return window_.get();
}

// Whether all saves that may be in flight find room.
bool EngineImpl::WindowHoldsAll(int64_t bytes) const {
  return base::AlignUp(bytes, kPageBytes) <= window_->bytes() / options_.saves_in_flight_max;
}

void EngineImpl::SayOneAtATime(int64_t bytes) {
  // What memory= allows is alike on all ranks.
  if (options_.memory_bytes > 0 && !agreement_.IsLeader()) return;
  Post(EventKind::kFallback, SaveJob{}, window_->bytes(), 0,
       absl::StrCat(
           "the memory budget holds one copy of the state (", window_->bytes(), " bytes of this rank, a copy takes ", bytes,
           "): save() waits while another save is under way; for two, set memory=",
           static_cast<int64_t>(static_cast<double>(bytes) * kSnapshotFactor) * options_.saves_in_flight_max * options_.local_rank_count,
           " (bytes of all ranks of this machine)"));
}

absl::Status EngineImpl::HashReplicas(SaveJob& job, std::span<const TensorView> tensors) {
  const plan::RankPlan& mine = job.plans->plan.ranks[static_cast<size_t>(options_.rank)];
  uint64_t seed = 0;
  {
    env::MutexLock lock(mutex_);
    seed = claimed_->store.fingerprint_seed;
  }
  for (const plan::ReplicaBox& replica : mine.replicas) {
    format::Digest& digest = job.replica_digests.emplace_back();
    if (job.plans->plan.replica_groups[static_cast<size_t>(replica.group)].owner == options_.rank)
      continue;  // its pack has the fingerprints
    const TensorView& tensor = tensors[static_cast<size_t>(replica.box.entry)];
    LAMINA_ASSIGN_OR_RETURN(digest, snapshot::HashInPlace(tensor.boxes[static_cast<size_t>(replica.box.box)], tensor.dtype, seed));
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::TakeSnapshot(SaveJob& job, const SaveRequest& request) {
  const plan::RankDescription& known = job.plans->descriptions[static_cast<size_t>(options_.rank)];
  job.description_changed = job.description != known;
  if (!job.description_changed) {
    job.copied = job.plans->plan.ranks[static_cast<size_t>(options_.rank)].writes;
    LAMINA_RETURN_IF_ERROR(HashReplicas(job, request.tensors));
  } else {
    for (size_t entry = 0; entry < request.tensors.size(); ++entry) {
      const TensorView& tensor = request.tensors[entry];
      if (!tensor.alias_of.empty()) continue;
      for (size_t box = 0; box < tensor.boxes.size(); ++box) job.copied.push_back({static_cast<int32_t>(entry), static_cast<int32_t>(box)});
    }
  }
  std::vector<snapshot::SnapshotItem> items;
  for (const plan::BoxReference& box : job.copied) {
    const TensorView& tensor = request.tensors[static_cast<size_t>(box.entry)];
    items.push_back({&tensor.boxes[static_cast<size_t>(box.box)], tensor.dtype, {}});
  }
  for (const BlobView& blob : request.blobs) {
    const bool common = blob.name != "place";
    if (static_cast<int64_t>(blob.bytes.size()) > format::kMetadataBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("the plain values '", blob.name, "' take ", blob.bytes.size(),
                                                       " bytes, more than the ", format::kMetadataBytesMax,
                                                       " that a step can hold: hand large arrays over as tensors"));
    }
    if (blob.name == "tree") job.tree_digest = format::Checksum128(base::AsBytes(blob.bytes));
    if (common && !agreement_.IsLeader()) continue;  // one copy counts, and the votes tell whether all agree
    job.blobs.push_back({blob.name, 0, blob.bytes.size()});
    items.push_back({nullptr, DType::kUint8, blob.bytes});
  }
  const int64_t bytes = snapshot::PlanLayout(items).data_bytes;
  LAMINA_ASSIGN_OR_RETURN(device::PinnedWindow * window, WindowFor(bytes));
  const int64_t deadline_ns = DeadlineAfter(runtime_.env, std::max(kSaveDeadlineS, options_.save_timeout_s));
  LAMINA_ASSIGN_OR_RETURN(job.snapshot, snapshot::Take(runtime_.device, *window, items, deadline_ns));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RestoreSession>> EngineImpl::BeginRestore(std::optional<int64_t> step) {
  LAMINA_RETURN_IF_ERROR(WaitForInFlight(0));
  {
    env::MutexLock lock(mutex_);
    if (closed_) return absl::FailedPreconditionError("this checkpointer is closed");
    if (!fence_.ok()) return base::Annotate(fence_, "a newer incarnation has the root, and this job must not restore as its trainer");
  }
  const int64_t number = restore_count_++;
  const auto active = std::make_shared<Active>(*this);
  const std::string key = absl::StrCat("restore/", number);
  const absl::Cleanup end = [&] { past_keys_.push_back(key); };
  LAMINA_RETURN_IF_ERROR(
      MeetAtRoot(key + "/root", "restore, choosing the step", absl::OkStatus(), DeadlineAfter(runtime_.env, options_.restore_seconds_max)));
  auto run = std::make_unique<RestoreRun>(
      options_, runtime_, agreement_, number, step, [this] { return EnsureClaimed(/*for_first_save=*/false); },
      [this] { half_restored_ = true; },
      [this](const Claimed& claimed) {
        half_restored_ = false;
        restored_step_ = claimed.restored_step;
        last_step_ = -1;
        env::MutexLock lock(mutex_);
        line_known_ = true;
        if (options_.mode == Mode::kTrain) claimed_ = claimed;
        first_plans_ = nullptr;
        plans_after_.clear();
      },
      active, [this] { return HoldForStorage(); });
  LAMINA_RETURN_IF_ERROR(run->Begin());
  ForgetPast();
  return std::unique_ptr<RestoreSession>(std::move(run));
}

}  // namespace lamina::engine
