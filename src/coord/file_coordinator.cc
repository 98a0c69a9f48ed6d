#include "coord/file_coordinator.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::coord {
namespace {

constexpr std::string_view kHiddenPrefix = ".tmp-";
constexpr size_t kKeyBytesMax = 200;  // a name has 255 at most
constexpr int kNumberDigits = 19;     // every number of 63 bits, so that names sort as their numbers do
constexpr int kTries = 5;             // of what another rank may change, or a server forget, while it is done
constexpr int64_t kPauseNs = 10 * base::kMillisecondNs;

bool IsBare(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-' || c == '_' || c == '#';
}

// The beginning of the names of the key's files. Keys are told apart whole: what is not bare is escaped, '~' too.
absl::StatusOr<std::string> StemOf(const std::string& key) {
  std::string stem;
  for (const char c : key) {
    if (IsBare(c)) {
      stem += c;
    } else if (c == '/') {
      stem += '+';
    } else {
      std::array<char, 4> text;
      std::snprintf(text.data(), text.size(), "%%%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      stem += text.data();
    }
  }
  if (stem.size() > kKeyBytesMax) return absl::InvalidArgumentError(absl::StrCat("the coordination key '", key, "' is too long"));
  return stem + "~";
}

std::string FileName(const std::string& stem, uint64_t number, const std::string& nonce) {
  std::array<char, kNumberDigits + 1> digits;
  std::snprintf(digits.data(), digits.size(), "%0*llu", kNumberDigits, static_cast<unsigned long long>(number));
  return absl::StrCat(stem, digits.data(), "-", nonce);
}

// Of one of the key's files; 0 for a name that was not made here.
uint64_t NumberOf(const std::string& name, const std::string& stem) {
  uint64_t number = 0;
  for (size_t at = stem.size(); at < name.size() && at < stem.size() + kNumberDigits && '0' <= name[at] && name[at] <= '9'; ++at) {
    number = number * 10 + static_cast<uint64_t>(name[at] - '0');
  }
  return number;
}

bool HasErrno(const absl::Status& status, int number) { return base::ErrnoOf(status) == number; }

// What may pass: the file was replaced, or its server lost track of it.
bool IsStale(const absl::Status& status) { return absl::IsNotFound(status) || HasErrno(status, ESTALE); }

absl::StatusOr<std::string> ReadWhole(env::FileSystem& files, const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<env::File> file, files.OpenForRead(path));
  LAMINA_ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
  if (bytes > kValueBytesMax) return absl::DataLossError(absl::StrCat("'", path, "' has ", bytes, " bytes: no value of a coordinator"));
  std::string value(static_cast<size_t>(bytes), '\0');
  LAMINA_ASSIGN_OR_RETURN(const int64_t read, file->ReadAt(0, std::as_writable_bytes(std::span<char>(value.data(), value.size()))));
  if (read < bytes) return base::ErrnoStatus(ESTALE, "read", path);
  return value;
}

// Gives a file that is whole its name. A name that is taken already can only be this file's own: an answer was lost.
absl::Status GiveName(env::FileSystem& files, const std::string& hidden, const std::string& path) {
  absl::Status status = files.Link(hidden, path);
  if (HasErrno(status, EPERM) || HasErrno(status, EOPNOTSUPP) || HasErrno(status, ENOSYS)) status = files.RenameNoReplace(hidden, path);
  if (absl::IsAlreadyExists(status)) status = absl::OkStatus();
  files.Unlink(hidden).IgnoreError();  // gone after a rename; else a leftover of the job
  return status;
}

}  // namespace

bool IsKeyFile(std::string_view name) { return name.starts_with(kHiddenPrefix) || name.find('~') != std::string_view::npos; }

absl::StatusOr<std::vector<std::string>> FileCoordinator::Names() {
  absl::StatusOr<std::vector<env::DirectoryEntry>> entries = env_.files().List(directory_);
  for (int tries = 1; tries < kTries && HasErrno(entries.status(), ESTALE); ++tries) {
    env_.SleepNs(kPauseNs);
    entries = env_.files().List(directory_);
  }
  if (absl::IsNotFound(entries.status())) {
    return absl::UnavailableError(absl::StrCat("the coordination directory '", directory_, "' is gone"));
  }
  LAMINA_RETURN_IF_ERROR(entries.status());
  std::vector<std::string> names;
  for (env::DirectoryEntry& entry : *entries) {
    if (entry.kind == env::FileKind::kFile) names.push_back(std::move(entry.name));
  }
  return names;
}

