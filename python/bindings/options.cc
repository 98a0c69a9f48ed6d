#include "options.h"

#include <string>

#include "base/options.h"
#include "errors.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;

constexpr char kTestingEnv[] = "env";

base::OptionValue OptionFromPython(const py::handle& value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  return py::str(value).cast<std::string>();
}

}  // namespace

Options OptionsFromPython(const py::dict& options, std::shared_ptr<TestingEnv>& testing) {
  Options known;
  RaiseIfError(known.FromEnvironment());  // what it sets counts where `options` says nothing
  for (const auto& [name, value] : options) {
    if (name.cast<std::string>() == kTestingEnv) {
      testing = value.cast<std::shared_ptr<TestingEnv>>();
    } else {
      RaiseIfError(base::SetOption(known, name.cast<std::string>(), OptionFromPython(value)));
    }
  }
  RaiseIfError(known.Validate());
  return known;
}

}  // namespace lamina::bindings
