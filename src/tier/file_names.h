// Names around a root on a file system: parents, and the hidden names of what is not published yet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "env/env.h"

namespace lamina::tier {

std::string DirectoryOf(const std::string& path);
// ".tmp-" and a nonce, in `directory`: of what is to be published.
std::string TemporaryPath(env::Env& env, const std::string& directory);
// ".lamina-" and a nonce: of a trial, which may have to be made beside a root, among files of others.
std::string TrialPath(env::Env& env, const std::string& directory);
bool IsTrial(std::string_view name);
bool IsTemporary(std::string_view name);                                // either
inline constexpr int64_t kLeftoverAgeNs = 24 * 3600 * base::kSecondNs;  // of a hidden file that nobody can be at any more
// Removes files, and no links, whose names are `is_ours` and whose time is `age_ns` before `now_ns` or more. Returns how many. None where
// the directory is not there.
absl::StatusOr<int64_t> RemoveOld(env::FileSystem& files, const std::string& directory, bool (*is_ours)(std::string_view name),
                                  int64_t now_ns, int64_t age_ns);
// NotFound, naming the nearest ancestor that exists, for a root whose parent does not.
absl::Status NoParent(env::FileSystem& files, const std::string& root);

}  // namespace lamina::tier
