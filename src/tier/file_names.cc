#include "tier/file_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tier/tier.h"

namespace lamina::tier {
namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr int kNonceDigits = 16;

// The nearest ancestor of `path` that exists.
std::string LongestExisting(env::FileSystem& files, std::string path) {
  while (path.size() > 1 && !files.Stat(path).ok()) path = DirectoryOf(path);
  return path;
}

}  // namespace

std::string DirectoryOf(const std::string& path) { return path.substr(0, std::max<size_t>(path.rfind('/'), 1)); }

std::string TemporaryPath(env::Env& env, const std::string& directory) {
  return JoinName(directory, absl::StrCat(std::string(kTemporaryPrefix), env::RandomHex(env, kNonceDigits)));
}

bool IsTemporary(std::string_view name) {
  return name.starts_with(kTemporaryPrefix) && name.size() == kTemporaryPrefix.size() + kNonceDigits &&
         name.find_first_not_of("0123456789abcdef", kTemporaryPrefix.size()) == std::string_view::npos;
}

absl::Status NoParent(env::FileSystem& files, const std::string& root) {
  const std::string parent = DirectoryOf(root);
  return absl::NotFoundError(
      absl::StrCat("'", parent, "', which should hold the root '", root, "', does not exist; '", LongestExisting(files, parent), "' does"));
}

}  // namespace lamina::tier
