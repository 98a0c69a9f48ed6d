// The exit code of a program whose last save failed while it ended.
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "engine.h"

namespace lamina::bindings {
namespace {

constexpr int kExitCode = 75;  // EX_TEMPFAIL of sysexits.h

void EndAsFailed() {
  std::fflush(nullptr);
  _exit(kExitCode);
}

}  // namespace

void BindExit(pybind11::module_& module) {
  // The C library calls it when the interpreter has ended, after every handler of Python's atexit and the flush of its streams.
  module.def("exit_as_failed", [] { std::atexit(EndAsFailed); });
}

}  // namespace lamina::bindings
