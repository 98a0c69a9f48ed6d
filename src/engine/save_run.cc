#include "engine/save_run.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/memory.h"
#include "base/serial.h"
#include "base/status.h"
#include "base/units.h"
#include "env/env.h"
#include "format/catalog.h"
#include "shard/box.h"

namespace lamina::engine {
namespace {

constexpr int64_t kLookForFailureNs = base::kSecondNs;
constexpr int64_t kGiveUpDelayNsMax = 5 * base::kSecondNs;  // ranks that lost their leader turn to the log one after another
constexpr size_t kDifferingNamedMax = 8;
constexpr double kLeaderGraceS = 30;  // behind the deadline, before another rank settles the save

std::string StepText(int64_t step) { return absl::StrCat("step ", step); }

Ended Aborted(const absl::Status& cause) {
  Ended ended;
  ended.kind = Ended::Kind::kAborted;
  ended.cause = cause;
  if (absl::IsAborted(cause)) ended.fence = cause;
  return ended;
}

// No failure, the step is left out: a plan made anew that the copies do not cover, or a hook that refused.
constexpr std::string_view kSkipDetail = "lamina.skip";

bool IsSkip(const absl::Status& cause) { return base::DetailOf(cause, kSkipDetail).has_value(); }

Ended AbortedOrSkipped(const absl::Status& cause) {
  Ended ended = Aborted(cause);
  if (IsSkip(cause)) {
    ended.kind = Ended::Kind::kSkipped;
    ended.reason = std::string(cause.message());
  }
  return ended;
}

// The commit may have got there before the trouble did: only a look at the log tells, and the next save takes it.
Ended Unknown(const absl::Status& why) {
  Ended unknown = Aborted(absl::UnavailableError(absl::StrCat("outcome unknown: ", std::string(why.message()))));
  unknown.commit = kUnknownCommit;
  return unknown;
}

// A newer incarnation took the root over while the save went wrong. It may have swept the very files that are being written, so `why` is
// seldom more than a sign of that.
absl::Status Fenced(const absl::Status& fence, const absl::Status& why) {
  if (absl::IsAborted(why)) return why;
  return absl::AbortedError(absl::StrCat(fence.message(), "; what failed first: ", why.message()));
}

std::string ReasonText(const Ended& ended) {
  return ended.kind == Ended::Kind::kSkipped ? absl::StrCat("skipped: ", ended.reason) : std::string(ended.cause.message());
}

// Of entries that may differ between ranks, by name; the names and ranks are what a listener needs.
std::string TextOfDiffering(const std::map<std::string_view, std::string>& entries) {
  if (entries.empty()) return {};
  std::string text = "buffers differ between ranks, and the lowest rank's are saved: ";
  size_t named = 0;
  for (const auto& [name, entry] : entries) {
    if (named == kDifferingNamedMax) break;
    absl::StrAppend(&text, named++ == 0 ? "" : ", ", entry);
  }
  if (named < entries.size()) absl::StrAppend(&text, " and ", entries.size() - named, " more");
  return text;
}

using BoxPlaces = std::map<std::pair<int32_t, int32_t>, size_t>;  // by entry and box

BoxPlaces PlacesOf(const std::vector<plan::BoxReference>& boxes) {
  BoxPlaces places;
  for (size_t i = 0; i < boxes.size(); ++i) places[{boxes[i].entry, boxes[i].box}] = i;
  return places;
}

}  // namespace

SaveRun::SaveRun(const Options& options, const Runtime& runtime, Agreement& agreement, tier::Log& log, const Claimed& claimed,
                 uint32_t attempt, SaveJob& job, int64_t deadline_ns, SaveCallbacks callbacks)
    : options_(options),
      runtime_(runtime),
      agreement_(agreement),
      log_(log),
      claimed_(claimed),
      attempt_(attempt),
      job_(job),
      deadline_ns_(deadline_ns),
      callbacks_(std::move(callbacks)),
      plans_(job.plans) {}

std::string SaveRun::Key(std::string_view name) const { return absl::StrCat(job_.key, "/", std::string(name)); }

Patience SaveRun::Waiting(std::string_view what) const {
  return {.what = absl::StrCat("save of ", StepText(job_.step), ", ", std::string(what)), .deadline_ns = deadline_ns_, .tick = [this] {
            return Abandoned();
          }};
}

void SaveRun::Forget(Agreement& agreement, const std::string& job_key) { agreement.Forget(job_key + "/"); }

RunResult SaveRun::Run() {
  callbacks_.set_phase("agreeing");
  const Ready ready{job_.status, job_.plans == nullptr ? format::Digest{} : job_.plans->plan.digest, job_.description_changed};
  absl::Status mine = base::WithinMemory([&] { return agreement_.Say(Key(absl::StrCat("ready/", agreement_.rank())), Encode(ready)); });
  absl::StatusOr<Go> go = base::WithinMemory([&] { return agreement_.IsLeader() ? LeadReady() : FollowReady(); });
  if (!go.ok()) {
    if (mine.ok()) mine = go.status();
    go = Go{};
  } else if (mine.ok() && go->proceed) {
    mine = base::WithinMemory([&] { return WriteAndVote(*go); });
  }
  if (!mine.ok()) Tell(mine);
  RunResult result;
  absl::StatusOr<Ended> ended = base::WithinMemory(
      [&]() -> absl::StatusOr<Ended> { return agreement_.IsLeader() ? LeadVerdict(*go, mine) : FollowVerdict(*go, mine); });
  result.ended = ended.ok() ? *std::move(ended) : Unknown(ended.status());
  if (agreement_.IsLeader()) {  // who misses it asks the log
    base::WithinMemory([&] { return agreement_.Say(Key("ended"), Encode(result.ended)); }).IgnoreError();
  }
  if (written_ && result.ended.SettledAgainst()) RemoveOwnPack(go->attempt);
  // A skip says that the ranks no longer plan alike: the next save makes them meet.
  result.plans = result.ended.kind == Ended::Kind::kSkipped ? nullptr : plans_;
  result.totals = totals_;
  result.differing = std::move(differing_);
  return result;
}

absl::StatusOr<Go> SaveRun::LeadReady() {
  Patience patience = Waiting("the snapshots");
  patience.deadline_ns = std::min(deadline_ns_, DeadlineAfter(runtime_.env, options_.begin_timeout_s));
  patience.living_deadline_ns = deadline_ns_;
  patience.watch_beats = false;  // a rank that has not come yet does not beat either: begin_timeout_s decides
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> texts, agreement_.HearAll(Key("ready"), patience));
  Go go;
  format::Digest plan_digest;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    LAMINA_ASSIGN_OR_RETURN(const Ready ready, DecodeReady(texts[rank]));
    if (!ready.status.ok()) return FromRank(ready.status, static_cast<int32_t>(rank), "copying");
    if (rank == 0) plan_digest = ready.plan_digest;
    if (ready.plan_digest != plan_digest) {
      return base::WithDetail(absl::FailedPreconditionError(absl::StrCat("rank ", rank, " copied by another plan than rank 0")),
                              kSkipDetail, "plan");
    }
    go.plan_anew = go.plan_anew || ready.description_changed;
  }
  // Whatever a fenced job still wrote, it could not commit. A log that does not answer is the commit's trouble.
  if (const absl::Status fence = log_.CheckNotFenced(claimed_.incarnation); absl::IsAborted(fence)) return fence;
  go.proceed = true;
  go.attempt = {job_.step, claimed_.incarnation, attempt_};
  const absl::Status prepared = base::Annotate(runtime_.tier.Prepare(format::AttemptPath(go.attempt)), "making the step's directory");
  if (!prepared.ok()) {
    const absl::Status newest = log_.CheckIsNewest(claimed_.incarnation);
    return absl::IsAborted(newest) ? Fenced(newest, prepared) : prepared;
  }
  LAMINA_RETURN_IF_ERROR(agreement_.Say(Key("go"), Encode(go)));
  return go;
}

