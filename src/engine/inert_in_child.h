// An engine that does nothing in a forked child: the threads that its calls would wait for are not there, and its locks may be held for
// ever.
#pragma once

#include <memory>

#include "env/env.h"
#include "lamina/engine.h"

namespace lamina::engine {

// In this process the engine, its handles and its sessions work as they do without. In a child every call is FailedPrecondition naming this
// process, what is not a status says nothing, and destruction frees nothing. Handles keep `env` alive.
std::unique_ptr<Engine> InertInChild(std::shared_ptr<env::Env> env, std::unique_ptr<Engine> engine);

}  // namespace lamina::engine
