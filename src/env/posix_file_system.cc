#include "env/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::env {
namespace {

// Linux transfers at most 2 GiB less a page in one call.
constexpr size_t kTransferBytesMax = base::kGiB;

// Repeats a system call that a signal interrupted.
template <typename Call>
auto Uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

absl::Status StatusOf(int64_t result, std::string_view what, std::string_view path) {
  return result == -1 ? base::ErrnoStatus(errno, what, path) : absl::OkStatus();
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ != -1) close(number_);
  }
  int number() const { return number_; }
  int Release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

absl::StatusOr<Descriptor> Open(const std::string& path, int flags, std::string_view what) {
  constexpr mode_t kMode = 0666;
  const int number = Uninterrupted([&] { return open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, kMode); });
  if (number == -1) return base::ErrnoStatus(errno, what, path);
  return Descriptor(number);
}

FileKind KindOf(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kFile;
  if (S_ISDIR(mode)) return FileKind::kDirectory;
  return S_ISLNK(mode) ? FileKind::kLink : FileKind::kOther;
}

class PosixFile : public File {
 public:
  PosixFile(Descriptor descriptor, std::string path) : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  absl::Status WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const size_t part = std::min(bytes.size(), kTransferBytesMax);
      const ssize_t written = Uninterrupted([&] { return pwrite(descriptor_.number(), bytes.data(), part, offset); });
      if (written == -1) return base::ErrnoStatus(errno, "write", path_);
      if (written == 0) return base::ErrnoStatus(EIO, "write of no byte to", path_);
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset += written;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
    int64_t total = 0;
    while (!bytes.empty()) {
      const size_t part = std::min(bytes.size(), kTransferBytesMax);
      const ssize_t count = Uninterrupted([&] { return pread(descriptor_.number(), bytes.data(), part, offset + total); });
      if (count == -1) return base::ErrnoStatus(errno, "read", path_);
      if (count == 0) break;
      bytes = bytes.subspan(static_cast<size_t>(count));
      total += count;
    }
    return total;
  }

  absl::Status Sync() override {
    return StatusOf(Uninterrupted([&] { return fdatasync(descriptor_.number()); }), "fdatasync", path_);
  }

  absl::StatusOr<int64_t> Size() override {
    struct stat info {};
    LAMINA_RETURN_IF_ERROR(StatusOf(fstat(descriptor_.number(), &info), "fstat", path_));
    return info.st_size;
  }

  absl::Status Truncate(int64_t bytes) override {
    return StatusOf(Uninterrupted([&] { return ftruncate(descriptor_.number(), bytes); }), "ftruncate", path_);
  }

 private:
  Descriptor descriptor_;
  std::string path_;
};

int64_t BlockBytes(uint64_t blocks, uint64_t block_bytes) {
  const auto bytes = base::CheckedMultiply<uint64_t>(blocks, block_bytes);
  return static_cast<int64_t>(std::min<uint64_t>(bytes.value_or(INT64_MAX), INT64_MAX));
}

struct DirectoryCloser {
  void operator()(DIR* directory) const { closedir(directory); }
};

// The kind of a name that the file system does not tell while listing. NotFound when the name has gone meanwhile.
absl::StatusOr<FileKind> KindIn(DIR* directory, const char* name, const std::string& path) {
  struct stat info {};
  LAMINA_RETURN_IF_ERROR(StatusOf(fstatat(dirfd(directory), name, &info, AT_SYMLINK_NOFOLLOW), "stat in", path));
  return KindOf(info.st_mode);
}

