// Helpers around absl::Status: early return, errno, context. Knows nothing of checkpoints.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lamina::base {

// A status for a failed system call: "<what> <path>: <strerror> [ENOSPC]". The code follows the table of docs/architecture.md
// (ENOSPC, EDQUOT, ENOMEM → ResourceExhausted; ENOENT → NotFound; EEXIST → AlreadyExists; EACCES, EPERM, EROFS → PermissionDenied;
// EINVAL, ENAMETOOLONG → InvalidArgument; ENOSYS, EOPNOTSUPP → Unimplemented; everything else → Unavailable).
absl::Status ErrnoStatus(int error_number, std::string_view what, std::string_view path = {});

// The errno that ErrnoStatus put in, through any number of Annotate calls; nullopt for a status that came from elsewhere.
std::optional<int> ErrnoOf(const absl::Status& status);

// The symbolic name of an errno, such as "ENOSPC"; "errno 4711" for an unknown one.
std::string ErrnoName(int error_number);

// The same status with `context` and ": " put before the message; code and payloads stay. An OK status stays as it is.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// Statuses that carry a named detail (payload), such as kMismatchDetail.
absl::Status WithDetail(absl::Status status, std::string_view detail, std::string_view value);
std::optional<std::string> DetailOf(const absl::Status& status, std::string_view detail);

inline constexpr std::string_view kErrnoDetail = "lamina.errno";
inline constexpr std::string_view kMismatchDetail = "lamina.mismatch";  // strict restore: missing, unexpected, other shape or dtype
inline constexpr std::string_view kRankDetail = "lamina.rank";          // the rank that failed first
inline constexpr std::string_view kCausesDetail = "lamina.causes";      // several ranks' messages, one a line
inline constexpr std::string_view kPhaseDetail = "lamina.phase";        // what it was doing

}  // namespace lamina::base

#define LAMINA_CONCAT_INNER(a, b) a##b
#define LAMINA_CONCAT(a, b) LAMINA_CONCAT_INNER(a, b)

#define LAMINA_RETURN_IF_ERROR(expression)                                                    \
  do {                                                                                        \
    if (absl::Status lamina_status = (expression); !lamina_status.ok()) return lamina_status; \
  } while (false)

#define LAMINA_ASSIGN_OR_RETURN(declaration, expression) \
  LAMINA_ASSIGN_OR_RETURN_INNER(LAMINA_CONCAT(lamina_status_or_, __LINE__), declaration, expression)
#define LAMINA_ASSIGN_OR_RETURN_INNER(holder, declaration, expression) \
  auto holder = (expression);                                          \
  if (!holder.ok()) return holder.status();                            \
  declaration = std::move(holder).value()
