#include "base/status.h"

#include <cerrno>
#include <charconv>
#include <cstring>

#include "absl/strings/cord.h"

namespace lamina::base {
namespace {

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTDIR:
    case EISDIR:
      return absl::StatusCode::kInvalidArgument;
    case ENOSYS:
    case EOPNOTSUPP:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

std::string ErrnoName(int error_number) {
  const char* name = strerrorname_np(error_number);
  return name != nullptr ? std::string(name) : absl::StrCat("errno ", error_number);
}

absl::Status ErrnoStatus(int error_number, std::string_view what, std::string_view path) {
  const char* description = strerrordesc_np(error_number);
  std::string message = absl::StrCat(std::string(what), path.empty() ? "" : " '", std::string(path), path.empty() ? "" : "'", ": ",
                                     description != nullptr ? description : "unknown error", " [", ErrnoName(error_number), "]");
  return WithDetail(absl::Status(CodeOf(error_number), message), kErrnoDetail, absl::StrCat(error_number));
}

std::optional<int> ErrnoOf(const absl::Status& status) {
  const std::optional<std::string> text = DetailOf(status, kErrnoDetail);
  if (!text.has_value()) return std::nullopt;
  int value = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;
  return value;
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(std::string(context), ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

absl::Status WithDetail(absl::Status status, std::string_view detail, std::string_view value) {
  status.SetPayload(absl::string_view(detail.data(), detail.size()), absl::Cord(absl::string_view(value.data(), value.size())));
  return status;
}

std::optional<std::string> DetailOf(const absl::Status& status, std::string_view detail) {
  const absl::optional<absl::Cord> payload = status.GetPayload(absl::string_view(detail.data(), detail.size()));
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

}  // namespace lamina::base
