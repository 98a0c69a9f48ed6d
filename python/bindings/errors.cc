#include "errors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;

struct Row {
  absl::StatusCode code;
  std::string_view class_name;
};

// docs/architecture.md, "Errors", is this table in words. The first row of a class or code counts.
constexpr std::array kRows = {
    Row{absl::StatusCode::kInvalidArgument, "InvalidArgumentError"},
    Row{absl::StatusCode::kOutOfRange, "InvalidArgumentError"},
    Row{absl::StatusCode::kInvalidArgument, "MismatchError"},
    Row{absl::StatusCode::kNotFound, "NotFoundError"},
    Row{absl::StatusCode::kAborted, "FencedError"},
    Row{absl::StatusCode::kPermissionDenied, "PermissionDeniedError"},
    Row{absl::StatusCode::kDataLoss, "CorruptionError"},
    Row{absl::StatusCode::kUnimplemented, "UnsupportedError"},
    Row{absl::StatusCode::kFailedPrecondition, "StateError"},
    Row{absl::StatusCode::kResourceExhausted, "ResourceExhaustedError"},
    Row{absl::StatusCode::kUnavailable, "UnavailableError"},
    Row{absl::StatusCode::kDeadlineExceeded, "DeadlineError"},
    Row{absl::StatusCode::kCancelled, "CancelledError"},
    Row{absl::StatusCode::kInternal, "InternalError"},
    Row{absl::StatusCode::kUnknown, "Error"},  // an exception of the trainer's own code
};

std::string_view ClassNameOf(const absl::Status& status) {
  if (base::DetailOf(status, base::kMismatchDetail).has_value()) return "MismatchError";
  const auto* row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& known) { return known.code == status.code(); });
  return row == kRows.end() ? "InternalError" : row->class_name;
}

py::object NumberOf(const absl::Status& status, std::string_view detail) {
  const std::optional<std::string> text = base::DetailOf(status, detail);
  int value = 0;
  if (!text.has_value() || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) return py::none();
  return py::int_(value);
}

}  // namespace

py::object MakeError(const absl::Status& status) {
  const py::object type = py::module_::import("lamina.errors").attr(std::string(ClassNameOf(status)).c_str());
  // Messages may quote names, which are bytes.
  const std::string message(status.message());
  const py::object text =
      py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
  py::object error = type(text);
  error.attr("rank") = NumberOf(status, base::kRankDetail);
  error.attr("errno") = NumberOf(status, base::kErrnoDetail);
  const std::optional<std::string> phase = base::DetailOf(status, base::kPhaseDetail);
  error.attr("phase") = phase.has_value() ? py::object(py::str(*phase)) : py::none();
  const std::optional<std::string> causes = base::DetailOf(status, base::kCausesDetail);
  if (causes.has_value()) error.attr("causes") = py::tuple(py::str(*causes).attr("splitlines")());
  return error;
}

void RaiseIfError(const absl::Status& status) {
  if (status.ok()) return;
  const py::object error = MakeError(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

absl::Status StatusFromClassName(const std::string& class_name, const std::string& message) {
  const auto* row = std::find_if(kRows.begin(), kRows.end(), [&](const Row& known) { return known.class_name == class_name; });
  if (row == kRows.end()) return absl::InternalError(message);
  const absl::Status status(row->code, message);
  return class_name == "MismatchError" ? base::WithDetail(status, base::kMismatchDetail, "python") : status;
}

}  // namespace lamina::bindings
