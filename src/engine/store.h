// A root as a reader sees it, without a job: what lamina.open and the command line stand on. Never claims, and writes nothing but the file
// by which it registers as a reader while a step is open.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/step_reader.h"
#include "engine/verify.h"
#include "env/env.h"
#include "lamina/engine.h"
#include "tier/tier.h"

namespace lamina::engine {

struct ListedStep {
  format::StepEntry entry;
  bool is_head = false;
  bool on_line = false;
};

// Thread-safe. Each call looks at the root anew.
class Store {
 public:
  // NotFound when there is no store. `env` and `tier` outlive it.
  static absl::StatusOr<std::unique_ptr<Store>> Open(env::Env& env, tier::Tier& tier);

  const format::StoreHeader& header() const { return header_; }
  // Newest first; with `all`, abandoned steps too, behind those of the line.
  absl::StatusOr<std::vector<ListedStep>> Steps(bool all);
  // Why a step may be missing from the line: a damaged record of the log was passed over. Empty: none was, or the line has gone on since.
  absl::StatusOr<std::string> PassedOver();
  // One step; the newest of the line without a number. NotFound names what there is.
  absl::StatusOr<std::unique_ptr<StepReader>> OpenStep(std::optional<int64_t> step);
  // The whole tensor, row-major, every byte checked.
  absl::StatusOr<std::string> ReadTensor(StepReader& reader, std::string_view name);
  absl::StatusOr<Verification> Verify(std::optional<std::vector<int64_t>> steps, bool full) {
    return engine::Verify(env_, tier_, std::move(steps), full);
  }

 private:
  Store(env::Env& env, tier::Tier& tier, const format::StoreHeader& header) : env_(env), tier_(tier), header_(header) {}

  env::Env& env_;
  tier::Tier& tier_;
  const format::StoreHeader header_;
};

// The live entry of a step in the log's table: on the line, else the newest off it. NotFound names the newest steps there are.
absl::StatusOr<format::StepEntry> FindStep(const format::LogRecord& record, int64_t step);
// That a record's line is empty: NotFound, or DataLoss where what it held may stand in a damaged record.
absl::Status NoStep(const std::string& root, const format::LogRecord& record);

}  // namespace lamina::engine
