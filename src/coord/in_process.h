// A Coordinator for ranks that live in one process: jobs of one rank, tests, the simulator.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coord/coordinator.h"
#include "env/env.h"

namespace lamina::coord {

// The map that the ranks share. Thread-safe. Its lock is a plain one, since it is never held across a call of Env.
class InProcessHub {
 public:
  // A hub that is gone answers Unavailable to everything and keeps its keys.
  void SetGone(bool gone);
  // Every operation takes this long before it takes effect.
  void SetDelayNs(int64_t delay_ns);
  size_t key_count() const;
  std::vector<std::string> Keys() const;  // sorted

 private:
  friend class InProcessCoordinator;
  int64_t delay_ns() const;
  absl::Status Set(const std::string& key, std::string_view value);
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) const;
  absl::Status Delete(const std::string& key);
  absl::Status StatusFor(const std::string& key) const;

  mutable std::mutex mutex_;
  std::map<std::string, std::string> values_;
  bool gone_ = false;
  int64_t delay_ns_ = 0;
};

// One rank's view of the hub; both arguments outlive it. InvalidArgument for a value above 1 MiB.
class InProcessCoordinator : public Coordinator {
 public:
  InProcessCoordinator(env::Env& env, InProcessHub& hub) : env_(env), hub_(hub) {}
  absl::Status Set(const std::string& key, std::string_view value) override;
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override;
  absl::StatusOr<bool> Check(const std::string& key) override;
  absl::Status Delete(const std::string& key) override;

 private:
  void Begin(std::string_view operation, const std::string& key);

  env::Env& env_;
  InProcessHub& hub_;
};

}  // namespace lamina::coord