absl::StatusOr<Go> SaveRun::FollowReady() {
  Patience patience = Waiting("rank 0's go");
  patience.deadline_ns = std::min(deadline_ns_, DeadlineAfter(runtime_.env, 2 * options_.begin_timeout_s));
  patience.watch_beats = false;
  bool ended = false;
  patience.tick = [&]() -> absl::Status {
    LAMINA_RETURN_IF_ERROR(Abandoned());
    const absl::StatusOr<std::optional<std::string>> verdict = agreement_.Look(Key("ended"));
    ended = verdict.ok() && verdict->has_value();
    return ended ? absl::CancelledError("the save ended before it began") : absl::OkStatus();
  };
  absl::StatusOr<std::string> text = agreement_.Hear(Key("go"), 0, patience);
  if (absl::IsDeadlineExceeded(text.status()) && !ended) {
    // Rank 0 may be here, and wait for another rank that is late.
    patience.deadline_ns = deadline_ns_;
    patience.watch_beats = true;
    absl::StatusOr<std::string> late = agreement_.Hear(Key("go"), 0, patience);
    if (late.ok() || !absl::IsUnavailable(late.status())) text = std::move(late);
  }
  if (ended) return Go{};
  if (!text.ok()) return text.status();
  return DecodeGo(*text);
}

