#include "engine/restore_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/serial.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/filler.h"
#include "engine/in_time.h"
#include "tier/log.h"
#include "tier/patient_tier.h"

namespace lamina::engine {
namespace {

constexpr int64_t kTellingNs = 5 * base::kSecondNs;
constexpr std::string_view kFilled = " (the targets of this rank are filled: do not train on them)";
constexpr std::string_view kPartlyFilled = " (the targets of this rank are partly filled: do not train on them)";

// What a rank reads of a step before it looks at any tensor.
struct Opened {
  std::shared_ptr<StepReader> reader;
  std::vector<StoredBlob> blobs;
};

absl::Status Suffixed(const absl::Status& status, std::string_view suffix) {
  absl::Status suffixed(status.code(), absl::StrCat(status.message(), std::string(suffix)));
  status.ForEachPayload([&suffixed](absl::string_view url, const absl::Cord& payload) { suffixed.SetPayload(url, payload); });
  return suffixed;
}

}  // namespace

RestoreRun::RestoreRun(const Options& options, const Runtime& runtime, Agreement& agreement, int64_t number,
                       std::optional<int64_t> wanted_step, std::function<absl::StatusOr<Claimed>()> claim, std::function<void()> touches,
                       std::function<void(const Claimed&)> done, std::shared_ptr<void> keep_active,
                       std::function<std::shared_ptr<void>()> hold)
    : options_(options),
      runtime_(runtime),
      agreement_(agreement),
      number_(number),
      key_(absl::StrCat("restore/", number)),
      begun_ns_(runtime.env.MonotonicNs()),
      wanted_step_(wanted_step),
      touches_(std::move(touches)),
      done_(std::move(done)),
      keep_active_(std::move(keep_active)),
      hold_(std::move(hold)),
      deadline_ns_(LaterBy(begun_ns_, SecondsToNs(options.restore_seconds_max))),
      chooser_{runtime.env,
               runtime.tier,
               runtime.verdicts,
               wanted_step,
               SecondsToNs(options.restore_retry_s),
               std::move(claim),
               Teller(EventKind::kRestorePassedOver),
               Teller(EventKind::kFallback),
               LeaseFails()} {}

std::function<void(int64_t, std::string)> RestoreRun::Teller(EventKind kind) const {
  return [events = runtime_.events, rank = agreement_.rank(), number = number_, kind](int64_t step, std::string cause) {
    if (events == nullptr) return;
    Event event;
    event.kind = kind;
    event.rank = rank;
    event.step = step;
    event.save_number = number;
    event.cause = std::move(cause);
    events->Post(std::move(event));
  };
}

std::function<void(const absl::Status&)> RestoreRun::LeaseFails() const {
  return [tell = Teller(EventKind::kFallback), step = wanted_step_.value_or(-1)](const absl::Status& why) {
    tell(step, absl::StrCat("the registration of this restore as a reader is not renewed, and files may be removed while it reads: ",
                            why.message()));
  };
}

Patience RestoreRun::Waiting(std::string_view what) const {
  return {.what = absl::StrCat("restore, ", std::string(what)), .deadline_ns = deadline_ns_};
}

// Runs work on storage that may never answer; `work` borrows nothing of this restore.
absl::Status RestoreRun::InTime(std::string_view what, std::function<absl::Status()> work) {
  return RunInTime(runtime_.env, deadline_ns_, absl::StrCat("restore, ", std::string(what)), hold_(), std::move(work));
}

absl::Status RestoreRun::Begin() {
  Post(EventKind::kRestoreBegin, wanted_step_.value_or(-1), 0, "");
  absl::StatusOr<std::string> text = agreement_.Assemble(
      key_, "restore, choosing the step", options_.begin_timeout_s, absl::OkStatus(), [this]() -> absl::StatusOr<std::string> {
        LAMINA_ASSIGN_OR_RETURN(const StepChoice choice,
                                ValueInTime<StepChoice>(runtime_.env, deadline_ns_, "restore, choosing the step", hold_(),
                                                        [chooser = chooser_] { return chooser.Choose(); }));
        lease_ = choice.lease;
        if (!lease_->status().ok() && !absl::IsPermissionDenied(lease_->status())) {
          Post(
              EventKind::kFallback, wanted_step_.value_or(-1), 0,
              absl::StrCat("this restore cannot register as a reader, so that gc_grace_s alone protects it: ", lease_->status().message()));
        }
        return Encode(choice);
      });
  if (!text.ok()) {
    Close();
    return text.status();
  }
  LAMINA_ASSIGN_OR_RETURN(choice_, DecodeStepChoice(*text));
  line_ = choice_.line;
  if (choice_.candidates.empty()) {
    Close();
    done_({.store = choice_.store, .incarnation = choice_.incarnation});
    return absl::OkStatus();
  }
  return OpenCandidate();
}

absl::Status RestoreRun::ReadDescription() {
  const auto open = [&env = runtime_.env, &tier = runtime_.tier, store = choice_.store, entry = choice_.candidates[candidate_],
                     retry_s = options_.restore_retry_s, tell = Teller(EventKind::kFallback)]() -> absl::StatusOr<Opened> {
    const auto waiting = [tell, step = entry.attempt.step](std::string what) { tell(step, std::move(what)); };
    Opened opened;
    LAMINA_ASSIGN_OR_RETURN(opened.reader, StepReader::Open(env, tier, store, entry, retry_s, waiting));
    const format::Catalog& catalog = opened.reader->catalog();
    for (uint32_t writer = 0; writer < catalog.writers.size(); ++writer) LAMINA_RETURN_IF_ERROR(opened.reader->IndexOf(writer).status());
    for (const format::CatalogBlob& blob : catalog.blobs) {
      LAMINA_ASSIGN_OR_RETURN(std::string bytes, opened.reader->ReadBlob(blob));
      opened.blobs.push_back({blob.name, static_cast<int32_t>(blob.rank), std::move(bytes)});
    }
    return opened;
  };
  LAMINA_ASSIGN_OR_RETURN(Opened opened, ValueInTime<Opened>(runtime_.env, deadline_ns_, "restore, opening", hold_(), open));
  reader_ = std::move(opened.reader);
  blobs_ = std::move(opened.blobs);
  const format::Catalog& catalog = reader_->catalog();
  step_ = reader_->entry().attempt.step;
  rank_count_ = static_cast<int32_t>(catalog.rank_count);
  topology_ = catalog.topology;
  tensors_.clear();
  for (const format::CatalogTensor& tensor : catalog.tensors)
    tensors_.push_back({tensor.name, tensor.dtype, tensor.global_shape, tensor.alias_of});
  return absl::OkStatus();
}

absl::Status RestoreRun::OpenCandidate() {
  while (true) {
    const absl::Status mine = ReadDescription();
    LAMINA_ASSIGN_OR_RETURN(const Together together, Agree("opening", mine));
    if (together == Together::kGoOn) return absl::OkStatus();
  }
}

// One vote. The leader's verdict is everybody's: go on, an older step, or the first rank's status.
absl::StatusOr<RestoreRun::Together> RestoreRun::Agree(std::string_view what, const absl::Status& mine,
                                                       const std::function<absl::Status()>& leader_last) {
  const std::string key = absl::StrCat(key_, "/", round_++, "/", std::string(what));
  Patience patience = Waiting(what);
  // A rank that gives up at the deadline still tells so: to the leader, which then tells the others.
  patience.deadline_ns = LaterBy(patience.deadline_ns, (agreement_.IsLeader() ? 1 : 2) * kTellingNs);
  absl::Status verdict;
  size_t next = candidate_;  // moves on where the step is damaged
  std::vector<PassedOver> refused;
  const auto lead = [&]() -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> votes, agreement_.HearAll(key, patience));
    absl::Status damage;
    for (const std::string& vote : votes) {
      const absl::Status status = DecodeStatus(vote);
      if (!status.ok() && !IsDamage(status)) return status;
      if (damage.ok()) damage = status;
    }
    if (damage.ok()) return leader_last ? FromRank(leader_last(), 0, what) : absl::OkStatus();
    if (wanted_step_.has_value()) return damage;
    const size_t older = chooser_.NextAllowed(choice_.candidates, candidate_ + 1, refused);
    if (older == choice_.candidates.size()) return base::Annotate(damage, "no step of this root proves whole; the last one tried");
    next = older;
    return damage;
  };
  absl::Status said = agreement_.Say(absl::StrCat(key, "/", agreement_.rank()), EncodeStatus(FromRank(mine, agreement_.rank(), what)));
  if (said.ok() && agreement_.IsLeader()) {
    verdict = lead();
    base::Writer writer;
    writer.PutText(EncodeStatus(verdict));
    writer.Put<uint64_t>(next);
    Put(writer, refused);
    said = agreement_.Say(key + "/verdict", writer.Take());
  } else if (said.ok()) {
    absl::StatusOr<std::string> text = agreement_.Hear(key + "/verdict", 0, patience);
    said = text.status();
    if (text.ok()) {
      base::Reader reader(*text);
      verdict = DecodeStatus(reader.GetText());
      next = reader.Get<uint64_t>();
      refused = GetPassedOver(reader);
      if (!reader.AtEnd() || next >= choice_.candidates.size())
        said = absl::InternalError("restore: rank 0 sent a verdict that cannot be read");
    }
  }
  if (!said.ok()) verdict = said, next = candidate_;
  if (verdict.ok()) return Together::kGoOn;
  if (next == candidate_) {
    Close();
    return verdict;
  }
  const int64_t step = choice_.candidates[candidate_].attempt.step;
  Post(EventKind::kRestorePassedOver, step, 0, std::string(verdict.message()));
  choice_.passed_over.push_back({step, std::string(verdict.message())});
  choice_.passed_over.insert(choice_.passed_over.end(), refused.begin(), refused.end());
  candidate_ = next;
  return Together::kOlder;
}

