// Which step a restore takes: the leader's choice by the log and the hooks, and how it is told to the other ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/serial.h"
#include "engine/runtime.h"
#include "engine/save_run.h"
#include "format/log_record.h"
#include "format/store_header.h"
#include "tier/reader_lease.h"

namespace lamina::engine {

struct StepChoice {
  format::StoreHeader store;
  uint64_t incarnation = 0;
  std::vector<format::StepEntry> candidates;  // the chosen one, then older ones of the line
  std::vector<int64_t> line;
  std::vector<PassedOver> passed_over;
  uint64_t head = 0;
  std::shared_ptr<tier::ReaderLease> lease;  // put before the log was read; not told to other ranks
};

void Put(base::Writer& writer, const std::vector<PassedOver>& passed_over);
std::vector<PassedOver> GetPassedOver(base::Reader& reader);
std::string Encode(const StepChoice& choice);
absl::StatusOr<StepChoice> DecodeStepChoice(std::string_view text);

// Of the leader. A value: it may outlive the restore that it was made for.
struct StepChooser {
  env::Env& env;
  tier::Tier& tier;
  hooks::Verdicts* verdicts;  // nobody is asked when null
  std::optional<int64_t> wanted_step;
  int64_t retry_ns;  // how long files of the log that are lost are asked for again
  std::function<absl::StatusOr<Claimed>()> claim;
  std::function<void(int64_t step, std::string why)> tell;      // of what is passed over
  std::function<void(int64_t step, std::string what)> waiting;  // for files that are lost
  std::function<void(const absl::Status&)> lease_fails;         // as ReaderLease's `tell`

  // Claims the root and looks at its line. NotFound for an unknown step, FailedPrecondition where hooks refuse the wanted one or all.
  absl::StatusOr<StepChoice> Choose() const;
  // The first candidate from `next` on that no hook refuses; their count when there is none. Adds those that are refused to `passed_over`.
  size_t NextAllowed(const std::vector<format::StepEntry>& candidates, size_t next, std::vector<PassedOver>& passed_over) const;

  void PassOver(int64_t step, std::string reason, std::vector<PassedOver>& passed_over) const;
};

}  // namespace lamina::engine
