// Names of objects in a root. All come from numbers; names of entries never become paths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lamina::format {

// One try to save a step. Its directory is steps/<step, 12 digits>/<incarnation>-<attempt>.
struct AttemptId {
  int64_t step = 0;
  uint64_t incarnation = 0;
  uint32_t attempt = 0;
  bool operator==(const AttemptId&) const = default;
  auto operator<=>(const AttemptId&) const = default;
};

std::string AttemptPath(const AttemptId& id);                  // "steps/000000000100/7-0"
std::optional<AttemptId> ParseAttemptPath(std::string_view path);  // exact inverse
std::string PackPath(const AttemptId& id, uint32_t writer);    // ".../00003.pack"
std::string CatalogPath(const AttemptId& id);
std::string PacksPath(const AttemptId& id);
std::string LogPath(uint64_t number);                          // "log/000000000042"
std::optional<uint64_t> ParseLogName(std::string_view name);   // "000000000042" → 42; exact inverse
std::string WriterLeasePath(uint64_t incarnation);             // "writers/7"
std::string ReaderLeasePath(std::string_view nonce);           // "readers/<nonce>"
inline constexpr std::string_view kStorePath = "LAMINA";
inline constexpr std::string_view kLogPrefix = "log";
inline constexpr std::string_view kStepsPrefix = "steps";

}  // namespace lamina::format