absl::StatusOr<bool> RestoreRun::Holds(std::string_view name) {
  if (reader_ == nullptr) return absl::FailedPreconditionError("this restore has ended or found nothing");
  const format::CatalogTensor* const tensor = reader_->FindTensor(name);
  if (tensor == nullptr) return absl::NotFoundError(absl::StrCat("step ", step_, " has no tensor '", std::string(name), "'"));
  const absl::Status known = InTime("looking at chunk tables", [reader = reader_, tensor] { return reader->CheckTables(*tensor); });
  if (!known.ok() && !IsDamage(known)) return known;
  if (damage_.ok()) damage_ = known;
  return known.ok();
}

absl::StatusOr<RestoreSession::Progress> RestoreRun::Fill(std::span<const TensorView> targets) {
  if (reader_ == nullptr || filled_bytes_.has_value()) return absl::FailedPreconditionError("this restore has ended or found nothing");
  // It may outlive this call, where storage hangs: then it keeps its hands off the targets from the moment that it is given up.
  const auto filler = std::make_shared<Filler>(runtime_.env, reader_, targets, options_.io_threads);
  absl::Status mine = InTime("checking", [filler, damage = std::exchange(damage_, absl::OkStatus())]() -> absl::Status {
    LAMINA_RETURN_IF_ERROR(damage);
    LAMINA_RETURN_IF_ERROR(filler->Plan());
    return filler->Check();
  });
  LAMINA_ASSIGN_OR_RETURN(const Together checked, Agree("checking", mine));
  if (checked == Together::kOlder) {
    LAMINA_RETURN_IF_ERROR(OpenCandidate());
    return Progress::kOlder;
  }
  touches_();
  mine = InTime("filling", [filler] { return filler->Fill(); });
  if (absl::IsDeadlineExceeded(mine)) filler->LeaveTargets();
  const bool filled = mine.ok();
  // Not damage any more, whatever it was: what is partly filled is not to be passed over in silence.
  if (absl::IsDataLoss(mine)) mine = absl::UnavailableError(mine.message());
  const absl::Status together = Agree("filling", mine).status();
  if (!together.ok()) return Suffixed(together, filled ? kFilled : kPartlyFilled);
  filled_bytes_ = filler->bytes();
  return Progress::kFilled;
}

