#include "coord/in_process.h"

#include "base/status.h"

namespace lamina::coord {

void InProcessHub::SetGone(bool gone) {
  const std::lock_guard lock(mutex_);
  gone_ = gone;
}

void InProcessHub::SetDelayNs(int64_t delay_ns) {
  const std::lock_guard lock(mutex_);
  delay_ns_ = delay_ns;
}

size_t InProcessHub::key_count() const {
  const std::lock_guard lock(mutex_);
  return values_.size();
}

std::vector<std::string> InProcessHub::Keys() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

int64_t InProcessHub::delay_ns() const {
  const std::lock_guard lock(mutex_);
  return delay_ns_;
}

absl::Status InProcessHub::StatusFor(const std::string& key) const {
  if (!gone_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the coordinator is gone; asked for '", key, "'"));
}

absl::Status InProcessHub::Set(const std::string& key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  LAMINA_RETURN_IF_ERROR(StatusFor(key));
  values_.insert_or_assign(key, std::string(value));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> InProcessHub::Get(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  LAMINA_RETURN_IF_ERROR(StatusFor(key));
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional<std::string>(found->second);
}

absl::Status InProcessHub::Delete(const std::string& key) {
  const std::lock_guard lock(mutex_);
  LAMINA_RETURN_IF_ERROR(StatusFor(key));
  values_.erase(key);
  return absl::OkStatus();
}

// Before the operation takes effect, so that a rank that dies in it has not done it.
void InProcessCoordinator::Begin(std::string_view operation, const std::string& key) {
  env_.Operation(absl::StrCat("coord.", std::string(operation), " ", key));
  if (const int64_t delay_ns = hub_.delay_ns(); delay_ns > 0) env_.SleepNs(delay_ns);
}

absl::Status InProcessCoordinator::Set(const std::string& key, std::string_view value) {
  if (static_cast<int64_t>(value.size()) > kValueBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("value of '", key, "' has ", value.size(), " bytes, at most ", kValueBytesMax, " go"));
  }
  Begin("set", key);
  return hub_.Set(key, value);
}

absl::StatusOr<std::optional<std::string>> InProcessCoordinator::Get(const std::string& key) {
  Begin("get", key);
  return hub_.Get(key);
}

absl::StatusOr<bool> InProcessCoordinator::Check(const std::string& key) {
  Begin("check", key);
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> value, hub_.Get(key));
  return value.has_value();
}

absl::Status InProcessCoordinator::Delete(const std::string& key) {
  Begin("delete", key);
  return hub_.Delete(key);
}

}  // namespace lamina::coord