absl::Status SaveRun::PlanAnew() {
  base::Writer writer;
  writer.Put<uint8_t>(job_.description_changed);
  writer.PutText(plan::EncodeDescription(job_.description));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          agreement_.Exchange(Key("description"), writer.Take(), Waiting("the descriptions")));
  auto plans = std::make_shared<PlanSet>();
  std::vector<bool> copied_all;
  for (const std::string& text : texts) {
    base::Reader reader(text);
    copied_all.push_back(reader.Get<uint8_t>() != 0);
    const std::string description = reader.GetText();
    if (!reader.AtEnd()) return absl::InternalError("a rank sent a description that cannot be read");
    LAMINA_ASSIGN_OR_RETURN(plans->descriptions.emplace_back(), plan::DecodeDescription(base::AsBytes(description)));
  }
  absl::StatusOr<plan::SavePlan> plan = plan::PlanSave(plans->descriptions, copied_all, &job_.plans->plan, job_.plans->descriptions);
  if (absl::IsFailedPrecondition(plan.status())) {
    plans_ = nullptr;
    return base::WithDetail(plan.status(), kSkipDetail, "plan");
  }
  LAMINA_RETURN_IF_ERROR(plan.status());
  plans->plan = *std::move(plan);
  plans_ = std::move(plans);
  return absl::OkStatus();
}

std::vector<PackItem> SaveRun::ItemsToWrite() {
  const BoxPlaces place = PlacesOf(job_.copied);
  std::vector<PackItem> items;
  for (const plan::BoxReference& box : plans_->plan.ranks[static_cast<size_t>(agreement_.rank())].writes) {
    items.push_back({job_.snapshot.layout.items[place.at({box.entry, box.box})]});
  }
  for (size_t i = 0; i < job_.blobs.size(); ++i) {
    job_.blobs[i].table = static_cast<uint32_t>(items.size());
    items.push_back({job_.snapshot.layout.items[job_.copied.size() + i]});
  }
  return items;
}

absl::Status SaveRun::Abandoned() const {
  return callbacks_.abandoned() ? absl::CancelledError("the save was given up at exit") : absl::OkStatus();
}

