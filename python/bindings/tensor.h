// Tensors as Python describes them: tuples of plain values and pointers that it has unwrapped itself.
#pragma once

#include <pybind11/pybind11.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lamina/tensor_view.h"

namespace lamina::bindings {

// (name, dtype, global shape, [(offset, extent, pointer, strides), ...], alias_of, replicas_may_differ) each. Raises InvalidArgumentError
// for a dtype that is not known.
std::vector<TensorView> TensorsFromPython(const pybind11::sequence& tensors);
std::vector<std::pair<std::string, int64_t>> TopologyFromPython(const pybind11::sequence& topology);
pybind11::tuple ShapeToPython(std::span<const int64_t> shape);
// Text of unknown origin: what is no UTF-8 is escaped by Python's surrogateescape, and comes back the same way.
pybind11::str TextToPython(std::string_view text);
std::string TextFromPython(const pybind11::handle& text);  // its inverse
pybind11::list TopologyToPython(const std::vector<std::pair<std::string, int64_t>>& topology);

void BindShard(pybind11::module_& module);

}  // namespace lamina::bindings
