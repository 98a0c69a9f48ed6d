#include "engine/step_choice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/store.h"
#include "tier/log.h"
#include "tier/patient_tier.h"

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

}  // namespace

void Put(base::Writer& writer, const std::vector<PassedOver>& passed_over) {
  writer.Put<uint64_t>(passed_over.size());
  for (const PassedOver& each : passed_over) {
    writer.Put(each.step);
    writer.PutText(each.reason);
  }
}

std::vector<PassedOver> GetPassedOver(base::Reader& reader) {
  std::vector<PassedOver> passed_over(reader.GetCount(2 * sizeof(uint64_t)));
  for (PassedOver& each : passed_over) {
    each.step = reader.Get<int64_t>();
    each.reason = reader.GetText();
  }
  return passed_over;
}

std::string Encode(const StepChoice& choice) {
  base::Writer writer;
  writer.Put(choice.store.store_id);
  writer.Put(choice.store.fingerprint_seed);
  writer.Put(choice.incarnation);
  writer.Put(choice.head);
  writer.Put<uint64_t>(choice.candidates.size());
  for (const format::StepEntry& entry : choice.candidates) PutEntry(writer, entry);
  writer.Put<uint64_t>(choice.line.size());
  for (const int64_t step : choice.line) writer.Put(step);
  Put(writer, choice.passed_over);
  return writer.Take();
}

absl::StatusOr<StepChoice> DecodeStepChoice(std::string_view text) {
  base::Reader reader(text);
  StepChoice choice;
  choice.store.store_id = reader.Get<format::Digest>();
  choice.store.fingerprint_seed = reader.Get<uint64_t>();
  choice.incarnation = reader.Get<uint64_t>();
  choice.head = reader.Get<uint64_t>();
  choice.candidates.resize(reader.GetCount(sizeof(uint64_t)));
  for (format::StepEntry& entry : choice.candidates) entry = GetEntry(reader);
  choice.line.resize(reader.GetCount(sizeof(int64_t)));
  for (int64_t& step : choice.line) step = reader.Get<int64_t>();
  choice.passed_over = GetPassedOver(reader);
  if (!reader.AtEnd()) return absl::InternalError("restore: rank 0 sent a choice of step that cannot be read");
  return choice;
}

absl::StatusOr<StepChoice> StepChooser::Choose() const {
  LAMINA_ASSIGN_OR_RETURN(const Claimed claimed, claim());
  StepChoice choice;
  choice.store = claimed.store;
  choice.incarnation = claimed.incarnation;
  choice.lease = std::make_shared<tier::ReaderLease>(env, tier, lease_fails);
  tier::PatientTier patient(
      env, tier, tier::LogPatience(tier, retry_ns, [this](std::string line) { waiting(wanted_step.value_or(-1), std::move(line)); }));
  tier::Log log(env, patient);
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord newest, log.Newest());
  choice.head = newest.head;
  const std::vector<format::StepEntry> line = tier::LineOf(newest);
  for (const format::StepEntry& entry : line) choice.line.push_back(entry.attempt.step);
  if (wanted_step.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(const format::StepEntry entry, FindStep(newest, *wanted_step));
    const std::optional<std::string> refusal =
        verdicts == nullptr ? std::nullopt : verdicts->Refusal(hooks::VerdictKind::kMayRestore, *wanted_step);
    if (refusal.has_value()) return absl::FailedPreconditionError(*refusal);
    choice.candidates.push_back(entry);
    return choice;
  }
  const std::string lost = tier::PassedOver(newest);
  // An empty root would have the job begin anew, over steps that are only out of sight.
  if (line.empty() && !lost.empty()) return NoStep(tier.Describe(), newest);
  if (!lost.empty()) PassOver(-1, lost, choice.passed_over);
  choice.candidates.assign(line.begin(), line.begin() + static_cast<ptrdiff_t>(std::min(line.size(), kCandidatesMax)));
  const size_t allowed = NextAllowed(choice.candidates, 0, choice.passed_over);
  if (!choice.candidates.empty() && allowed == choice.candidates.size()) {
    return absl::FailedPreconditionError(absl::StrCat("hooks refuse every step that there is to restore, the newest of them step ",
                                                      line.front().attempt.step, "; events and log have their reasons"));
  }
  choice.candidates.erase(choice.candidates.begin(), choice.candidates.begin() + static_cast<ptrdiff_t>(allowed));
  return choice;
}

size_t StepChooser::NextAllowed(const std::vector<format::StepEntry>& candidates, size_t next, std::vector<PassedOver>& passed_over) const {
  for (; verdicts != nullptr && next < candidates.size(); ++next) {
    const std::optional<std::string> refusal = verdicts->Refusal(hooks::VerdictKind::kMayRestore, candidates[next].attempt.step);
    if (!refusal.has_value()) break;
    PassOver(candidates[next].attempt.step, *refusal, passed_over);
  }
  return next;
}

void StepChooser::PassOver(int64_t step, std::string reason, std::vector<PassedOver>& passed_over) const {
  tell(step, reason);
  passed_over.push_back({step, std::move(reason)});
}

}  // namespace lamina::engine
