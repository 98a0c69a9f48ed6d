// The operating system behind Env: Linux files, clocks, threads and processes.
//
// Threads carry their task's name (its first 15 bytes) and take no signals but those that tell of a fault of their own, so that a trainer's
// handlers run on the trainer's threads. Tasks that hash, write or delete in the background ("lamina-io-…",
// "lamina-save", "lamina-retention"), and those that they start, run at low CPU and I/O priority. Start gives null
// when the system grants no further thread, at a limit of processes or of memory.
#pragma once

#include <memory>

#include "env/env.h"

namespace lamina::env {

// Thread-safe; outlives all that was made by it. Several may exist.
std::unique_ptr<Env> NewPosixEnv();

}  // namespace lamina::env
