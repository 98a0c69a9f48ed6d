// Removes files that nothing can need any more. docs/architecture.md, "The log", says why each kind may go.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"
#include "format/log_record.h"
#include "tier/tier.h"

namespace lamina::tier {

struct SweepOptions {
  int64_t reader_lease_ns = 120'000'000'000;  // a reader whose file is untouched this long is gone
  int64_t reader_grace_ns = 600'000'000'000;  // for readers that cannot write a file
};

// Not thread-safe. Remembers between calls what it found gone and which readers it waits for.
class Sweeper {
 public:
  // `env` and `tier` outlive it.
  Sweeper(env::Env& env, Tier& tier) : env_(env), tier_(tier) {}

  // `newest` is the newest record, durable, without damage, of the caller's own incarnation. Its first call for an incarnation looks
  // through the whole root; later ones at what `newest` names. Returns the number of objects removed; nothing is removed when a step's list
  // of packs cannot be read.
  absl::StatusOr<int64_t> Sweep(const format::LogRecord& newest, const SweepOptions& options);

  // Attempts of which no file is left.
  const std::set<format::AttemptId>& swept() const { return swept_; }

 private:
  // Readers that registered before a step was seen to be dropped.
  struct Readers {
    int64_t seen_ns = 0;
    std::set<std::string> names;
  };

  absl::StatusOr<std::set<format::AttemptId>> Candidates(const format::LogRecord& newest, const SweepOptions& options);
  absl::Status AddForgotten(const format::LogRecord& newest, std::set<format::AttemptId>& attempts);
  absl::Status AddDropped(const format::LogRecord& newest, const SweepOptions& options, std::set<format::AttemptId>& attempts);
  absl::StatusOr<std::set<std::string>> NamedPacks(const format::LogRecord& newest);
  absl::Status SweepAttempt(const format::AttemptId& attempt, const std::set<std::string>& named, int64_t& removed);
  absl::StatusOr<bool> LiesThere(const format::AttemptId& attempt);
  absl::Status Tidy(const format::LogRecord& newest, int64_t& removed);
  absl::Status RemoveOldLog(const format::LogRecord& newest, int64_t& removed);
  absl::Status RemoveOldLeases(const format::LogRecord& newest, int64_t& removed);
  absl::Status RemoveOldProbes(int64_t& removed);

  env::Env& env_;
  Tier& tier_;
  uint64_t tidied_ = 0;  // incarnation whose first sweep is done
  std::set<format::AttemptId> swept_;
  std::map<format::AttemptId, Readers> readers_;
  std::map<uint64_t, std::vector<std::string>> packs_;  // of each commit that is not dropped
};

}  // namespace lamina::tier