// Ends a write early when another rank has failed; asks at most once a second.
absl::Status SaveRun::SomebodyFailed() {
  LAMINA_RETURN_IF_ERROR(Abandoned());
  const int64_t now_ns = runtime_.env.MonotonicNs();
  if (now_ns >= deadline_ns_)
    return absl::DeadlineExceededError(absl::StrCat("the save of ", StepText(job_.step), " reached its deadline"));
  if (now_ns < next_look_ns_) return absl::OkStatus();
  next_look_ns_ = now_ns + kLookForFailureNs;
  const absl::StatusOr<std::optional<std::string>> failed = agreement_.Look(Key("failed"));
  return failed.ok() && failed->has_value() ? DecodeStatus(**failed) : absl::OkStatus();  // whether the store is gone the waits find out
}

absl::Status SaveRun::WriteAndVote(const Go& go) {
  if (go.plan_anew) LAMINA_RETURN_IF_ERROR(PlanAnew());
  callbacks_.set_phase("writing");
  const std::vector<PackItem> items = ItemsToWrite();
  const int64_t write_begun_ns = runtime_.env.MonotonicNs();
  next_look_ns_ = write_begun_ns + kLookForFailureNs;
  LAMINA_ASSIGN_OR_RETURN(const WrittenPack pack,
                          WritePack(runtime_.env, runtime_.tier, claimed_.store, go.attempt, static_cast<uint32_t>(agreement_.rank()),
                                    job_.snapshot.lease.bytes(), items, [this](int64_t bytes) {
                                      callbacks_.progress(bytes);
                                      return SomebodyFailed();
                                    }));
  written_ = true;
  callbacks_.post(EventKind::kWriteDone, static_cast<int64_t>(pack.pack_bytes), runtime_.env.MonotonicNs() - write_begun_ns, "");
  LAMINA_RETURN_IF_ERROR(AskHooks());
  callbacks_.set_phase("voting");
  LAMINA_ASSIGN_OR_RETURN(const Vote vote, MakeVote(pack));
  if (!callbacks_.may_vote())
    return absl::DeadlineExceededError(absl::StrCat("the save of ", StepText(job_.step), " was given up before its vote"));
  voted_ = true;  // sent counts as cast, whatever the answer
  return agreement_.Say(Key(absl::StrCat("vote/", agreement_.rank())), Encode(vote));
}

// A pack that came about while the leader's sweep was at its directory, or after it, would stay until the next one, a minute later. What
// cannot be removed here that one removes, and tells if it cannot.
void SaveRun::RemoveOwnPack(const format::AttemptId& attempt) {
  base::WithinMemory([&] {
    return runtime_.tier.Delete(format::PackPath(attempt, static_cast<uint32_t>(agreement_.rank())));
  }).IgnoreError();
}

absl::Status SaveRun::AskHooks() {
  if (runtime_.verdicts == nullptr) return absl::OkStatus();
  callbacks_.set_phase("asking hooks");
  const std::optional<std::string> refusal = runtime_.verdicts->Refusal(hooks::VerdictKind::kMayCommit, job_.step);
  if (!refusal.has_value()) return absl::OkStatus();
  return base::WithDetail(absl::FailedPreconditionError(*refusal), kSkipDetail, "hook");
}

// Of the boxes that other ranks hold too. Zero where this rank has neither copied nor hashed one: the plan that it copied by did not ask.
std::vector<format::Digest> SaveRun::ReplicaDigests(const WrittenPack& pack) {
  const size_t rank = static_cast<size_t>(agreement_.rank());
  const plan::RankPlan& mine = plans_->plan.ranks[rank];
  const BoxPlaces written = PlacesOf(mine.writes);
  const BoxPlaces copied = PlacesOf(job_.copied);
  std::map<std::pair<int32_t, int32_t>, format::Digest> hashed;
  for (size_t i = 0; i < job_.replica_digests.size(); ++i) {
    const plan::BoxReference& box = job_.plans->plan.ranks[rank].replicas[i].box;
    hashed[{box.entry, box.box}] = job_.replica_digests[i];
  }
  std::vector<format::Digest> digests;
  for (const plan::ReplicaBox& replica : mine.replicas) {
    const std::pair<int32_t, int32_t> box(replica.box.entry, replica.box.box);
    if (const auto found = written.find(box); found != written.end()) {
      digests.push_back(snapshot::DigestOfFingerprints(pack.fingerprints[found->second]));
    } else if (const auto copy = copied.find(box); copy != copied.end()) {
      digests.push_back(DigestOfCopy(copy->second));
    } else {
      digests.push_back(hashed[box]);
    }
  }
  return digests;
}

