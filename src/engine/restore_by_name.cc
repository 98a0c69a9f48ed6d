// EngineImpl::Restore: strict matching by name, agreed on by all ranks.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/serial.h"
#include "base/status.h"
#include "engine/engine_impl.h"
#include "plan/restore_plan.h"
#include "shard/box.h"

namespace lamina::engine {
namespace {

constexpr int kNearestMax = 20;  // suggestions of one rank; each costs a pass over all names

// What one rank finds: what is wrong with its targets, a line each, and the entries that it has no target for.
struct Findings {
  std::vector<std::string> wrong;
  std::vector<std::string> unmatched;
};

std::string Summary(DType dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(std::string(DTypeName(dtype)), " of ", shard::ToString(shard::WholeBox(shape)));
}

Findings Look(const std::vector<StoredTensor>& stored, std::span<const TensorView> targets) {
  Findings findings;
  std::map<std::string_view, const StoredTensor*> by_name;
  std::vector<std::string_view> known;
  for (const StoredTensor& tensor : stored) {
    by_name.emplace(tensor.name, &tensor);
    known.push_back(tensor.name);
  }
  std::set<std::string_view> matched;  // names of memory
  const auto memory_of = [](const StoredTensor& tensor) -> std::string_view {
    return tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
  };
  int suggestions = kNearestMax;
  for (const TensorView& target : targets) {
    const auto found = by_name.find(target.name);
    if (found == by_name.end()) {
      const std::string nearest = suggestions-- > 0 ? plan::NearestName(target.name, known) : "";
      findings.wrong.push_back(absl::StrCat("missing in the checkpoint: '", target.name, "'",
                                            nearest.empty() ? "" : absl::StrCat(" (nearest: '", nearest, "')")));
      continue;
    }
    const StoredTensor& tensor = *found->second;
    matched.insert(memory_of(tensor));
    if (tensor.dtype == target.dtype && tensor.global_shape == target.global_shape) continue;
    findings.wrong.push_back(absl::StrCat("'", target.name, "' is ", Summary(target.dtype, target.global_shape), ", saved as ",
                                          Summary(tensor.dtype, tensor.global_shape)));
  }
  for (const StoredTensor& tensor : stored) {
    if (!matched.contains(memory_of(tensor))) findings.unmatched.push_back(tensor.name);
  }
  return findings;
}

std::string Encode(const Findings& findings) {
  base::Writer writer;
  for (const std::vector<std::string>* list : {&findings.wrong, &findings.unmatched}) {
    writer.Put<uint64_t>(list->size());
    for (const std::string& text : *list) writer.PutText(text);
  }
  return writer.Take();
}

absl::StatusOr<Findings> Decode(std::string_view text) {
  base::Reader reader(text);
  Findings findings;
  for (std::vector<std::string>* list : {&findings.wrong, &findings.unmatched}) {
    list->resize(reader.GetCount(sizeof(uint64_t)));
    for (std::string& each : *list) each = reader.GetText();
  }
  if (!reader.AtEnd()) return absl::InternalError("restore: a rank sent names that cannot be read");
  return findings;
}

// Of the whole job: what is wrong on any rank, once, and what no rank has a target for.
absl::Status Mismatch(int64_t step, const std::vector<Findings>& ranks) {
  std::vector<std::string> lines;
  std::set<std::string_view> told;
  std::vector<std::string> unexpected = ranks.front().unmatched;
  for (const Findings& rank : ranks) {
    for (const std::string& line : rank.wrong) {
      if (told.insert(line).second) lines.push_back(line);
    }
    const std::set<std::string_view> unmatched(rank.unmatched.begin(), rank.unmatched.end());
    std::erase_if(unexpected, [&](const std::string& name) { return !unmatched.contains(name); });
  }
  for (const std::string& name : unexpected) lines.push_back(absl::StrCat("unexpected in the checkpoint: '", name, "'"));
  if (lines.empty()) return absl::OkStatus();
  std::string text;
  for (const std::string& line : lines) absl::StrAppend(&text, "\n  ", line);
  return base::WithDetail(absl::InvalidArgumentError(absl::StrCat("step ", step, " does not fit the targets:", text)),
                          base::kMismatchDetail, text);
}

}  // namespace

absl::Status EngineImpl::CheckFit(RestoreSession& session, std::span<const TensorView> targets, int round) {
  const std::string key = absl::StrCat("restore/", restore_count_ - 1, "/names/", round);
  const Patience patience{.what = "restore, comparing names", .deadline_ns = DeadlineAfter(runtime_.env, options_.restore_seconds_max)};
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          agreement_.Exchange(key, Encode(Look(session.tensors(), targets)), patience));
  std::vector<Findings> ranks;
  for (const std::string& text : texts) {
    LAMINA_ASSIGN_OR_RETURN(ranks.emplace_back(), Decode(text));
  }
  return Mismatch(session.step(), ranks);
}

absl::StatusOr<RestoreInfo> EngineImpl::Restore(std::span<const TensorView> targets, std::optional<int64_t> step) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<RestoreSession> session, BeginRestore(step));
  RestoreInfo info;
  if (!session->found()) return info;
  for (int round = 0;; ++round) {
    if (const absl::Status fit = CheckFit(*session, targets, round); !fit.ok()) return session->Fail(fit);
    info.step = session->step();
    info.next_step = session->step() + 1;
    info.rank_count = session->rank_count();
    info.topology = session->topology();
    info.line = session->line();
    info.blobs = session->blobs();
    LAMINA_ASSIGN_OR_RETURN(const RestoreSession::Progress progress, session->Fill(targets));
    info.passed_over = session->passed_over();
    if (progress == RestoreSession::Progress::kOlder) continue;
    LAMINA_RETURN_IF_ERROR(session->End());
    return info;
  }
}

absl::Status EngineImpl::Fence() {
  env::MutexLock lock(mutex_);
  return closed_ ? absl::FailedPreconditionError("this checkpointer is closed") : absl::OkStatus();
}

}  // namespace lamina::engine
