#include "tensor.h"

#include <pybind11/stl.h>

#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "errors.h"
#include "shard/boxes_of.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;

BoxView BoxFromPython(const py::handle& item) {
  const py::tuple tuple = py::reinterpret_borrow<py::tuple>(item);
  BoxView view;
  view.box.offset = tuple[0].cast<std::vector<int64_t>>();
  view.box.extent = tuple[1].cast<std::vector<int64_t>>();
  view.data = reinterpret_cast<void*>(tuple[2].cast<uintptr_t>());  // NOLINT(performance-no-int-to-ptr): an address is an int in Python
  view.strides = tuple[3].cast<std::vector<int64_t>>();
  return view;
}

shard::Placement PlacementFromPython(const py::handle& item) {
  shard::Placement placement;
  if (item.is_none()) return placement;
  const auto [kind, dim, split_factor] = item.cast<std::tuple<std::string, int64_t, int64_t>>();
  placement.dim = dim;
  placement.split_factor = split_factor;
  if (kind == "shard") placement.kind = shard::Placement::Kind::kShard;
  if (kind == "strided_shard") placement.kind = shard::Placement::Kind::kStridedShard;
  return placement;
}

}  // namespace

std::string TextFromPython(const py::handle& text) {
  const py::object bytes = py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  if (!bytes) throw py::error_already_set();
  return bytes.cast<std::string>();
}

std::vector<TensorView> TensorsFromPython(const py::sequence& tensors) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (const py::handle item : tensors) {
    const py::tuple tuple = py::reinterpret_borrow<py::tuple>(item);
    TensorView& view = views.emplace_back();
    view.name = TextFromPython(tuple[0]);
    const std::string dtype_name = tuple[1].cast<std::string>();
    const std::optional<DType> dtype = DTypeFromName(dtype_name);
    if (!dtype.has_value())
      RaiseIfError(absl::InvalidArgumentError(absl::StrCat("'", view.name, "' has the unknown dtype '", dtype_name, "'")));
    view.dtype = *dtype;
    view.global_shape = tuple[2].cast<std::vector<int64_t>>();
    for (const py::handle box : tuple[3]) view.boxes.push_back(BoxFromPython(box));
    view.alias_of = TextFromPython(tuple[4]);
    view.replicas_may_differ = tuple[5].cast<bool>();
  }
  return views;
}

std::vector<std::pair<std::string, int64_t>> TopologyFromPython(const py::sequence& topology) {
  return topology.cast<std::vector<std::pair<std::string, int64_t>>>();
}

py::tuple ShapeToPython(std::span<const int64_t> shape) {
  py::tuple tuple(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) tuple[i] = shape[i];
  return tuple;
}

py::str TextToPython(std::string_view text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

py::list TopologyToPython(const std::vector<std::pair<std::string, int64_t>>& topology) {
  py::list list;
  for (const auto& [name, extent] : topology) list.append(py::make_tuple(TextToPython(name), extent));
  return list;
}

void BindShard(py::module_& module) {
  using namespace pybind11::literals;  // NOLINT: the literals are how keyword arguments are written
  module.def(
      "boxes_of",
      [](const std::vector<int64_t>& global_shape, const std::vector<int64_t>& mesh_shape, const std::vector<int64_t>& coordinate,
         const py::sequence& placements, const std::optional<std::vector<int64_t>>& local_shape) {
        std::vector<shard::Placement> known;
        for (const py::handle placement : placements) known.push_back(PlacementFromPython(placement));
        const std::vector<Box> boxes =
            ValueOrRaise(local_shape.has_value() ? shard::BoxesOfLocal(global_shape, mesh_shape, coordinate, known, *local_shape)
                                                 : shard::BoxesOf(global_shape, mesh_shape, coordinate, known));
        py::list list;
        for (const Box& box : boxes) list.append(py::make_tuple(ShapeToPython(box.offset), ShapeToPython(box.extent)));
        return list;
      },
      "global_shape"_a, "mesh_shape"_a, "coordinate"_a, "placements"_a, "local_shape"_a = py::none());
}

}  // namespace lamina::bindings
