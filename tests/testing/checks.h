// What tests of whole jobs require of statuses and roots.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "env/posix_env.h"
#include "testing/job.h"
#include "testing/scratch_directory.h"

namespace lamina::testing {

inline std::string RootIn(const ScratchDirectory& scratch) { return scratch.path() + "/root"; }

inline bool Contains(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

// The first status that is not OK; each rank's is in the message.
inline absl::Status All(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) LAMINA_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

inline void RequireOk(const absl::Status& status) {
  INFO(status);
  REQUIRE(status.ok());
}

inline void RequireOk(const std::vector<absl::Status>& statuses) { RequireOk(All(statuses)); }

// What CheckRoot found in a root that must be sound.
inline Found Checked(env::Env& env, const std::string& root) {
  const absl::StatusOr<Found> found = CheckRoot(env, root);
  RequireOk(found.status());
  return *found;
}

inline Found Checked(const std::string& root) { return Checked(*env::NewPosixEnv(), root); }

}  // namespace lamina::testing
