// What to tell where Env::Start gave no task.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lamina::env {

inline absl::Status NoThread(std::string_view purpose) {
  return absl::ResourceExhaustedError(absl::StrCat("the system grants no further thread, which is needed for ", std::string(purpose),
                                                   ": raise the limit of processes (ulimit -u) or of the job's cgroup (pids.max)"));
}

}  // namespace lamina::env
