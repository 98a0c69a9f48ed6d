// What the file system of a root really does, tried under hidden names that are removed again.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "env/env.h"

namespace lamina::tier {

// How each trial went. Trials behind the first one that failed for good were not made, and bear its status.
struct FileProbe {
  std::string directory;          // where it was tried: the root, or its parent while there is no root
  absl::Status writable;          // a new file can be made, written and synced
  absl::Status exclusive_create;  // a name that is taken is not created again
  absl::Status link;              // a hard link makes a name, and replaces none
  absl::Status rename;            // renaming without replacing likewise
  absl::Status durable_names;     // a directory can be synced
  int64_t clock_ahead_ns = 0;     // of the file server over this machine; as coarse as the file system's times
};

// A few files of no length, two syncs. What it made is removed, or else is a leftover: one in the root goes with a claim, one beside the
// root, as of a process that was killed, with the next probe a day later.
FileProbe ProbeFiles(env::Env& env, const std::string& root);
// OK when a name can be put where none is, which takes one of link and rename; else what is missing.
absl::Status PutsIfAbsent(const FileProbe& probe);

}  // namespace lamina::tier
