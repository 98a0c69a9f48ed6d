// Files and directories as the layers above see them. Paths are absolute. Every call may block; every call of the simulator is a
// scheduling, crash and pause point. Statuses come from base::ErrnoStatus, so base::ErrnoOf tells the errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lamina::env {

enum class FileKind { kFile, kDirectory, kLink, kOther };

struct FileInfo {
  FileKind kind = FileKind::kFile;  // of the name itself: links are not followed
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // by the file server's clock, since the epoch
};

struct DirectoryEntry {
  std::string name;
  FileKind kind = FileKind::kFile;
};

struct FileSystemInfo {
  int64_t bytes_total = 0;
  int64_t bytes_available = 0;   // to this user
  int64_t inodes_total = 0;      // 0: the file system makes them as it needs them, or does not tell
  int64_t inodes_available = 0;  // to this user
};

// One open file. Calls on different ranges may come from several threads. Destruction closes without a sync and cannot fail.
class File {
 public:
  virtual ~File() = default;
  // Writes all of `bytes` at `offset`, short writes continued; an error leaves an unknown prefix written.
  virtual absl::Status WriteAt(int64_t offset, std::span<const std::byte> bytes) = 0;
  // Fills `bytes` from `offset`; the count read is smaller only at the end of the file.
  virtual absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) = 0;
  // fdatasync: what was written and the length are durable when it is OK. After a failure the file must be given up, never synced again.
  virtual absl::Status Sync() = 0;
  virtual absl::StatusOr<int64_t> Size() = 0;
  virtual absl::Status Truncate(int64_t bytes) = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // O_CREAT | O_EXCL | O_WRONLY, mode 0666 less the umask. AlreadyExists when the name is taken, by a dangling link too.
  virtual absl::StatusOr<std::unique_ptr<File>> CreateNew(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForRead(const std::string& path) = 0;
  // Hard link: `link_path` becomes a second name of `path`; AlreadyExists when `link_path` is taken. Never replaces.
  virtual absl::Status Link(const std::string& path, const std::string& link_path) = 0;
  // renameat2(RENAME_NOREPLACE): AlreadyExists when the target is taken; Unimplemented where the file system lacks it.
  virtual absl::Status RenameNoReplace(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Unlink(const std::string& path) = 0;           // never a directory; a link itself, not its target
  virtual absl::Status MakeDirectory(const std::string& path) = 0;    // one level, mode 0777 less the umask
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;  // an empty one
  // Makes the present names in the directory durable.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // All names but "." and "..", sorted by bytes.
  virtual absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& path) = 0;
  virtual absl::StatusOr<FileInfo> Stat(const std::string& path) = 0;  // of the name itself: links are not followed
  // Sets the time of an existing file to the server's present time; creates it empty when it is missing.
  virtual absl::Status Touch(const std::string& path) = 0;
  virtual absl::StatusOr<FileSystemInfo> Capacity(const std::string& path) = 0;
};

}  // namespace lamina::env
