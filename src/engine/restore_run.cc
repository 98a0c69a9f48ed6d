#include "engine/restore_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/serial.h"
#include "base/status.h"
#include "engine/filler.h"
#include "engine/store.h"
#include "tier/log.h"

namespace lamina::engine {
namespace {

constexpr size_t kCandidatesMax = 64;  // damaged steps that a restore passes over before it gives up

void PutEntry(base::Writer& writer, const format::StepEntry& entry) {
  writer.Put(entry.commit);
  writer.Put(entry.parent);
  writer.Put(entry.attempt.step);
  writer.Put(entry.attempt.incarnation);
  writer.Put(entry.attempt.attempt);
  writer.Put(entry.catalog_digest);
  writer.Put(entry.packs_digest);
}

format::StepEntry GetEntry(base::Reader& reader) {
  format::StepEntry entry;
  entry.commit = reader.Get<uint64_t>();
  entry.parent = reader.Get<uint64_t>();
  entry.attempt.step = reader.Get<int64_t>();
  entry.attempt.incarnation = reader.Get<uint64_t>();
  entry.attempt.attempt = reader.Get<uint32_t>();
  entry.catalog_digest = reader.Get<format::Digest>();
  entry.packs_digest = reader.Get<format::Digest>();
  return entry;
}

absl::Status Suffixed(const absl::Status& status, std::string_view suffix) {
  absl::Status suffixed(status.code(), absl::StrCat(status.message(), std::string(suffix)));
  status.ForEachPayload([&suffixed](absl::string_view url, const absl::Cord& payload) { suffixed.SetPayload(url, payload); });
  return suffixed;
}

}  // namespace

RestoreRun::RestoreRun(const Options& options, const Runtime& runtime, Agreement& agreement, int64_t number,
                       std::optional<int64_t> wanted_step, std::function<absl::StatusOr<Claimed>()> claim,
                       std::function<void(const Claimed&, const Restored&)> done, std::shared_ptr<void> keep_active)
    : options_(options),
      runtime_(runtime),
      agreement_(agreement),
      number_(number),
      key_(absl::StrCat("restore/", number)),
      begun_ns_(runtime.env.MonotonicNs()),
      wanted_step_(wanted_step),
      claim_(std::move(claim)),
      done_(std::move(done)),
      keep_active_(std::move(keep_active)) {}

Patience RestoreRun::Waiting(std::string what) const {
  return {absl::StrCat("restore, ", what), LaterBy(begun_ns_, SecondsToNs(options_.restore_seconds_max)), true, {}};
}

std::string RestoreRun::EncodeChoice(const Choice& choice) {
  base::Writer writer;
  writer.Put(choice.store.store_id);
  writer.Put(choice.store.fingerprint_seed);
  writer.Put(choice.incarnation);
  writer.Put(choice.head);
  writer.Put<uint64_t>(choice.candidates.size());
  for (const format::StepEntry& entry : choice.candidates) PutEntry(writer, entry);
  writer.Put<uint64_t>(choice.line.size());
  for (const int64_t step : choice.line) writer.Put(step);
  return writer.Take();
}

absl::StatusOr<RestoreRun::Choice> RestoreRun::DecodeChoice(std::string_view text) {
  base::Reader reader(text);
  Choice choice;
  choice.store.store_id = reader.Get<format::Digest>();
  choice.store.fingerprint_seed = reader.Get<uint64_t>();
  choice.incarnation = reader.Get<uint64_t>();
  choice.head = reader.Get<uint64_t>();
  choice.candidates.resize(reader.GetCount(sizeof(uint64_t)));
  for (format::StepEntry& entry : choice.candidates) entry = GetEntry(reader);
  choice.line.resize(reader.GetCount(sizeof(int64_t)));
  for (int64_t& step : choice.line) step = reader.Get<int64_t>();
  if (!reader.AtEnd()) return absl::InternalError("restore: rank 0 sent a choice of step that cannot be read");
  return choice;
}

absl::StatusOr<RestoreRun::Choice> RestoreRun::Choose() {
  LAMINA_ASSIGN_OR_RETURN(const Claimed claimed, claim_());
  Choice choice;
  choice.store = claimed.store;
  choice.incarnation = claimed.incarnation;
  tier::Log log(runtime_.env, runtime_.tier);
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord newest, log.Newest());
  choice.head = newest.head;
  const std::vector<format::StepEntry> line = tier::LineOf(newest);
  for (const format::StepEntry& entry : line) choice.line.push_back(entry.attempt.step);
  if (wanted_step_.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(const format::StepEntry entry, FindStep(newest, *wanted_step_));
    if (const std::optional<std::string> refusal = Refusal(entry)) return absl::FailedPreconditionError(*refusal);
    choice.candidates.push_back(entry);
    return choice;
  }
  const std::string lost = tier::PassedOver(newest);
  // An empty root would have the job begin anew, over steps that are only out of sight.
  if (line.empty() && !lost.empty()) return NoStep(runtime_.tier.Describe(), newest);
  if (!lost.empty()) Post(EventKind::kRestorePassedOver, -1, 0, lost);
  choice.candidates.assign(line.begin(), line.begin() + static_cast<ptrdiff_t>(std::min(line.size(), kCandidatesMax)));
  const size_t allowed = NextAllowed(choice.candidates, 0);
  if (!choice.candidates.empty() && allowed == choice.candidates.size()) {
    return absl::FailedPreconditionError(absl::StrCat("hooks refuse every step that there is to restore, the newest of them step ",
                                                      line.front().attempt.step, "; events and log have their reasons"));
  }
  choice.candidates.erase(choice.candidates.begin(), choice.candidates.begin() + static_cast<ptrdiff_t>(allowed));
  return choice;
}

