// Names around a root on a file system: parents, and the hidden names of what is not published yet.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "env/env.h"

namespace lamina::tier {

std::string DirectoryOf(const std::string& path);
// ".tmp-" and a nonce, in `directory`.
std::string TemporaryPath(env::Env& env, const std::string& directory);
bool IsTemporary(std::string_view name);
// NotFound, naming the nearest ancestor that exists, for a root whose parent does not.
absl::Status NoParent(env::FileSystem& files, const std::string& root);

}  // namespace lamina::tier