absl::Status RestoreRun::End() {
  if (reader_ == nullptr || !filled_bytes_.has_value()) return absl::FailedPreconditionError("this restore has ended or filled nothing");
  const format::StepEntry entry = reader_->entry();
  const bool rewind = options_.mode == Mode::kTrain && entry.commit != choice_.head;
  const absl::Status together =
      Agree("ending", absl::OkStatus(), [&]() -> absl::Status {
        if (!rewind) return absl::OkStatus();
        return InTime("rewinding the log", [&env = runtime_.env, &tier = runtime_.tier, retry_ns = SecondsToNs(options_.restore_retry_s),
                                            incarnation = choice_.incarnation, commit = entry.commit] {
          tier::PatientTier patient(env, tier, tier::LogPatience(tier, retry_ns));
          return tier::Log(env, patient).Rewind(incarnation, commit, "restored by a trainer");
        });
      }).status();
  if (!together.ok()) return Suffixed(together, kFilled);
  done_({choice_.store, choice_.incarnation, entry.commit, entry.attempt.step, entry.parent});
  Post(EventKind::kRestoreDone, entry.attempt.step, *filled_bytes_, "");
  Close();
  return absl::OkStatus();
}

absl::Status RestoreRun::Fail(const absl::Status& why) {
  if (why.ok()) return absl::InvalidArgumentError("a restore fails for a reason");
  if (reader_ == nullptr) return why;
  // Damage is for files: a caller that cannot use the step does not make the job resume an older one.
  const absl::Status reason = IsDamage(why) ? absl::InvalidArgumentError(why.message()) : why;
  if (!filled_bytes_.has_value()) return Agree("checking", reason).status();
  return Suffixed(Agree("ending", reason).status(), kFilled);
}

void RestoreRun::Post(EventKind kind, int64_t step, int64_t bytes, std::string cause) {
  if (runtime_.events == nullptr) return;
  Event event;
  event.kind = kind;
  event.rank = agreement_.rank();
  event.step = step;
  event.save_number = number_;
  event.bytes = bytes;
  event.duration_ns = runtime_.env.MonotonicNs() - begun_ns_;
  event.cause = std::move(cause);
  runtime_.events->Post(std::move(event));
}

void RestoreRun::Close() {
  reader_.reset();
  if (const std::shared_ptr<tier::ReaderLease> lease = std::exchange(lease_, nullptr); lease != nullptr) {
    // One whose file cannot be removed in time runs out by itself.
    InTime("taking the reader's lease back", [lease] {
      lease->End();
      return absl::OkStatus();
    }).IgnoreError();
  }
  keep_active_.reset();
}

}  // namespace lamina::engine