format::Digest SaveRun::DigestOfCopy(size_t item) {
  std::vector<format::Digest> fingerprints;
  for (const snapshot::ChunkSlot& slot : job_.snapshot.layout.items[item]) {
    const auto raw = job_.snapshot.lease.bytes().subspan(static_cast<size_t>(slot.offset), static_cast<size_t>(slot.bytes));
    fingerprints.push_back(format::Fingerprint(raw, claimed_.store.fingerprint_seed));
  }
  return snapshot::DigestOfFingerprints(fingerprints);
}

absl::StatusOr<Vote> SaveRun::MakeVote(const WrittenPack& pack) {
  Vote vote;
  vote.plan_digest = plans_->plan.digest;
  vote.nonce = pack.nonce;
  vote.index_digest = pack.index_digest;
  vote.pack_bytes = pack.pack_bytes;
  vote.chunk_bytes = pack.chunk_bytes;
  vote.tree_digest = job_.tree_digest;
  vote.blobs = job_.blobs;
  const plan::RankPlan& mine = plans_->plan.ranks[static_cast<size_t>(agreement_.rank())];
  vote.replica_digests = ReplicaDigests(pack);
  totals_.state_bytes = mine.written_bytes;
  totals_.written_bytes = static_cast<int64_t>(pack.pack_bytes);
  totals_.chunks_new = static_cast<int64_t>(pack.chunk_count);
  vote.totals = totals_;
  return vote;
}

void SaveRun::Tell(const absl::Status& cause) {
  const std::string text = EncodeStatus(FromRank(cause, agreement_.rank(), job_.status.ok() ? "writing" : "copying"));
  // The missing vote says it too, if the store takes neither.
  for (const std::string& key : {Key(absl::StrCat("failed/", agreement_.rank())), Key("failed")}) {
    base::WithinMemory([&] { return agreement_.Say(key, text); }).IgnoreError();
  }
}

// `cause`, and what other ranks have told for themselves.
absl::Status SaveRun::AllCauses(const absl::Status& cause) {
  absl::Status first = cause;
  std::vector<std::string> messages = {std::string(first.message())};
  absl::Status told;
  for (int32_t rank = 0; rank < agreement_.rank_count(); ++rank) {
    const absl::StatusOr<std::optional<std::string>> failed = agreement_.Look(Key(absl::StrCat("failed/", rank)));
    if (!failed.ok()) break;  // the store is gone, and `first` says so or something before it
    if (!failed->has_value()) continue;
    const absl::Status status = DecodeStatus(**failed);
    if (told.ok() || (IsAbsence(told) && !IsAbsence(status))) told = status;
    const std::string message(status.message());
    if (IsSkip(first) && !IsSkip(status)) {  // a failure is told as one, whatever a hook said beside it
      first = status;
      messages.insert(messages.begin(), message);
    }
    if (std::find(messages.begin(), messages.end(), message) == messages.end()) messages.push_back(message);
  }
  // A rank that merely missed the others' votes is not the cause where another one tells what went wrong.
  const bool waited = IsAbsence(first) || base::DetailOf(first, base::kRankDetail) == std::nullopt;
  if (waited && !told.ok()) return told;
  if (messages.size() == 1) return first;
  absl::Status all(first.code(), absl::StrCat(messages[0], "; and ", absl::StrJoin(messages.begin() + 1, messages.end(), "; ")));
  first.ForEachPayload([&all](absl::string_view url, const absl::Cord& payload) { all.SetPayload(url, payload); });
  return base::WithDetail(all, base::kCausesDetail, absl::StrJoin(messages, "\n"));
}

