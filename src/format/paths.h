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

std::string AttemptPath(const AttemptId& id);                    // "steps/000000000100/7-0"
std::string PackPath(const AttemptId& id, uint32_t writer);      // ".../00003.pack"
std::string CatalogPath(const AttemptId& id);                    // ".../catalog"
std::string PacksPath(const AttemptId& id);                      // ".../packs"
std::string LogPath(uint64_t number);                            // "log/000000000042"
std::string WriterLeasePath(uint64_t incarnation);               // "writers/7"
std::string SignOfLifePath(uint64_t incarnation, int32_t rank);  // "writers/7.3"
std::string ReaderLeasePath(std::string_view nonce);             // "readers/<nonce>"
std::string ProbePath(std::string_view nonce);                   // "probe/<nonce>"

// Exact inverses: nullopt for every text that the function above would not have made (signs, spaces, digits missing or too many).
std::optional<AttemptId> ParseAttemptPath(std::string_view path);     // of AttemptPath
std::optional<uint32_t> ParsePackName(std::string_view name);         // "00003.pack" → 3
std::optional<uint64_t> ParseLogName(std::string_view name);          // "000000000042" → 42
std::optional<uint64_t> ParseWriterLeaseName(std::string_view name);  // "7" → 7
std::optional<uint64_t> ParseSignOfLifeName(std::string_view name);   // "7.3" → 7
bool IsNonce(std::string_view name);                                  // of a file under readers/ or probe/

inline constexpr int kNonceDigits = 16;  // hexadecimal, lower case

inline constexpr std::string_view kStorePath = "LAMINA";
inline constexpr std::string_view kLogPrefix = "log";
inline constexpr std::string_view kStepsPrefix = "steps";
inline constexpr std::string_view kWritersPrefix = "writers";
inline constexpr std::string_view kReadersPrefix = "readers";
inline constexpr std::string_view kProbePrefix = "probe";
inline constexpr std::string_view kCatalogName = "catalog";
inline constexpr std::string_view kPacksName = "packs";

}  // namespace lamina::format
