#include "tier/patient_tier.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "format/paths.h"

namespace lamina::tier {
namespace {

constexpr int64_t kTriesUntold = 10;  // what comes back at once, as on a network file system, is no news
constexpr int64_t kPauseNs = 100 * base::kMillisecondNs;

bool IsStale(const absl::Status& status) { return absl::IsUnavailable(status) && base::ErrnoOf(status) == ESTALE; }

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename Value>
const absl::Status& StatusOf(const absl::StatusOr<Value>& result) {
  return result.status();
}

}  // namespace

Patience LogPatience(Tier& tier, int64_t retry_ns, std::function<void(std::string)> tell) {
  const auto may_show = [&tier](std::string_view name) {
    if (name != format::kStorePath) return false;
    const absl::StatusOr<std::vector<std::string>> records = tier.ListNames(format::kLogPrefix);
    return records.ok() ? !records->empty() : IsStale(records.status());
  };
  return {retry_ns, may_show, {}, std::move(tell)};
}

class PatientTier::Reader final : public ObjectReader {
 public:
  Reader(PatientTier& tier, std::string name, std::unique_ptr<ObjectReader> object)
      : tier_(tier), name_(std::move(name)), object_(std::move(object)) {}

  int64_t bytes() const override { return object_->bytes(); }
  absl::Status ReadRange(int64_t offset, std::span<std::byte> target) override {
    return tier_.Patiently(name_, Kind::kRead, [&] { return object_->ReadRange(offset, target); });
  }

 private:
  PatientTier& tier_;
  const std::string name_;
  const std::unique_ptr<ObjectReader> object_;
};

template <typename Call>
auto PatientTier::Patiently(std::string_view name, Kind kind, const Call& call) -> decltype(call()) {
  const std::string key(name);
  std::optional<int64_t> since_ns;
  while (true) {
    auto result = call();
    const absl::Status& status = StatusOf(result);
    const bool missing = kind != Kind::kOther && absl::IsNotFound(status) && patience_.may_show && patience_.may_show(name);
    if (!missing && !IsStale(status)) {
      if (kind != Kind::kOpen) Answered(key);  // one that opens may still not be read
      return result;
    }
    LAMINA_RETURN_IF_ERROR(PauseAfter(key, status, since_ns));
  }
}

void PatientTier::Answered(const std::string& name) {
  const env::MutexLock lock(mutex_);
  rows_.erase(name);
}

// OK: the caller tries again. `since_ns` is when it first failed; several may fail on one name at a time.
absl::Status PatientTier::PauseAfter(const std::string& name, const absl::Status& failure, std::optional<int64_t>& since_ns) {
  const int64_t now_ns = env_.MonotonicNs();
  int64_t tries = 1;
  if (patience_.retry_ns > 0) {
    const env::MutexLock lock(mutex_);
    Row& row = rows_.try_emplace(name, Row{now_ns, 0}).first->second;
    tries = ++row.tries;
    since_ns = std::min(since_ns.value_or(now_ns), row.since_ns);
  }
  const bool last = now_ns - since_ns.value_or(now_ns) >= patience_.retry_ns;
  if ((tries == 1 || last) && patience_.judge) {
    const absl::Status judged = patience_.judge(name, failure, last);
    if (judged != failure) return judged;
  }
  const double retry_s = static_cast<double>(patience_.retry_ns) / static_cast<double>(base::kSecondNs);
  if (last && patience_.retry_ns == 0) return failure;
  const std::string shown = name.empty() ? Describe() : name;
  if (last) return base::Annotate(failure, absl::StrCat("'", shown, "' was asked for again for ", retry_s, " s"));
  if (tries == kTriesUntold && patience_.tell) {
    patience_.tell(absl::StrCat("'", shown, "' does not show (", failure.message(), "); asked for again for up to ", retry_s, " s"));
  }
  env_.SleepNs(kPauseNs);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ObjectReader>> PatientTier::OpenObject(std::string_view name) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<ObjectReader> object, Patiently(name, Kind::kOpen, [&] { return tier_.OpenObject(name); }));
  return std::make_unique<Reader>(*this, std::string(name), std::move(object));
}

absl::Status PatientTier::Prepare(std::string_view prefix) {
  return Patiently(prefix, Kind::kOther, [&] { return tier_.Prepare(prefix); });
}

absl::StatusOr<std::vector<ObjectInfo>> PatientTier::List(std::string_view prefix) {
  return Patiently(prefix, Kind::kOther, [&] { return tier_.List(prefix); });
}

absl::StatusOr<std::vector<std::string>> PatientTier::ListNames(std::string_view prefix) {
  return Patiently(prefix, Kind::kOther, [&] { return tier_.ListNames(prefix); });
}

absl::Status PatientTier::Touch(std::string_view name) {
  return Patiently(name, Kind::kOther, [&] { return tier_.Touch(name); });
}

absl::StatusOr<ObjectInfo> PatientTier::Stat(std::string_view name) {
  return Patiently(name, Kind::kOther, [&] { return tier_.Stat(name); });
}

absl::Status PatientTier::Delete(std::string_view name) {
  return Patiently(name, Kind::kOther, [&] { return tier_.Delete(name); });
}

absl::Status PatientTier::SettleNames(std::string_view prefix) {
  return Patiently(prefix, Kind::kOther, [&] { return tier_.SettleNames(prefix); });
}

}  // namespace lamina::tier