Ended SaveRun::LeadVerdict(const Go& go, const absl::Status& mine) {
  callbacks_.set_phase("committing");
  absl::Status why = FromRank(mine, agreement_.rank(), "writing");
  if (why.ok()) {
    absl::StatusOr<Ended> committed = base::WithinMemory([&] { return LeadCommit(go); });
    if (committed.ok()) return *committed;
    why = committed.status();
  }
  return Settle(go, AllCauses(why));
}

// The attempt did not commit as far as this rank knows. The log has the last word: a commit that got there counts.
Ended SaveRun::Settle(const Go& go, const absl::Status& why) {
  Ended ended = AbortedOrSkipped(why);
  if (!go.proceed) return ended;  // no attempt was made: there is nothing that the log could know
  const absl::StatusOr<tier::Verdict> verdict = base::WithinMemory([&] { return log_.Abort(go.attempt, ReasonText(ended)); });
  if (!verdict.ok()) {
    if (absl::IsAborted(verdict.status())) return Aborted(Fenced(verdict.status(), why));
    return Unknown(base::Annotate(verdict.status(), absl::StrCat(std::string(why.message()), "; and the log does not answer")));
  }
  if (*verdict != tier::Verdict::kCommitted) {
    return ended;
  }
  return CommittedByLog(go.attempt);
}

// A commit that this rank did not see come about.
Ended SaveRun::CommittedByLog(const format::AttemptId& attempt) {
  Ended ended;
  ended.kind = Ended::Kind::kCommitted;
  ended.commit = kUnknownCommit;
  const absl::StatusOr<format::LogRecord> newest = base::WithinMemory([this] { return log_.Newest(); });
  if (!newest.ok()) return ended;  // it is committed all the same; kUnknownCommit makes the next save look again
  for (const format::StepEntry& entry : newest->steps) {
    if (entry.attempt != attempt) continue;
    ended.commit = entry.commit;
    ended.total.state_bytes = static_cast<int64_t>(entry.state_bytes);
    ended.total.written_bytes = static_cast<int64_t>(entry.stored_bytes);
  }
  NoteFence(ended);
  return ended;
}

// A commit below a newer claim counts, since that claim has seen it; the next one would not.
void SaveRun::NoteFence(Ended& ended) {
  const absl::Status fence = log_.CheckNotFenced(claimed_.incarnation);
  if (absl::IsAborted(fence)) ended.fence = fence;
}

absl::Status SaveRun::CheckReplicas(const std::vector<Vote>& votes) {
  const plan::SavePlan& plan = plans_->plan;
  std::vector<std::pair<int32_t, format::Digest>> first(plan.replica_groups.size(), {-1, {}});
  std::map<size_t, std::vector<int32_t>> differing;  // ranks by group, those that may differ
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const std::vector<plan::ReplicaBox>& replicas = plan.ranks[rank].replicas;
    if (votes[rank].replica_digests.size() != replicas.size()) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " sent ", votes[rank].replica_digests.size(), " replica digests of ", replicas.size()));
    }
    for (size_t i = 0; i < replicas.size(); ++i) {
      const size_t group = static_cast<size_t>(replicas[i].group);
      const format::Digest& digest = votes[rank].replica_digests[i];
      if (digest == format::Digest{}) continue;
      if (first[group].first < 0) first[group] = {static_cast<int32_t>(rank), digest};
      if (first[group].second == digest) continue;
      if (plan.replica_groups[group].may_differ) {
        differing[group].push_back(static_cast<int32_t>(rank));
      } else {
        return absl::InvalidArgumentError(absl::StrCat("'", plan.replica_groups[group].name, "' ",
                                                       shard::ToString(plan.replica_groups[group].box), " differs between ranks ",
                                                       first[group].first, " and ", rank,
                                                       ", which hold it as replicas of one another. If each rank has its own, say so with "
                                                       "lamina.PerRank; if not, the ranks have drifted apart"));
      }
    }
  }
  std::map<std::string_view, std::string> texts;  // an entry's first box speaks for it
  for (auto& [group, ranks] : differing) {
    ranks.insert(ranks.begin(), first[group].first);
    const std::string& name = plan.replica_groups[group].name;
    texts.try_emplace(name, absl::StrCat("'", name, "' on ", NameRanks(ranks)));
  }
  differing_ = TextOfDiffering(texts);
  return absl::OkStatus();
}

