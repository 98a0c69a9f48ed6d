#include "engine/memory_budget.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/bytes.h"
#include "base/units.h"

namespace lamina::engine {
namespace {

constexpr double kFreeShare = 0.4;

// The start of a small file of the kernel's; empty where there is no such file.
std::string Text(env::Env& env, const std::string& path) {
  absl::StatusOr<std::unique_ptr<env::File>> file = env.files().OpenForRead(path);
  if (!file.ok()) return {};
  std::array<std::byte, 8192> bytes{};
  const absl::StatusOr<int64_t> count = (*file)->ReadAt(0, bytes);
  return count.ok() ? std::string(base::AsText(std::span(bytes).first(static_cast<size_t>(*count)))) : std::string();
}

// The first number of the line that starts with `name`; nullopt when the text has none.
std::optional<int64_t> NumberOf(std::string_view text, std::string_view name) {
  for (const absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    if (!absl::StartsWith(line, absl::string_view(name.data(), name.size()))) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line.substr(name.size()), ' ', absl::SkipEmpty());
    int64_t value = 0;
    return !words.empty() && absl::SimpleAtoi(words.front(), &value) ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

// How one version of control groups says what a group may take and has taken, children included.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* used;
  std::array<std::string_view, 2> reclaimable;  // of memory.stat: caches of files, which the kernel gives up before it refuses memory
};
constexpr GroupFiles kGroupsV2{"/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}};
constexpr GroupFiles kGroupsV1{
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file ", "total_active_file "}};

// The group of this process, "/" where the kernel does not tell or the group lies outside of what is mounted here.
std::string GroupPath(env::Env& env, const std::string& top, bool version_1) {
  const std::string groups = Text(env, top + "/proc/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    const bool found = version_1 ? std::find(controllers.begin(), controllers.end(), "memory") != controllers.end() : fields[1].empty();
    if (found && absl::StartsWith(fields[2], "/") && !absl::StrContains(fields[2], "..")) return std::string(fields[2]);
  }
  return "/";
}

// What the tightest of a group and those around it leaves; nullopt when none has a limit.
std::optional<int64_t> LeftInGroups(env::Env& env, const std::string& top, const GroupFiles& files, std::string group) {
  std::optional<int64_t> least;
  while (true) {
    const std::string directory = absl::StrCat(top, files.mount, group, group == "/" ? "" : "/");
    const std::optional<int64_t> limit = NumberOf(Text(env, directory + files.limit), "");
    const std::optional<int64_t> used = NumberOf(Text(env, directory + files.used), "");
    if (limit.has_value() && used.has_value()) {
      const std::string stat = Text(env, directory + "memory.stat");
      int64_t held = *used;
      for (const std::string_view name : files.reclaimable) held -= std::max<int64_t>(NumberOf(stat, name).value_or(0), 0);
      const int64_t left = std::max<int64_t>(*limit - std::max<int64_t>(held, 0), 0);
      least = std::min(least.value_or(left), left);
    }
    if (group == "/") return least;
    group = group.substr(0, std::max<size_t>(group.rfind('/'), 1));
  }
}

// This rank's part of the free memory that the job may take.
std::optional<int64_t> BytesOfRank(env::Env& env, const Options& options) {
  const std::optional<int64_t> free_bytes = FreeMemoryBytes(env);
  if (!free_bytes.has_value()) return std::nullopt;
  return static_cast<int64_t>(static_cast<double>(*free_bytes) * kFreeShare) / options.local_rank_count;
}

}  // namespace

std::optional<int64_t> FreeMemoryBytes(env::Env& env, const std::string& top) {
  std::optional<int64_t> free_bytes = NumberOf(Text(env, top + "/proc/meminfo"), "MemAvailable:");
  if (free_bytes.has_value()) *free_bytes *= base::kKiB;
  for (const bool version_1 : {false, true}) {
    const std::optional<int64_t> left = LeftInGroups(env, top, version_1 ? kGroupsV1 : kGroupsV2, GroupPath(env, top, version_1));
    if (left.has_value()) free_bytes = std::min(free_bytes.value_or(*left), *left);
  }
  return free_bytes;
}

absl::StatusOr<int64_t> WindowBytes(env::Env& env, const Options& options, int64_t snapshot_bytes) {
  if (options.memory_bytes > 0) return options.memory_bytes;
  // A save that is called while another one is under way must not wait for it.
  const double bytes = static_cast<double>(snapshot_bytes) * kSnapshotFactor * options.saves_in_flight_max;
  const int64_t wanted = base::AlignUp(static_cast<int64_t>(bytes), base::kMiB);
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
