// What ranks tell one another. The store between them is trusted; a message of another release, or one cut short, is not.
#include <array>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "engine/agreement.h"
#include "engine/save_messages.h"
#include "fuzz/targets.h"
#include "plan/description.h"
#include "plan/save_plan.h"

namespace lamina::fuzz {
namespace {

// `same` tells whether two messages say the same: as texts they may differ, since the details of a status have no order.
template <typename Message, typename Same>
absl::Status ReadBack(Bytes input, absl::StatusOr<Message> (*decode)(std::string_view), const Same& same) {
  const absl::StatusOr<Message> message = decode(base::AsText(input));
  if (absl::IsInternal(message.status())) return absl::OkStatus();
  if (!message.ok()) return message.status();
  const absl::StatusOr<Message> again = decode(engine::Encode(*message));
  if (!again.ok()) return again.status();
  return same(*again, *message) ? absl::OkStatus() : absl::InternalError("a message reads otherwise once it is written again");
}

template <typename Message>
bool SameText(const Message& a, const Message& b) {
  return engine::Encode(a) == engine::Encode(b);
}

absl::Status AttackReady(Bytes input) {
  return ReadBack(input, engine::DecodeReady, [](const engine::Ready& a, const engine::Ready& b) {
    return a.status == b.status && a.plan_digest == b.plan_digest && a.description_changed == b.description_changed;
  });
}
absl::Status AttackGo(Bytes input) { return ReadBack(input, engine::DecodeGo, SameText<engine::Go>); }
absl::Status AttackVote(Bytes input) { return ReadBack(input, engine::DecodeVote, SameText<engine::Vote>); }
absl::Status AttackEnded(Bytes input) {
  return ReadBack(input, engine::DecodeEnded, [](const engine::Ended& a, const engine::Ended& b) {
    return a.kind == b.kind && a.cause == b.cause && a.reason == b.reason && a.commit == b.commit;
  });
}

absl::Status AttackStatus(Bytes input) {
  const absl::Status status = engine::DecodeStatus(base::AsText(input));
  const absl::Status again = engine::DecodeStatus(engine::EncodeStatus(status));
  return again == status ? absl::OkStatus() : absl::InternalError("a status reads otherwise once it is written again");
}

// A description that is accepted is planned too, as that of a job with one rank.
absl::Status AttackDescription(Bytes input) {
  const absl::StatusOr<plan::RankDescription> description = plan::DecodeDescription(input);
  if (absl::IsInvalidArgument(description.status())) return absl::OkStatus();
  if (!description.ok()) return description.status();
  const std::string written = plan::EncodeDescription(*description);
  const absl::StatusOr<plan::RankDescription> again = plan::DecodeDescription(base::AsBytes(written));
  if (!again.ok()) return again.status();
  if (*again != *description) return absl::InternalError("a description reads otherwise once it is written again");
  const absl::StatusOr<plan::SavePlan> plan = plan::PlanSave(std::span(&*description, 1));
  return absl::IsInvalidArgument(plan.status()) ? absl::OkStatus() : plan.status();
}

engine::Vote FullVote() {
  engine::Vote vote;
  vote.plan_digest = {1, 2};
  vote.pack_bytes = 8192;
  vote.replica_digests = {{3, 4}, {5, 6}};
  vote.blobs = {{"tree", 1, 12}, {"place", 2, 3}};
  vote.totals.state_bytes = 4096;
  return vote;
}

plan::RankDescription FullDescription() {
  plan::RankDescription description;
  description.topology = {{"dp", 2}};
  description.entries.push_back({"bias", DType::kBfloat16, {6}, {{{0}, {6}}}, "", true});
  description.entries.push_back({"empty", DType::kInt64, {0}, {}, "", false});
  description.entries.push_back({"scalar", DType::kFloat64, {}, {{{}, {}}}, "", false});
  description.entries.push_back({"weight", DType::kFloat32, {4, 6}, {{{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}}, "", false});
  description.entries.push_back({"zied", DType::kFloat32, {4, 6}, {}, "weight", false});
  return description;
}

}  // namespace

std::vector<Target> MessageTargets() {
  const absl::Status cause = engine::FromRank(absl::UnavailableError("the disk is gone"), 3, "writing");
  engine::Ended aborted;
  aborted.cause = cause;
  engine::Ended skipped;
  skipped.kind = engine::Ended::Kind::kSkipped;
  skipped.reason = "no memory";
  return {
      {"ready", {engine::Encode(engine::Ready{cause, {1, 2}, true}), engine::Encode(engine::Ready{})}, AttackReady},
      {"go", {engine::Encode(engine::Go{true, false, {.step = 100, .incarnation = 1, .attempt = 0}})}, AttackGo},
      {"vote", {engine::Encode(FullVote())}, AttackVote},
      {"ended", {engine::Encode(aborted), engine::Encode(skipped)}, AttackEnded},
      {"status", {engine::EncodeStatus(cause), engine::EncodeStatus(absl::OkStatus())}, AttackStatus},
      {"description", {plan::EncodeDescription(FullDescription())}, AttackDescription},
  };
}

}  // namespace lamina::fuzz
