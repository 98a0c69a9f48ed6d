// The file system as one simulated process meets it: operations, faults and latency in front of the shared SimDisk.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "env/sim_env.h"

namespace lamina::env {

class SimFileSystem final : public FileSystem {
 public:
  SimFileSystem(SimWorld& world, SimProcess& process, SimClient client);

  absl::StatusOr<std::unique_ptr<File>> CreateNew(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> OpenForRead(const std::string& path) override;
  absl::Status Link(const std::string& path, const std::string& link_path) override;
  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& path) override;
  absl::StatusOr<FileInfo> Stat(const std::string& path) override;
  absl::Status Touch(const std::string& path) override;
  absl::StatusOr<FileSystemInfo> Capacity(const std::string& path) override;

 private:
  friend class SimFile;

  struct Call {
    std::string_view what;
    const std::string& path;
    uint64_t arguments = 0;                                // for the trace
    const std::function<void()>* torn_effect = nullptr;    // what death in the midst of it leaves behind
    const std::function<void()>* failed_effect = nullptr;  // and what an injected error does
    bool* misdirected = nullptr;                           // set for the effect
  };
  template <typename Effect>
  auto Do(const Call& call, Effect effect) -> decltype(effect());
  SimDisk& disk() { return world_.disk_; }

  SimWorld& world_;
  SimProcess& process_;
  const SimClient client_;
};

class SimFile final : public File {
 public:
  SimFile(SimFileSystem& files, SimDisk::InodePtr inode, std::string path, bool writable)
      : files_(files), inode_(std::move(inode)), path_(std::move(path)), writable_(writable) {
    ++files_.world_.open_file_count_;
  }
  ~SimFile() override { --files_.world_.open_file_count_; }

  absl::Status WriteAt(int64_t offset, std::span<const std::byte> bytes) override;
  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override;
  absl::Status Sync() override;
  absl::StatusOr<int64_t> Size() override;
  absl::Status Truncate(int64_t bytes) override;

 private:
  absl::Status WritePart(int64_t offset, std::span<const std::byte> bytes);
  absl::Status WriteElsewhere(int64_t offset, std::span<const std::byte> bytes);

  SimFileSystem& files_;
  const SimDisk::InodePtr inode_;
  const std::string path_;
  const bool writable_;
};

}  // namespace lamina::env
