#include "tier/tier.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lamina::tier {
namespace {

bool IsSafeComponent(std::string_view component) {
  return !component.empty() && component != "." && component != ".." && component.find('\0') == std::string_view::npos;
}

}  // namespace

absl::Status CheckName(std::string_view name) {
  std::string_view rest = name;
  for (;;) {
    const size_t slash = rest.find('/');
    if (!IsSafeComponent(rest.substr(0, slash))) {
      return absl::InvalidArgumentError(absl::StrCat("'", std::string(name), "' is no name of an object"));
    }
    if (slash == std::string_view::npos) return absl::OkStatus();
    rest.remove_prefix(slash + 1);
  }
}

absl::Status CheckPrefix(std::string_view prefix) { return prefix.empty() ? absl::OkStatus() : CheckName(prefix); }

std::string JoinName(std::string_view prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : std::string(prefix).append("/").append(name);
}

absl::StatusOr<std::string> ReadWhole(Tier& tier, std::string_view name, int64_t bytes_max) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectReader> reader, tier.OpenObject(name));
  if (reader->bytes() > bytes_max) {
    return absl::DataLossError(
        absl::StrCat("'", std::string(name), "' in ", tier.Describe(), " has ", reader->bytes(), " bytes, expected at most ", bytes_max));
  }
  std::string bytes(static_cast<size_t>(reader->bytes()), '\0');
  LAMINA_RETURN_IF_ERROR(reader->ReadRange(0, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  return bytes;
}

}  // namespace lamina::tier
