#include "coord/coordinator.h"

#include <algorithm>

#include "base/status.h"
#include "base/units.h"

namespace lamina::coord {

absl::StatusOr<std::string> Await(env::Env& env, Coordinator& coordinator, const std::string& key, int64_t deadline_ns) {
  constexpr int64_t kPauseMaxNs = 50 * base::kMillisecondNs;
  for (int64_t pause_ns = base::kMillisecondNs;; pause_ns = std::min(2 * pause_ns, kPauseMaxNs)) {
    LAMINA_ASSIGN_OR_RETURN(std::optional<std::string> value, coordinator.Get(key));
    if (value.has_value()) return *std::move(value);
    const int64_t now = env.MonotonicNs();
    if (now >= deadline_ns) return absl::DeadlineExceededError(absl::StrCat("nobody has set '", key, "' in time"));
    env.SleepNs(std::min(pause_ns, deadline_ns - now));
  }
}

}  // namespace lamina::coord