std::optional<std::string> RestoreRun::Refusal(const format::StepEntry& candidate) {
  if (runtime_.verdicts == nullptr) return std::nullopt;
  return runtime_.verdicts->Refusal(hooks::VerdictKind::kMayRestore, candidate.attempt.step);
}

// The first candidate from `next` on that no hook refuses; their count when there is none.
size_t RestoreRun::NextAllowed(const std::vector<format::StepEntry>& candidates, size_t next) {
  for (; next < candidates.size(); ++next) {
    const std::optional<std::string> refusal = Refusal(candidates[next]);
    if (!refusal.has_value()) break;
    Post(EventKind::kRestorePassedOver, candidates[next].attempt.step, 0, *refusal);
  }
  return next;
}

absl::Status RestoreRun::Begin() {
  Post(EventKind::kRestoreBegin, wanted_step_.value_or(-1), 0, "");
  absl::StatusOr<std::string> text = agreement_.Assemble(key_, "restore, choosing the step", options_.begin_timeout_s, absl::OkStatus(),
                                                         [this]() -> absl::StatusOr<std::string> {
                                                           LAMINA_ASSIGN_OR_RETURN(const Choice choice, Choose());
                                                           return EncodeChoice(choice);
                                                         });
  if (!text.ok()) {
    Close();
    return text.status();
  }
  LAMINA_ASSIGN_OR_RETURN(choice_, DecodeChoice(*text));
  line_ = choice_.line;
  if (choice_.candidates.empty()) {
    Close();
    done_({choice_.store, choice_.incarnation, 0, -1, 0}, Restored{});
    return absl::OkStatus();
  }
  return OpenCandidate();
}

