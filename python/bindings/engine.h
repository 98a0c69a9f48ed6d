// Engine, SaveTicket and RestoreSession for Python, and what else the module holds.
#pragma once

#include <pybind11/pybind11.h>

namespace lamina::bindings {

void BindEngine(pybind11::module_& module);
void BindStore(pybind11::module_& module);
void BindPreflight(pybind11::module_& module);
void BindTesting(pybind11::module_& module);
void BindExit(pybind11::module_& module);

}  // namespace lamina::bindings
