#include "engine/store.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "engine/filler.h"
#include "shard/box.h"
#include "tier/log.h"

namespace lamina::engine {
namespace {

constexpr double kRetryS = 5;  // for names that a network file system does not show yet
constexpr size_t kStepsNamedMax = 20;

}  // namespace

absl::StatusOr<format::StepEntry> FindStep(const format::LogRecord& record, int64_t step) {
  const std::vector<format::StepEntry> line = tier::LineOf(record);
  for (const format::StepEntry& entry : line) {
    if (entry.attempt.step == step) return entry;
  }
  // Off the line a step may have been saved more than once: the newest counts.
  for (auto entry = record.steps.rbegin(); entry != record.steps.rend(); ++entry) {
    if (entry->attempt.step == step && entry->state != format::StepState::kDropped) return *entry;
  }
  std::vector<int64_t> known;
  for (size_t i = 0; i < std::min(line.size(), kStepsNamedMax); ++i) known.push_back(line[i].attempt.step);
  const std::string lost = tier::PassedOver(record);
  return absl::NotFoundError(absl::StrCat("there is no step ", step, "; newest steps of the line: ",
                                          known.empty() ? "none" : absl::StrJoin(known, ", "), lost.empty() ? "" : "; ", lost));
}

absl::Status NoStep(const std::string& root, const format::LogRecord& record) {
  const std::string lost = tier::PassedOver(record);
  if (!lost.empty()) return absl::DataLossError(absl::StrCat("'", root, "' holds no step that can be found: ", lost));
  return absl::NotFoundError(absl::StrCat("'", root, "' holds no step yet"));
}

absl::StatusOr<std::unique_ptr<Store>> Store::Open(env::Env& env, tier::Tier& tier) {
  tier::Log log(env, tier);
  LAMINA_ASSIGN_OR_RETURN(const format::StoreHeader header, log.ReadStore());
  return std::unique_ptr<Store>(new Store(env, tier, header));
}

absl::StatusOr<std::vector<ListedStep>> Store::Steps(bool all) {
  tier::Log log(env_, tier_);
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord record, log.Newest(/*damage_ok=*/true));
  std::vector<ListedStep> steps;
  for (const format::StepEntry& entry : tier::LineOf(record)) steps.push_back({entry, entry.commit == record.head, true});
  if (!all) return steps;
  std::set<uint64_t> line;
  for (const ListedStep& step : steps) line.insert(step.entry.commit);
  for (auto entry = record.steps.rbegin(); entry != record.steps.rend(); ++entry) {
    if (!line.contains(entry->commit) && entry->state != format::StepState::kDropped) steps.push_back({*entry, false, false});
  }
  return steps;
}

absl::StatusOr<std::string> Store::PassedOver() {
  tier::Log log(env_, tier_);
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord record, log.Newest(/*damage_ok=*/true));
  return tier::PassedOver(record);
}

absl::StatusOr<std::unique_ptr<StepReader>> Store::OpenStep(std::optional<int64_t> step) {
  auto lease = std::make_unique<tier::ReaderLease>(env_, tier_);
  tier::Log log(env_, tier_);
  LAMINA_ASSIGN_OR_RETURN(const format::LogRecord record, log.Newest(/*damage_ok=*/true));
  format::StepEntry entry;
  if (step.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(entry, FindStep(record, *step));
  } else {
    const std::vector<format::StepEntry> line = tier::LineOf(record);
    if (line.empty()) return NoStep(tier_.Describe(), record);
    entry = line.front();
  }
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<StepReader> reader, StepReader::Open(env_, tier_, header_, entry, kRetryS));
  reader->Hold(std::move(lease));
  return reader;
}

absl::StatusOr<std::string> Store::ReadTensor(StepReader& reader, std::string_view name) {
  const format::CatalogTensor* tensor = reader.FindTensor(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("step ", reader.entry().attempt.step, " has no tensor '", std::string(name), "'"));
  }
  const int64_t tensor_bytes = shard::ElementCount(tensor->global_shape) * DTypeBytes(tensor->dtype);
  LAMINA_RETURN_IF_ERROR(reader.CheckTables(*tensor));
  std::string bytes(static_cast<size_t>(tensor_bytes), '\0');
  TensorView view{tensor->name, tensor->dtype, tensor->global_shape, {}, "", false};
  view.boxes.push_back({shard::WholeBox(tensor->global_shape), bytes.data(), shard::RowMajorStrides(tensor->global_shape)});
  const std::shared_ptr<StepReader> borrowed(std::shared_ptr<void>(), &reader);
  Filler filler(env_, borrowed, {&view, 1}, /*task_count=*/2);
  LAMINA_RETURN_IF_ERROR(filler.Plan());
  LAMINA_RETURN_IF_ERROR(filler.Fill());
  return bytes;
}

}  // namespace lamina::engine
