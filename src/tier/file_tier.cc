#include "tier/file_tier.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"
#include "tier/file_names.h"
#include "tier/file_object.h"

namespace lamina::tier {
namespace {

constexpr int64_t kUnseenNs = 30 * base::kSecondNs;  // network file systems remember absence for so long
constexpr int64_t kUnseenPauseNs = 200 * base::kMillisecondNs;
constexpr int kTries = 5;            // of what a tidying process may undo while it is done
constexpr size_t kLevelsMax = 1000;  // directories remembered

bool HasErrno(const absl::Status& status, std::initializer_list<int> numbers) {
  const std::optional<int> found = base::ErrnoOf(status);
  return found.has_value() && std::find(numbers.begin(), numbers.end(), *found) != numbers.end();
}

std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

FileTier::FileTier(env::Env& env, std::string root, io::IoQueue& queue)
    : env_(env), files_(env.files()), root_(WithoutTrailingSlashes(std::move(root))), queue_(queue), mutex_(env) {}

std::string FileTier::PathOf(std::string_view name) const { return JoinName(name.empty() || root_ != "/" ? root_ : "", name); }

absl::StatusOr<std::optional<env::FileSystemInfo>> FileTier::Capacity() {
  absl::StatusOr<env::FileSystemInfo> capacity = files_.Capacity(root_);
  if (absl::IsNotFound(capacity.status())) capacity = files_.Capacity(DirectoryOf(root_));
  LAMINA_RETURN_IF_ERROR(capacity.status());
  return *capacity;
}

absl::Status FileTier::CheckLevels(std::string_view name) {
  for (size_t end = name.find('/'); end != std::string_view::npos; end = name.find('/', end + 1)) {
    const std::string level(name.substr(0, end));
    {
      const env::MutexLock lock(mutex_);
      if (levels_.contains(level)) continue;
    }
    LAMINA_ASSIGN_OR_RETURN(const std::optional<env::FileKind> kind, KindOf(level));
    if (!kind.has_value()) return absl::OkStatus();  // whatever is done with the name tells
    if (*kind != env::FileKind::kDirectory) return Astray(level);
    const env::MutexLock lock(mutex_);
    if (levels_.size() >= kLevelsMax) levels_.clear();
    levels_.insert(level);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<env::FileKind>> FileTier::KindOf(std::string_view name) {
  const absl::StatusOr<env::FileInfo> info = files_.Stat(PathOf(name));
  if (absl::IsNotFound(info.status())) return std::optional<env::FileKind>();
  LAMINA_RETURN_IF_ERROR(info.status());
  return std::optional(info->kind);
}

absl::Status FileTier::Astray(std::string_view name) const {
  return absl::DataLossError(absl::StrCat("'", PathOf(name), "' is a link or no directory: nothing below a root is reached through one"));
}

absl::Status FileTier::MakeLevel(const std::string& parent, const std::string& path) {
  const absl::Status made = files_.MakeDirectory(path);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  // Also when another process made it: it may not have come to its own sync.
  return files_.SyncDirectory(parent);
}

absl::Status FileTier::PrepareRoot() {
  const absl::Status made = files_.MakeDirectory(root_);
  const std::string parent = DirectoryOf(root_);
  if (absl::IsNotFound(made)) return NoParent(files_, root_);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  const absl::Status synced = files_.SyncDirectory(parent);
  // A root in a directory that this user may not open was not made a moment ago by a process of this job.
  return !made.ok() && absl::IsPermissionDenied(synced) ? absl::OkStatus() : synced;
}

absl::Status FileTier::Prepare(std::string_view prefix) {
  LAMINA_RETURN_IF_ERROR(CheckPrefix(prefix));
  LAMINA_RETURN_IF_ERROR(PrepareRoot());
  const int64_t deadline_ns = env_.MonotonicNs() + kUnseenNs;
  for (int tries = 1;; ++tries) {
    absl::Status status;
    std::string parent;
    for (size_t end = 0; status.ok() && end < prefix.size();) {
      parent = end == 0 ? root_ : PathOf(prefix.substr(0, end));
      end = std::min(prefix.find('/', end + 1), prefix.size());
      status = MakeLevel(parent, PathOf(prefix.substr(0, end)));
    }
    if (status.ok() && !prefix.empty()) {
      LAMINA_RETURN_IF_ERROR(CheckLevels(JoinName(prefix, "")));
      parent = PathOf(prefix);  // what goes into it next must find it
      status = files_.Stat(parent).status();
    }
    if (!absl::IsNotFound(status)) return status;
    // An empty level may be swept between two calls; then all levels are made again. Or it is there, and this client of a network file
    // system does not show it yet.
    const bool shows = files_.Stat(parent).ok();
    if (shows ? tries >= kTries : env_.MonotonicNs() >= deadline_ns) return status;
    if (!shows) env_.SleepNs(kUnseenPauseNs);
  }
}

absl::StatusOr<std::unique_ptr<ObjectWriter>> FileTier::CreateObject(std::string_view name) {
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  LAMINA_RETURN_IF_ERROR(CheckLevels(name));
  const std::string path = PathOf(name);
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<env::File> file, files_.CreateNew(path));
  return NewFileWriter(env_, queue_, std::move(file), path, DirectoryOf(path));
}

absl::StatusOr<std::unique_ptr<ObjectReader>> FileTier::OpenObject(std::string_view name) {
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  LAMINA_RETURN_IF_ERROR(CheckLevels(name));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<env::FileKind> kind, KindOf(name));
  if (kind == env::FileKind::kLink) return Astray(name);
  return OpenFileReader(env_, PathOf(name));
}

absl::StatusOr<std::vector<std::string>> FileTier::ListNames(std::string_view prefix) {
  LAMINA_RETURN_IF_ERROR(CheckPrefix(prefix));
  if (!prefix.empty()) LAMINA_RETURN_IF_ERROR(CheckLevels(JoinName(prefix, "")));
  const absl::StatusOr<std::vector<env::DirectoryEntry>> entries = files_.List(PathOf(prefix));
  std::vector<std::string> names;
  if (absl::IsNotFound(entries.status())) return names;
  LAMINA_RETURN_IF_ERROR(entries.status());
  for (const env::DirectoryEntry& entry : *entries) {
    if (entry.name.starts_with('.')) continue;
    if (entry.kind == env::FileKind::kFile) names.push_back(entry.name);
    if (entry.kind == env::FileKind::kDirectory) names.push_back(entry.name + "/");
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<ObjectInfo>> FileTier::List(std::string_view prefix) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListNames(prefix));
  std::vector<ObjectInfo> infos;
  for (const std::string& name : names) {
    ObjectInfo info{.name = JoinName(prefix, name)};
    if (!name.ends_with('/')) {
      const absl::StatusOr<env::FileInfo> found = files_.Stat(PathOf(info.name));
      if (absl::IsNotFound(found.status())) continue;  // deleted since it was listed
      LAMINA_RETURN_IF_ERROR(found.status());
      info.bytes = found->bytes;
      info.modified_ns = found->modified_ns;
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

// The hidden file's path. After a failure nothing of it is left, as far as the file system obeys.
absl::StatusOr<std::string> FileTier::WriteTemporary(const std::string& directory, std::string_view bytes) {
  const std::string path = TemporaryPath(env_, directory);
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<env::File> file, files_.CreateNew(path));
  absl::Status status = file->WriteAt(0, base::AsBytes(bytes));
  if (status.ok()) status = file->Sync();
  if (status.ok()) return path;
  files_.Unlink(path).IgnoreError();  // a leftover that the next claim removes; the cause above is what counts
  return status;
}

absl::Status FileTier::PublishName(const std::string& temporary, const std::string& path) {
  const absl::Status linked = files_.Link(temporary, path);
  if (!HasErrno(linked, {EPERM, EOPNOTSUPP, ENOSYS, EMLINK})) return linked;
  const absl::Status renamed = files_.RenameNoReplace(temporary, path);
  if (!HasErrno(renamed, {EOPNOTSUPP, ENOSYS})) return renamed;
  return absl::UnimplementedError(absl::StrCat(
      "'", DirectoryOf(path), "' is on a file system without hard links and without renaming that does not replace: ", linked.message()));
}

absl::Status FileTier::PutIfAbsent(std::string_view name, std::string_view bytes) {
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  LAMINA_RETURN_IF_ERROR(CheckLevels(name));
  const std::string path = PathOf(name);
  const std::string directory = DirectoryOf(path);
  absl::Status status;
  for (int tries = 0; tries < kTries; ++tries) {
    LAMINA_ASSIGN_OR_RETURN(const std::string temporary, WriteTemporary(directory, bytes));
    status = PublishName(temporary, path);
    if (absl::IsNotFound(status)) continue;  // a process whose clock is off took the temporary for a leftover
    if (status.ok()) status = files_.SyncDirectory(directory);
    files_.Unlink(temporary).IgnoreError();  // gone already after a rename; else a leftover that the next claim removes
    return status;
  }
  return status;
}

absl::Status FileTier::Touch(std::string_view name) {
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  LAMINA_RETURN_IF_ERROR(CheckLevels(name));
  return files_.Touch(PathOf(name));
}

absl::StatusOr<ObjectInfo> FileTier::Stat(std::string_view name) {
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  LAMINA_RETURN_IF_ERROR(CheckLevels(name));
  LAMINA_ASSIGN_OR_RETURN(const env::FileInfo info, files_.Stat(PathOf(name)));
  if (info.kind != env::FileKind::kFile) return absl::NotFoundError(absl::StrCat("'", PathOf(name), "' is not a file"));
  return ObjectInfo{std::string(name), info.bytes, info.modified_ns};
}

absl::Status FileTier::Delete(std::string_view name) {
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  LAMINA_RETURN_IF_ERROR(CheckLevels(name));
  const absl::Status status = files_.Unlink(PathOf(name));
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status FileTier::SettleNames(std::string_view prefix) {
  LAMINA_RETURN_IF_ERROR(CheckPrefix(prefix));
  if (!prefix.empty()) LAMINA_RETURN_IF_ERROR(CheckLevels(JoinName(prefix, "")));
  return files_.SyncDirectory(PathOf(prefix));
}

absl::StatusOr<int64_t> FileTier::RemoveLeftovers(std::string_view prefix, int64_t age_ns) {
  LAMINA_RETURN_IF_ERROR(CheckPrefix(prefix));
  if (!prefix.empty()) LAMINA_RETURN_IF_ERROR(CheckLevels(JoinName(prefix, "")));
  const std::string directory = PathOf(prefix);
  // A new file's time is the present by the server's clock.
  const absl::StatusOr<std::string> probe = WriteTemporary(directory, "");
  if (absl::IsNotFound(probe.status())) return 0;
  LAMINA_RETURN_IF_ERROR(probe.status());
  const absl::StatusOr<env::FileInfo> now = files_.Stat(*probe);
  LAMINA_RETURN_IF_ERROR(files_.Unlink(*probe));
  LAMINA_RETURN_IF_ERROR(now.status());
  return RemoveOld(files_, directory, IsTemporary, now->modified_ns, age_ns);
}

absl::Status FileTier::RemovePrefix(std::string_view prefix) {
  LAMINA_RETURN_IF_ERROR(CheckName(prefix));
  LAMINA_RETURN_IF_ERROR(CheckLevels(prefix));
  const absl::Status status = files_.RemoveDirectory(PathOf(prefix));
  return absl::IsNotFound(status) || HasErrno(status, {ENOTEMPTY, EEXIST}) ? absl::OkStatus() : status;
}

}  // namespace lamina::tier