absl::Status SaveRun::CheckVotes(const std::vector<Vote>& votes) {
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (votes[rank].plan_digest != plans_->plan.digest) {
      return absl::InternalError(absl::StrCat("rank ", rank, " wrote by another plan than rank 0"));
    }
    if (votes[rank].tree_digest != votes[0].tree_digest) {
      return absl::InvalidArgumentError(absl::StrCat("the plain values of the state differ between ranks 0 and ", rank,
                                                     ". Wrap what belongs to each rank alone in lamina.PerRank"));
    }
  }
  const absl::Status replicas = CheckReplicas(votes);
  if (!replicas.ok()) callbacks_.post(EventKind::kReplicaMismatch, 0, 0, std::string(replicas.message()));
  return replicas;
}

absl::Status SaveRun::WriteObject(const std::string& name, std::string_view bytes) {
  if (bytes.empty()) return absl::ResourceExhaustedError(absl::StrCat("'", name, "' would be larger than metadata may be"));
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<tier::ObjectWriter> object, runtime_.tier.CreateObject(name));
  absl::Status status = object->Append(base::AsBytes(bytes));
  if (status.ok()) status = object->Finish();
  if (!status.ok()) object->Abort().IgnoreError();  // the sweep of the attempt removes what is left
  return base::Annotate(status, absl::StrCat("writing '", name, "'"));
}

absl::StatusOr<Ended> SaveRun::LeadCommit(const Go& go) {
  Patience patience = Waiting("the votes");
  patience.tick = [this] { return SomebodyFailed(); };
  next_look_ns_ = 0;
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> texts, agreement_.HearAll(Key("vote"), patience));
  std::vector<Vote> votes;
  for (const std::string& text : texts) {
    LAMINA_ASSIGN_OR_RETURN(votes.emplace_back(), DecodeVote(text));
  }
  LAMINA_RETURN_IF_ERROR(CheckVotes(votes));
  absl::StatusOr<Ended> ended = WriteAndCommit(go, votes);
  return ended.ok() ? ended : FromRank(ended.status(), agreement_.rank(), "committing");
}

