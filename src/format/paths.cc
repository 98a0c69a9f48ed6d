#include "format/paths.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lamina::format {
namespace {

constexpr std::string_view kPackSuffix = ".pack";

// Takes the digits at the front of `text`; nullopt when there are none or the number does not fit.
template <typename T>
std::optional<T> TakeNumber(std::string_view& text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool TakeText(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

std::string PackName(uint32_t writer) { return absl::StrFormat("%05d.pack", writer); }
std::string LogName(uint64_t number) { return absl::StrFormat("%012d", number); }
std::string Join(std::string_view directory, std::string_view name) { return std::string(directory).append("/").append(name); }

}  // namespace

std::string AttemptPath(const AttemptId& id) { return absl::StrFormat("steps/%012d/%d-%d", id.step, id.incarnation, id.attempt); }

std::string PackPath(const AttemptId& id, uint32_t writer) { return Join(AttemptPath(id), PackName(writer)); }

std::string CatalogPath(const AttemptId& id) { return Join(AttemptPath(id), kCatalogName); }

std::string PacksPath(const AttemptId& id) { return Join(AttemptPath(id), kPacksName); }

std::string LogPath(uint64_t number) { return Join(kLogPrefix, LogName(number)); }

std::string WriterLeasePath(uint64_t incarnation) { return Join(kWritersPrefix, absl::StrCat(incarnation)); }

std::string SignOfLifePath(uint64_t incarnation, int32_t rank) { return Join(kWritersPrefix, absl::StrCat(incarnation, ".", rank)); }

std::string ReaderLeasePath(std::string_view nonce) { return Join(kReadersPrefix, nonce); }

std::string ProbePath(std::string_view nonce) { return Join(kProbePrefix, nonce); }

// Each parser ends by printing what it read: only then is it the exact inverse, whatever the number of digits. Records and incarnations
// count from 1.
std::optional<AttemptId> ParseAttemptPath(std::string_view path) {
  std::string_view rest = path;
  if (!TakeText(rest, "steps/")) return std::nullopt;
  const std::optional<int64_t> step = TakeNumber<int64_t>(rest);
  if (!step || !TakeText(rest, "/")) return std::nullopt;
  const std::optional<uint64_t> incarnation = TakeNumber<uint64_t>(rest);
  if (incarnation.value_or(0) == 0 || !TakeText(rest, "-")) return std::nullopt;
  const std::optional<uint32_t> attempt = TakeNumber<uint32_t>(rest);
  if (!attempt) return std::nullopt;
  const AttemptId id{.step = *step, .incarnation = *incarnation, .attempt = *attempt};
  return AttemptPath(id) == path ? std::optional(id) : std::nullopt;
}

std::optional<uint32_t> ParsePackName(std::string_view name) {
  std::string_view rest = name;
  const std::optional<uint32_t> writer = TakeNumber<uint32_t>(rest);
  return writer && rest == kPackSuffix && PackName(*writer) == name ? writer : std::nullopt;
}

std::optional<uint64_t> ParseLogName(std::string_view name) {
  std::string_view rest = name;
  const std::optional<uint64_t> number = TakeNumber<uint64_t>(rest);
  return number.value_or(0) != 0 && LogName(*number) == name ? number : std::nullopt;
}

std::optional<uint64_t> ParseWriterLeaseName(std::string_view name) {
  std::string_view rest = name;
  const std::optional<uint64_t> incarnation = TakeNumber<uint64_t>(rest);
  return incarnation.value_or(0) != 0 && absl::StrCat(*incarnation) == name ? incarnation : std::nullopt;
}

std::optional<uint64_t> ParseSignOfLifeName(std::string_view name) {
  std::string_view rest = name;
  const std::optional<uint64_t> incarnation = TakeNumber<uint64_t>(rest);
  if (!incarnation || !TakeText(rest, ".")) return std::nullopt;
  const std::optional<int32_t> rank = TakeNumber<int32_t>(rest);
  const bool printed = rank && *incarnation != 0 && absl::StrCat(*incarnation, ".", *rank) == name;
  return printed ? incarnation : std::nullopt;
}

bool IsNonce(std::string_view name) {
  return name.size() == kNonceDigits && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace lamina::format
