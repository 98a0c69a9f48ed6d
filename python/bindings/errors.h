// Statuses to the classes of lamina.errors and back.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lamina::bindings {

// The exception for a status that is not OK, with rank, errno and phase set.
pybind11::object MakeError(const absl::Status& status);
// Raises it. Nothing for an OK status.
void RaiseIfError(const absl::Status& status);
// The status for the name of a class of lamina.errors; Internal for a name that is none.
absl::Status StatusFromClassName(const std::string& class_name, const std::string& message);

template <typename T>
T ValueOrRaise(absl::StatusOr<T> value) {
  RaiseIfError(value.status());
  return std::move(value).value();
}

}  // namespace lamina::bindings
