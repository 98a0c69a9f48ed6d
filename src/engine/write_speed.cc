#include "engine/write_speed.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/units.h"

namespace lamina::engine {
namespace {

constexpr size_t kRecentMin = 3;
constexpr size_t kRecentMax = 8;
constexpr double kFactor = 4;
constexpr int64_t kShortNs = base::kSecondNs;  // what is over sooner disturbs nobody

double Median(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

}  // namespace

std::optional<std::string> WriteSpeed::Judge(int64_t bytes, int64_t duration_ns) {
  const double seconds = static_cast<double>(std::max<int64_t>(duration_ns, 1)) / 1e9;
  const double speed = static_cast<double>(bytes) / seconds;
  std::optional<std::string> slow;
  if (recent_.size() >= kRecentMin && duration_ns > kShortNs && speed * kFactor < Median(recent_)) {
    slow = absl::StrFormat("%.1f MB were written at %.1f MB/s; the writes before went at %.1f MB/s", static_cast<double>(bytes) / 1e6,
                           speed / 1e6, Median(recent_) / 1e6);
  }
  recent_.push_back(speed);
  if (recent_.size() > kRecentMax) recent_.pop_front();
  return slow;
}

}  // namespace lamina::engine