// Null at the end.
absl::StatusOr<const dirent*> NextEntry(DIR* directory, const std::string& path) {
  errno = 0;
  const dirent* entry = readdir(directory);  // NOLINT(concurrency-mt-unsafe): a stream has one reader
  if (entry == nullptr && errno != 0) return base::ErrnoStatus(errno, "list", path);
  return entry;
}

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> CreateNew(const std::string& path) override {
    LAMINA_ASSIGN_OR_RETURN(Descriptor descriptor, Open(path, O_CREAT | O_EXCL | O_WRONLY, "create"));
    return std::make_unique<PosixFile>(std::move(descriptor), path);
  }

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(const std::string& path) override {
    // O_NONBLOCK: a pipe that lies there instead of a file is refused below and never waited for.
    LAMINA_ASSIGN_OR_RETURN(Descriptor descriptor, Open(path, O_RDONLY | O_NONBLOCK, "open"));
    struct stat info {};
    LAMINA_RETURN_IF_ERROR(StatusOf(fstat(descriptor.number(), &info), "fstat", path));
    if (!S_ISREG(info.st_mode)) return base::ErrnoStatus(S_ISDIR(info.st_mode) ? EISDIR : EINVAL, "open as a file", path);
    return std::make_unique<PosixFile>(std::move(descriptor), path);
  }

  absl::Status Link(const std::string& path, const std::string& link_path) override {
    return StatusOf(Uninterrupted([&] { return linkat(AT_FDCWD, path.c_str(), AT_FDCWD, link_path.c_str(), 0); }), "link", link_path);
  }

  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override {
    const int result = Uninterrupted([&] { return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE); });
    // A file system that does not know the flag says EINVAL.
    if (result == -1 && errno == EINVAL) errno = EOPNOTSUPP;
    return StatusOf(result, "rename without replacing to", to);
  }

  absl::Status Unlink(const std::string& path) override {
    return StatusOf(Uninterrupted([&] { return unlink(path.c_str()); }), "unlink", path);
  }

  absl::Status MakeDirectory(const std::string& path) override {
    constexpr mode_t kMode = 0777;
    return StatusOf(Uninterrupted([&] { return mkdir(path.c_str(), kMode); }), "make directory", path);
  }

  absl::Status RemoveDirectory(const std::string& path) override {
    return StatusOf(Uninterrupted([&] { return rmdir(path.c_str()); }), "remove directory", path);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    LAMINA_ASSIGN_OR_RETURN(const Descriptor descriptor, Open(path, O_RDONLY | O_DIRECTORY, "open directory"));
    return StatusOf(Uninterrupted([&] { return fsync(descriptor.number()); }), "fsync directory", path);
  }

  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& path) override {
    LAMINA_ASSIGN_OR_RETURN(Descriptor descriptor, Open(path, O_RDONLY | O_DIRECTORY, "open directory"));
    const std::unique_ptr<DIR, DirectoryCloser> directory(fdopendir(descriptor.number()));
    if (directory == nullptr) return base::ErrnoStatus(errno, "open directory", path);
    descriptor.Release();  // closed with the directory from here on
    std::vector<DirectoryEntry> entries;
    for (;;) {
      LAMINA_ASSIGN_OR_RETURN(const dirent* entry, NextEntry(directory.get(), path));
      if (entry == nullptr) break;
      LAMINA_RETURN_IF_ERROR(AddEntry(directory.get(), *entry, path, entries));
    }
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return entries;
  }

  absl::StatusOr<FileInfo> Stat(const std::string& path) override {
    struct stat info {};
    LAMINA_RETURN_IF_ERROR(StatusOf(lstat(path.c_str(), &info), "stat", path));
    return FileInfo{KindOf(info.st_mode), info.st_size, info.st_mtim.tv_sec * base::kSecondNs + info.st_mtim.tv_nsec};
  }

  absl::Status Touch(const std::string& path) override {
    LAMINA_ASSIGN_OR_RETURN(const Descriptor descriptor, Open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK, "touch"));
    // UTIME_NOW lets the server's clock decide, which a time of this machine would not.
    constexpr timespec kNow[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    return StatusOf(Uninterrupted([&] { return futimens(descriptor.number(), kNow); }), "set the time of", path);
  }

  absl::StatusOr<FileSystemInfo> Capacity(const std::string& path) override {
    struct statvfs info {};
    LAMINA_RETURN_IF_ERROR(StatusOf(Uninterrupted([&] { return statvfs(path.c_str(), &info); }), "statvfs", path));
    return FileSystemInfo{BlockBytes(info.f_blocks, info.f_frsize), BlockBytes(info.f_bavail, info.f_frsize), BlockBytes(info.f_files, 1),
                          BlockBytes(info.f_favail, 1)};
  }

 private:
  static absl::Status AddEntry(DIR* directory, const dirent& entry, const std::string& path, std::vector<DirectoryEntry>& entries) {
    const std::string name(entry.d_name);
    if (name == "." || name == "..") return absl::OkStatus();
    if (entry.d_type != DT_UNKNOWN) {
      entries.push_back({name, KindOf(DTTOIF(entry.d_type))});
      return absl::OkStatus();
    }
    const absl::StatusOr<FileKind> kind = KindIn(directory, entry.d_name, path);
    if (kind.ok()) entries.push_back({name, *kind});
    return absl::IsNotFound(kind.status()) ? absl::OkStatus() : kind.status();
  }
};

}  // namespace

std::unique_ptr<FileSystem> NewPosixFileSystem() { return std::make_unique<PosixFileSystem>(); }

}  // namespace lamina::env
