#include "tier/file_names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tier/tier.h"

namespace lamina::tier {
namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kTrialPrefix = ".lamina-";
constexpr int kNonceDigits = 16;

std::string NonceName(env::Env& env, const std::string& directory, std::string_view prefix) {
  return JoinName(directory, absl::StrCat(std::string(prefix), env::RandomHex(env, kNonceDigits)));
}

bool IsNonceName(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) && name.size() == prefix.size() + kNonceDigits &&
         name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
}

// The nearest ancestor of `path` that exists.
std::string LongestExisting(env::FileSystem& files, std::string path) {
  while (path.size() > 1 && !files.Stat(path).ok()) path = DirectoryOf(path);
  return path;
}

}  // namespace

std::string DirectoryOf(const std::string& path) { return path.substr(0, std::max<size_t>(path.rfind('/'), 1)); }

std::string TemporaryPath(env::Env& env, const std::string& directory) { return NonceName(env, directory, kTemporaryPrefix); }

std::string TrialPath(env::Env& env, const std::string& directory) { return NonceName(env, directory, kTrialPrefix); }

bool IsTrial(std::string_view name) { return IsNonceName(name, kTrialPrefix); }

bool IsTemporary(std::string_view name) { return IsNonceName(name, kTemporaryPrefix) || IsTrial(name); }

absl::StatusOr<int64_t> RemoveOld(env::FileSystem& files, const std::string& directory, bool (*is_ours)(std::string_view name),
                                  int64_t now_ns, int64_t age_ns) {
  const absl::StatusOr<std::vector<env::DirectoryEntry>> entries = files.List(directory);
  if (absl::IsNotFound(entries.status())) return 0;
  LAMINA_RETURN_IF_ERROR(entries.status());
  int64_t removed = 0;
  for (const env::DirectoryEntry& entry : *entries) {
    if (entry.kind != env::FileKind::kFile || !is_ours(entry.name)) continue;
    const std::string path = JoinName(directory, entry.name);
    const absl::StatusOr<env::FileInfo> info = files.Stat(path);
    if (absl::IsNotFound(info.status())) continue;
    LAMINA_RETURN_IF_ERROR(info.status());
    if (now_ns - info->modified_ns < age_ns) continue;
    if (const absl::Status status = files.Unlink(path); !status.ok() && !absl::IsNotFound(status)) return status;
    ++removed;
  }
  return removed;
}

absl::Status NoParent(env::FileSystem& files, const std::string& root) {
  const std::string parent = DirectoryOf(root);
  return absl::NotFoundError(
      absl::StrCat("'", parent, "', which should hold the root '", root, "', does not exist; '", LongestExisting(files, parent), "' does"));
}

}  // namespace lamina::tier
