// Reads a root and says what is damaged: file, entry and chunk. Writes nothing but its registration as a reader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "env/env.h"
#include "tier/tier.h"

namespace lamina::engine {

struct Problem {
  std::string file;
  std::string entry;    // empty: not of one entry
  int64_t chunk = -1;   // -1: not of one chunk
  std::string message;  // says all of it
};

struct Verification {
  int64_t steps = 0;  // looked at
  int64_t chunks = 0;
  int64_t bytes = 0;  // of chunks read
  std::vector<Problem> problems;
};

// Looks at the store's header, every record of the log and every step of the table, abandoned ones too; or, with `steps`, at those
// steps alone, as FindStep finds them, and at no record but the newest. `full` reads every byte of every pack; without it header, footer,
// index and length of each. Problems do not stop it. A status: the root cannot be read at all.
absl::StatusOr<Verification> Verify(env::Env& env, tier::Tier& tier, std::optional<std::vector<int64_t>> steps, bool full);

}  // namespace lamina::engine
