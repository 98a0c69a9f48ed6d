#include "base/status.h"

#include <catch2/catch.hpp>
#include <cerrno>

namespace lamina::base {
namespace {

absl::StatusOr<int> HalfOf(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError(absl::StrCat(value, " is odd"));
  return value / 2;
}

absl::StatusOr<int> QuarterOf(int value) {
  LAMINA_ASSIGN_OR_RETURN(const int half, HalfOf(value));
  LAMINA_RETURN_IF_ERROR(HalfOf(half).status());
  return half / 2;
}

TEST_CASE("Each errno has the code that callers act on", "[base]") {
  const std::pair<int, absl::StatusCode> table[] = {
      {ENOSPC, absl::StatusCode::kResourceExhausted}, {EDQUOT, absl::StatusCode::kResourceExhausted},
      {ENOMEM, absl::StatusCode::kResourceExhausted}, {EMFILE, absl::StatusCode::kResourceExhausted},
      {ENOENT, absl::StatusCode::kNotFound},          {EEXIST, absl::StatusCode::kAlreadyExists},
      {EACCES, absl::StatusCode::kPermissionDenied},  {EPERM, absl::StatusCode::kPermissionDenied},
      {EROFS, absl::StatusCode::kPermissionDenied},   {EINVAL, absl::StatusCode::kInvalidArgument},
      {ENOTDIR, absl::StatusCode::kInvalidArgument},  {ENOSYS, absl::StatusCode::kUnimplemented},
      {EOPNOTSUPP, absl::StatusCode::kUnimplemented}, {EIO, absl::StatusCode::kUnavailable},
      {ESTALE, absl::StatusCode::kUnavailable},       {4711, absl::StatusCode::kUnavailable}};
  for (const auto& [error_number, code] : table) {
    INFO(ErrnoName(error_number));
    REQUIRE(ErrnoStatus(error_number, "write", "/a").code() == code);
    REQUIRE(ErrnoOf(ErrnoStatus(error_number, "write", "/a")) == error_number);
  }
}

TEST_CASE("A message names the call, the path and the errno", "[base]") {
  REQUIRE(std::string(ErrnoStatus(ENOSPC, "write", "/a/b").message()) == "write '/a/b': No space left on device [ENOSPC]");
  REQUIRE(std::string(ErrnoStatus(4711, "getrandom").message()) == "getrandom: unknown error [errno 4711]");
}

TEST_CASE("Context goes before the message; code and details stay", "[base]") {
  const absl::Status inner = WithDetail(ErrnoStatus(EIO, "read", "/a"), kRankDetail, "3");
  const absl::Status outer = Annotate(Annotate(inner, "chunk 7"), "restore");
  REQUIRE(outer.code() == absl::StatusCode::kUnavailable);
  REQUIRE(std::string(outer.message()) == "restore: chunk 7: read '/a': Input/output error [EIO]");
  REQUIRE(ErrnoOf(outer) == EIO);
  REQUIRE(DetailOf(outer, kRankDetail) == "3");
  REQUIRE_FALSE(DetailOf(outer, kPhaseDetail).has_value());
  REQUIRE(Annotate(absl::OkStatus(), "restore").ok());
}

TEST_CASE("A status that came from elsewhere has no errno", "[base]") {
  REQUIRE_FALSE(ErrnoOf(absl::OkStatus()).has_value());
  REQUIRE_FALSE(ErrnoOf(absl::InternalError("x")).has_value());
  REQUIRE_FALSE(ErrnoOf(WithDetail(absl::InternalError("x"), kErrnoDetail, "many")).has_value());
}

TEST_CASE("The macros hand a failure on and a value over", "[base]") {
  REQUIRE(QuarterOf(8).value() == 2);
  REQUIRE(std::string(QuarterOf(7).status().message()) == "7 is odd");
  REQUIRE(std::string(QuarterOf(6).status().message()) == "3 is odd");
}

}  // namespace
}  // namespace lamina::base
