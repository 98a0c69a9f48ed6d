#include "engine/memory_budget.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/units.h"

namespace lamina::engine {
namespace {

constexpr double kFreeShare = 0.4;
constexpr double kSnapshotFactor = 1.1;

// The start of a small file of the kernel's; empty where there is no such file.
std::string Text(env::Env& env, const std::string& path) {
  absl::StatusOr<std::unique_ptr<env::File>> file = env.files().OpenForRead(path);
  if (!file.ok()) return {};
  std::array<std::byte, 4096> bytes{};
  const absl::StatusOr<int64_t> count = (*file)->ReadAt(0, bytes);
  return count.ok() ? std::string(base::AsText(std::span(bytes).first(static_cast<size_t>(*count)))) : std::string();
}

// The number that follows `name`, up to `unit`; nullopt when the text has none.
std::optional<int64_t> NumberAfter(std::string_view text, std::string_view name, std::string_view unit) {
  const size_t found = text.find(name);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(found + name.size());
  const absl::string_view number = absl::StripAsciiWhitespace(absl::string_view(rest.data(), std::min(rest.find(unit), rest.size())));
  int64_t value = 0;
  return absl::SimpleAtoi(number, &value) ? std::optional(value) : std::nullopt;
}

// This rank's part of the free memory that the job may take.
std::optional<int64_t> BytesOfRank(env::Env& env, const Options& options) {
  const std::optional<int64_t> free_bytes = FreeMemoryBytes(env);
  if (!free_bytes.has_value()) return std::nullopt;
  return static_cast<int64_t>(static_cast<double>(*free_bytes) * kFreeShare) / options.local_rank_count;
}

}  // namespace

std::optional<int64_t> FreeMemoryBytes(env::Env& env) {
  std::optional<int64_t> free_bytes = NumberAfter(Text(env, "/proc/meminfo"), "MemAvailable:", "kB");
  if (free_bytes.has_value()) *free_bytes *= base::kKiB;
  for (const auto& [limit_path, used_path] :
       {std::pair("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        std::pair("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")}) {
    const std::optional<int64_t> limit = NumberAfter(Text(env, limit_path), "", "\n");
    const std::optional<int64_t> used = NumberAfter(Text(env, used_path), "", "\n");
    if (!limit.has_value() || !used.has_value()) continue;
    const int64_t left = std::max<int64_t>(*limit - *used, 0);
    free_bytes = std::min(free_bytes.value_or(left), left);
  }
  return free_bytes;
}

absl::StatusOr<int64_t> WindowBytes(env::Env& env, const Options& options, int64_t snapshot_bytes) {
  if (options.memory_bytes > 0) return options.memory_bytes;
  const int64_t wanted = base::AlignUp(static_cast<int64_t>(static_cast<double>(snapshot_bytes) * kSnapshotFactor), base::kMiB);
  const std::optional<int64_t> most = BytesOfRank(env, options);
  if (!most.has_value()) return std::max(wanted, base::kMiB);
  if (snapshot_bytes > *most) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a copy of this rank's state takes ", snapshot_bytes, " bytes, more than the ", *most,
        " bytes that are its part of 40 % of the free memory; to take them all the same set memory=", wanted * options.local_rank_count,
        " (bytes of all ranks of this machine)"));
  }
  return std::clamp(wanted, base::kMiB, std::max(*most, base::kMiB));
}

}  // namespace lamina::engine
