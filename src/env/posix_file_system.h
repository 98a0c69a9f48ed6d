// Files of the operating system. Calls interrupted by a signal are repeated, short transfers continued. Descriptors are closed on exec.
#pragma once

#include <memory>

#include "env/file_system.h"

namespace lamina::env {

// Thread-safe and without state. Touch, Stat, Unlink, Link and RenameNoReplace act on a link itself, never on what it points to.
std::unique_ptr<FileSystem> NewPosixFileSystem();

}  // namespace lamina::env
