#include "engine/memory_budget.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/units.h"

namespace lamina::engine {
namespace {

constexpr double kFreeShare = 0.4;
constexpr double kSnapshotFactor = 1.1;
constexpr std::string_view kAvailable = "MemAvailable:";

// MemAvailable of /proc/meminfo; nullopt where there is no such file.
std::optional<int64_t> FreeBytes(env::Env& env) {
  absl::StatusOr<std::unique_ptr<env::File>> file = env.files().OpenForRead("/proc/meminfo");
  if (!file.ok()) return std::nullopt;
  std::array<std::byte, 4096> bytes{};
  const absl::StatusOr<int64_t> count = (*file)->ReadAt(0, bytes);
  if (!count.ok()) return std::nullopt;
  const std::string_view text = base::AsText(std::span(bytes).first(static_cast<size_t>(*count)));
  const size_t found = text.find(kAvailable);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(found + kAvailable.size());
  const absl::string_view number = absl::StripAsciiWhitespace(absl::string_view(rest.data(), std::min(rest.find("kB"), rest.size())));
  int64_t kib = 0;
  if (!absl::SimpleAtoi(number, &kib)) return std::nullopt;
  return kib * base::kKiB;
}

}  // namespace

absl::StatusOr<int64_t> WindowBytes(env::Env& env, const Options& options, int64_t snapshot_bytes) {
  if (options.memory_bytes > 0) return options.memory_bytes;
  const int64_t wanted = base::AlignUp(static_cast<int64_t>(static_cast<double>(snapshot_bytes) * kSnapshotFactor), base::kMiB);
  const std::optional<int64_t> free_bytes = FreeBytes(env);
  if (!free_bytes.has_value()) return std::max(wanted, base::kMiB);
  const int64_t most = static_cast<int64_t>(static_cast<double>(*free_bytes) * kFreeShare);
  if (snapshot_bytes > most) {
    return absl::ResourceExhaustedError(absl::StrCat("a copy of this rank's state takes ", snapshot_bytes, " bytes, more than 40 % of the ",
                                                     *free_bytes, " bytes of free memory; to take them all the same set memory=", wanted));
  }
  return std::clamp(wanted, base::kMiB, std::max(most, base::kMiB));
}

int64_t StagingBudget(env::Env& env, const Options& options) {
  if (options.memory_bytes > 0) return options.memory_bytes;
  const std::optional<int64_t> free_bytes = FreeBytes(env);
  return free_bytes.has_value() ? static_cast<int64_t>(static_cast<double>(*free_bytes) * kFreeShare) : std::numeric_limits<int64_t>::max();
}

}  // namespace lamina::engine
