// Python's lock around calls that work or wait.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>

namespace lamina::bindings {

// Runs `work` with the lock released. It must not touch Python.
template <typename Work>
auto WithoutGil(Work&& work) {
  const pybind11::gil_scoped_release release;
  return std::forward<Work>(work)();
}

}  // namespace lamina::bindings
