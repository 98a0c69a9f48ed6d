// The options of an engine from a dict.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "lamina/options.h"
#include "machine.h"

namespace lamina::bindings {

// With what the environment sets of those that `options` does not name. "env" is no option, but the Env of a test, which alone can make
// one. Raises InvalidArgumentError.
Options OptionsFromPython(const pybind11::dict& options, std::shared_ptr<TestingEnv>& testing);

}  // namespace lamina::bindings