absl::Status RestoreRun::ReadDescription() {
  LAMINA_ASSIGN_OR_RETURN(
      reader_, StepReader::Open(runtime_.env, runtime_.tier, choice_.store, choice_.candidates[candidate_], options_.restore_retry_s));
  const format::Catalog& catalog = reader_->catalog();
  step_ = reader_->entry().attempt.step;
  rank_count_ = static_cast<int32_t>(catalog.rank_count);
  topology_ = catalog.topology;
  tensors_.clear();
  blobs_.clear();
  for (const format::CatalogTensor& tensor : catalog.tensors)
    tensors_.push_back({tensor.name, tensor.dtype, tensor.global_shape, tensor.alias_of});
  for (uint32_t writer = 0; writer < catalog.writers.size(); ++writer) LAMINA_RETURN_IF_ERROR(reader_->IndexOf(writer).status());
  for (const format::CatalogBlob& blob : catalog.blobs) {
    LAMINA_ASSIGN_OR_RETURN(std::string bytes, reader_->ReadBlob(blob));
    blobs_.push_back({blob.name, static_cast<int32_t>(blob.rank), std::move(bytes)});
  }
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
  const Patience patience = Waiting(std::string(what));
  absl::Status verdict;
  size_t next = candidate_;  // moves on where the step is damaged
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
    const size_t older = NextAllowed(choice_.candidates, candidate_ + 1);
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
    said = agreement_.Say(key + "/verdict", writer.Take());
  } else if (said.ok()) {
    absl::StatusOr<std::string> text = agreement_.Hear(key + "/verdict", 0, patience);
    said = text.status();
    if (text.ok()) {
      base::Reader reader(*text);
      verdict = DecodeStatus(reader.GetText());
      next = reader.Get<uint64_t>();
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
  Post(EventKind::kRestorePassedOver, choice_.candidates[candidate_].attempt.step, 0, std::string(verdict.message()));
  candidate_ = next;
  return Together::kOlder;
}

absl::StatusOr<RestoreSession::Progress> RestoreRun::Fill(std::span<const TensorView> targets) {
  if (reader_ == nullptr) return absl::FailedPreconditionError("this restore has ended or found nothing");
  Filler filler(runtime_.env, *reader_, targets, options_.io_threads);
  absl::Status mine = filler.Plan();
  if (mine.ok()) mine = filler.Check();
  LAMINA_ASSIGN_OR_RETURN(const Together checked, Agree("checking", mine));
  if (checked == Together::kOlder) {
    LAMINA_RETURN_IF_ERROR(OpenCandidate());
    return Progress::kOlder;
  }
  mine = filler.Fill();
  const bool filled = mine.ok();
  // Not damage any more, whatever it was: what is partly filled is not to be passed over in silence.
  if (absl::IsDataLoss(mine)) mine = absl::UnavailableError(mine.message());
  const format::StepEntry entry = reader_->entry();
  const bool rewind = options_.mode == Mode::kTrain && entry.commit != choice_.head;
  const absl::Status together = Agree("filling", mine, [&]() -> absl::Status {
                                  if (!rewind) return absl::OkStatus();
                                  tier::Log log(runtime_.env, runtime_.tier);
                                  return log.Rewind(choice_.incarnation, entry.commit, "restored by a trainer");
                                }).status();
  if (!together.ok()) {
    return Suffixed(together, filled ? " (the targets of this rank are filled: do not train on them)"
                                     : " (the targets of this rank are partly filled: do not train on them)");
  }
  done_({choice_.store, choice_.incarnation, entry.commit, entry.attempt.step, entry.parent},
        Restored{entry.attempt.step, entry.commit, entry.parent});
  Post(EventKind::kRestoreDone, entry.attempt.step, filler.bytes(), "");
  Close();
  return Progress::kDone;
}

absl::Status RestoreRun::Fail(const absl::Status& why) {
  if (why.ok()) return absl::InvalidArgumentError("a restore fails for a reason");
  if (reader_ == nullptr) return why;
  // Damage is for files: a caller that cannot use the step does not make the job resume an older one.
  const absl::Status reason = IsDamage(why) ? absl::InvalidArgumentError(why.message()) : why;
  return Agree("checking", reason).status();
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
  keep_active_.reset();
}

}  // namespace lamina::engine