absl::StatusOr<Ended> SaveRun::WriteAndCommit(const Go& go, const std::vector<Vote>& votes) {
  format::Catalog catalog;
  catalog.store_id = claimed_.store.store_id;
  catalog.attempt = go.attempt;
  catalog.rank_count = static_cast<uint32_t>(agreement_.rank_count());
  catalog.topology = job_.topology;
  catalog.tensors = plans_->plan.tensors;
  format::Packs packs{catalog.store_id, go.attempt, {}};
  Ended ended;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const Vote& vote = votes[rank];
    const uint32_t writer = static_cast<uint32_t>(rank);
    catalog.writers.push_back({go.attempt, writer, vote.nonce, vote.index_digest, vote.pack_bytes});
    packs.packs.push_back({go.attempt, writer, vote.nonce, vote.pack_bytes, vote.chunk_bytes});
    for (const VotedBlob& blob : vote.blobs) catalog.blobs.push_back({blob.name, writer, writer, blob.table, blob.bytes});
    ended.total.state_bytes += vote.totals.state_bytes;
    ended.total.written_bytes += vote.totals.written_bytes;
    ended.total.chunks_new += vote.totals.chunks_new;
    ended.total.chunks_shared += vote.totals.chunks_shared;
    ended.total.chunks_dependent += vote.totals.chunks_dependent;
  }
  std::sort(catalog.blobs.begin(), catalog.blobs.end(),
            [](const auto& a, const auto& b) { return std::tie(a.name, a.rank) < std::tie(b.name, b.rank); });
  // What a reader would refuse must not be committed.
  LAMINA_RETURN_IF_ERROR(format::ValidateCatalog(catalog));
  LAMINA_RETURN_IF_ERROR(format::ValidatePacks(packs));
  const std::string catalog_bytes = format::EncodeCatalog(catalog);
  const std::string packs_bytes = format::EncodePacks(packs);
  LAMINA_RETURN_IF_ERROR(WriteObject(format::CatalogPath(go.attempt), catalog_bytes));
  LAMINA_RETURN_IF_ERROR(WriteObject(format::PacksPath(go.attempt), packs_bytes));
  ended.total.written_bytes += static_cast<int64_t>(catalog_bytes.size() + packs_bytes.size());

  const bool supersedes = job_.step == claimed_.restored_step;
  tier::CommitRequest request;
  request.attempt = go.attempt;
  request.parent = supersedes ? claimed_.restored_parent : claimed_.parent;
  if (request.parent == kUnknownCommit) {
    LAMINA_ASSIGN_OR_RETURN(const format::LogRecord newest, log_.Newest());
    request.parent = newest.head;
  }
  request.supersedes_parent_step = supersedes;
  request.catalog_digest = format::Checksum128(base::AsBytes(catalog_bytes));
  request.packs_digest = format::Checksum128(base::AsBytes(packs_bytes));
  request.state_bytes = static_cast<uint64_t>(ended.total.state_bytes);
  request.stored_bytes = static_cast<uint64_t>(ended.total.written_bytes);
  LAMINA_ASSIGN_OR_RETURN(ended.commit, log_.Commit(request));
  ended.kind = Ended::Kind::kCommitted;
  NoteFence(ended);
  return ended;
}

Ended SaveRun::FollowVerdict(const Go& go, const absl::Status& mine) {
  Patience patience = Waiting("the verdict of rank 0");
  const int64_t grace_ns = SecondsToNs(kLeaderGraceS);
  if (deadline_ns_ < env::kForeverNs - grace_ns) patience.deadline_ns = deadline_ns_ + grace_ns;
  // A store that goes with rank 0, as where that leaves first, goes when all is settled: the log has it.
  std::optional<Ended> by_log;
  const auto ask_log = [&]() -> absl::Status {
    const absl::StatusOr<tier::Verdict> verdict = log_.VerdictOf(go.attempt);
    if (!verdict.ok() || *verdict == tier::Verdict::kUnsettled) return absl::OkStatus();
    const absl::Status aborted = absl::UnavailableError("it was aborted, and the job's store went before it told why");
    by_log = Settle(go, mine.ok() ? aborted : mine);
    return absl::CancelledError("settled by the log");
  };
  if (go.proceed) patience.without_store = ask_log;
  absl::StatusOr<std::string> text = agreement_.Hear(Key("ended"), 0, patience);
  if (by_log.has_value()) return *std::move(by_log);
  absl::StatusOr<Ended> ended = text.ok() ? DecodeEnded(*text) : absl::StatusOr<Ended>(text.status());
  if (ended.ok()) return *ended;
  // Rank 0 is gone, or the store. Nothing can have been committed without this rank's vote.
  const absl::Status why = mine.ok() ? ended.status() : FromRank(mine, agreement_.rank(), "writing");
  if (go.proceed) runtime_.env.SleepNs(static_cast<int64_t>(runtime_.env.RandomU64() % static_cast<uint64_t>(kGiveUpDelayNsMax)));
  // Who has to end does not wait for storage.
  return voted_ || !callbacks_.abandoned() ? Settle(go, why) : AbortedOrSkipped(why);
}

}  // namespace lamina::engine
