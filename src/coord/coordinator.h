// Agreement between the ranks of one job: a small shared map of keys to bytes. Waiting is polling (Await), so that a slow rank
// never blocks the store for another. Values are small: paths, digests, records; 1 MiB at most.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"

namespace lamina::coord {

inline constexpr int64_t kValueBytesMax = 1 << 20;

// Thread-safe. Unavailable when the store is gone.
class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual absl::Status Set(const std::string& key, std::string_view value) = 0;        // last one wins
  virtual absl::StatusOr<std::optional<std::string>> Get(const std::string& key) = 0;  // nullopt: not there now
  virtual absl::StatusOr<bool> Check(const std::string& key) = 0;
  virtual absl::Status Delete(const std::string& key) = 0;  // fine when it is not there
};

// Polls for `key` with back-off (1 ms rising to 50 ms) until `deadline_ns` of Env::MonotonicNs: then DeadlineExceeded naming the key.
absl::StatusOr<std::string> Await(env::Env& env, Coordinator& coordinator, const std::string& key, int64_t deadline_ns);

}  // namespace lamina::coord
