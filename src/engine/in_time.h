// Work on storage that may never answer: done on a thread of its own, and waited for until a deadline.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"

namespace lamina::engine {

// What `work` returned, or ResourceExhausted where memory ran out in it; DeadlineExceeded when it has not returned by then. It is left
// behind in that case and may go on at any time, so it borrows nothing but what the engine stands on. `hold` is let go when the work has
// ended: by it an engine knows that work is left behind.
absl::Status RunInTime(env::Env& env, int64_t deadline_ns, std::string_view what, std::shared_ptr<void> hold,
                       std::function<absl::Status()> work);

template <typename Value>
absl::StatusOr<Value> ValueInTime(env::Env& env, int64_t deadline_ns, std::string_view what, std::shared_ptr<void> hold,
                                  std::function<absl::StatusOr<Value>()> work) {
  const auto value = std::make_shared<absl::StatusOr<Value>>(absl::UnknownError("not done"));
  const absl::Status done = RunInTime(env, deadline_ns, what, std::move(hold), [value, work = std::move(work)] {
    *value = work();
    return absl::OkStatus();
  });
  if (!done.ok()) return done;
  return *std::move(value);
}

}  // namespace lamina::engine
