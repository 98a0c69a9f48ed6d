#include "tier/file_probe.h"

#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "tier/file_names.h"

namespace lamina::tier {
namespace {

constexpr std::string_view kOwn = "own";
constexpr std::string_view kOther = "other";

class Trial {
 public:
  Trial(env::Env& env, std::string directory) : env_(env), files_(env.files()), directory_(std::move(directory)) {}

  // A new hidden file with these bytes, synced.
  absl::StatusOr<std::string> Write(std::string_view bytes) {
    const std::string path = NewName();
    LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<env::File> file, files_.CreateNew(path));
    LAMINA_RETURN_IF_ERROR(file->WriteAt(0, base::AsBytes(bytes)));
    LAMINA_RETURN_IF_ERROR(file->Sync());
    return path;
  }

  absl::Status TryExclusiveCreate(const std::string& taken) {
    return Refused(files_.CreateNew(taken).status(), taken, "creating a file under a name that is taken");
  }

  // `publish(from, to)` must make a new name, and must leave one that is taken as it is.
  absl::Status TryPublish(const std::string& taken, std::string_view what,
                          const std::function<absl::Status(const std::string&, const std::string&)>& publish) {
    LAMINA_ASSIGN_OR_RETURN(const std::string from, Write(kOther));
    LAMINA_RETURN_IF_ERROR(Refused(publish(from, taken), taken, what));
    // A network file system that asks again may say so of its own success.
    const absl::Status made = publish(from, NewName());
    return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
  }

  // What cannot be removed is a leftover.
  void RemoveAll() {
    for (const std::string& name : names_) files_.Unlink(name).IgnoreError();
  }

 private:
  std::string NewName() { return names_.emplace_back(TrialPath(env_, directory_)); }

  // OK when the call was refused because of the name, and the file of that name is what it was.
  absl::Status Refused(const absl::Status& status, const std::string& taken, std::string_view what) {
    if (!status.ok() && !absl::IsAlreadyExists(status)) return status;
    if (status.ok()) {
      return absl::UnimplementedError(absl::StrCat(std::string(what), " is not refused in '", directory_,
                                                   "': its file system lets one process undo what another has done"));
    }
    LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<env::File> file, files_.OpenForRead(taken));
    std::vector<std::byte> bytes(kOther.size() + 1);
    LAMINA_ASSIGN_OR_RETURN(const int64_t count, file->ReadAt(0, bytes));
    if (base::AsText(std::span(bytes).first(static_cast<size_t>(count))) == kOwn) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(std::string(what), " is refused in '", directory_, "', but changes the file all the same"));
  }

  env::Env& env_;
  env::FileSystem& files_;
  const std::string directory_;
  std::vector<std::string> names_;
};

FileProbe Failed(std::string directory, const absl::Status& status) {
  return {std::move(directory), status, status, status, status, status};
}

}  // namespace

FileProbe ProbeFiles(env::Env& env, const std::string& root) {
  env::FileSystem& files = env.files();
  std::string directory = root;
  if (absl::IsNotFound(files.Stat(root).status())) directory = DirectoryOf(root);
  if (absl::IsNotFound(files.Stat(directory).status())) return Failed(directory, NoParent(files, root));

  Trial trial(env, directory);
  const int64_t now_ns = env.WallNs();
  const absl::StatusOr<std::string> own = trial.Write(kOwn);
  if (!own.ok()) {
    trial.RemoveAll();
    return Failed(directory, own.status());
  }
  FileProbe probe;
  probe.directory = directory;
  if (const absl::StatusOr<env::FileInfo> info = files.Stat(*own); info.ok()) {
    probe.clock_ahead_ns = info->modified_ns - now_ns;
    // A claim looks after the root alone.
    RemoveOld(files, DirectoryOf(root), IsTrial, info->modified_ns, kLeftoverAgeNs).IgnoreError();
  }
  probe.exclusive_create = trial.TryExclusiveCreate(*own);
  probe.link = trial.TryPublish(*own, "linking a file to a name that is taken",
                                [&](const std::string& from, const std::string& to) { return files.Link(from, to); });
  probe.rename = trial.TryPublish(*own, "renaming a file, without replacing, to a name that is taken",
                                  [&](const std::string& from, const std::string& to) { return files.RenameNoReplace(from, to); });
  probe.durable_names = files.SyncDirectory(directory);
  trial.RemoveAll();
  return probe;
}

absl::Status PutsIfAbsent(const FileProbe& probe) {
  LAMINA_RETURN_IF_ERROR(probe.exclusive_create);
  if (probe.link.ok() || probe.rename.ok()) return absl::OkStatus();
  return absl::Status(probe.link.code(), absl::StrCat("nothing publishes a name without replacing one in '", probe.directory,
                                                      "': ", probe.link.message(), "; ", probe.rename.message()));
}

}  // namespace lamina::tier