absl::StatusOr<std::vector<std::string>> FileCoordinator::FilesOf(const std::string& key) {
  LAMINA_ASSIGN_OR_RETURN(const std::string stem, StemOf(key));
  LAMINA_ASSIGN_OR_RETURN(std::vector<std::string> names, Names());
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(stem); });
  return names;  // a list is sorted
}

absl::Status FileCoordinator::Remove(const std::string& name) {
  const absl::Status status = env_.files().Unlink(PathOf(name));
  return IsStale(status) ? absl::OkStatus() : status;
}

absl::StatusOr<std::string> FileCoordinator::WriteHidden(std::string_view value) {
  const std::string path = PathOf(absl::StrCat(std::string(kHiddenPrefix), env::RandomHex(env_, kNonceDigits)));
  absl::StatusOr<std::unique_ptr<env::File>> file = env_.files().CreateNew(path);
  if (absl::IsNotFound(file.status())) {
    return absl::UnavailableError(absl::StrCat("the coordination directory '", directory_, "' is gone"));
  }
  LAMINA_RETURN_IF_ERROR(file.status());
  absl::Status status = (*file)->WriteAt(0, base::AsBytes(value));
  // Not for a power cut, which the job does not outlive: so that the name never shows before the bytes do, whichever client looks.
  if (status.ok()) status = (*file)->Sync();
  if (status.ok()) return path;
  env_.files().Unlink(path).IgnoreError();  // a leftover of the job; the cause above is what counts
  return status;
}

absl::Status FileCoordinator::Set(const std::string& key, std::string_view value) {
  if (static_cast<int64_t>(value.size()) > kValueBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the value of '", key, "' has ", value.size(), " bytes; at most 1 MiB is taken"));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string stem, StemOf(key));
  absl::Status status;
  for (int tries = 0; tries < kTries; ++tries) {
    if (tries > 0) env_.SleepNs(kPauseNs);
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> older, FilesOf(key));
    const absl::StatusOr<std::string> hidden = WriteHidden(value);
    status = hidden.status();
    if (status.ok()) {
      const uint64_t number = older.empty() ? 1 : NumberOf(older.back(), stem) + 1;
      status = GiveName(env_.files(), *hidden, PathOf(FileName(stem, number, env::RandomHex(env_, kNonceDigits))));
    }
    if (status.ok()) {
      for (const std::string& name : older) LAMINA_RETURN_IF_ERROR(Remove(name));
      return absl::OkStatus();
    }
    if (!IsStale(status)) return status;
  }
  return status;
}

absl::StatusOr<std::optional<std::string>> FileCoordinator::Get(const std::string& key) {
  absl::Status status;
  for (int tries = 0; tries < kTries; ++tries) {
    if (tries > 1) env_.SleepNs(kPauseNs);
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesOf(key));
    if (names.empty()) return std::optional<std::string>();
    absl::StatusOr<std::string> value = ReadWhole(env_.files(), PathOf(names.back()));
    if (value.ok()) return std::optional<std::string>(*std::move(value));
    status = value.status();
    if (!IsStale(status)) return status;
  }
  return absl::UnavailableError(absl::StrCat("the coordination key '", key, "' changes or cannot be read: ", status.message()));
}

absl::StatusOr<bool> FileCoordinator::Check(const std::string& key) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesOf(key));
  return !names.empty();
}

absl::Status FileCoordinator::Delete(const std::string& key) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesOf(key));
  for (const std::string& name : names) LAMINA_RETURN_IF_ERROR(Remove(name));
  return absl::OkStatus();
}

absl::Status FileCoordinator::DeleteAll() {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names());
  for (const std::string& name : names) {
    if (IsKeyFile(name)) LAMINA_RETURN_IF_ERROR(Remove(name));
  }
  return absl::OkStatus();
}

}  // namespace lamina::coord
