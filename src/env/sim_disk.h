// The simulated file server: a tree of files and directories, of which what was synced is durable and the rest may be lost, torn or
// reordered. Knows nothing of tasks; every call takes effect at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/file_system.h"
#include "env/sim_random.h"

namespace lamina::env {

inline constexpr int64_t kUnlimitedBytes = int64_t{1} << 50;

struct SimDiskOptions {
  uint64_t seed = 1;
  int64_t capacity_bytes = kUnlimitedBytes;
  bool lose_all_unsynced = false;  // a power cut keeps nothing that was not synced; else each thing by the seed
  int64_t stale_ns = 0;            // how long a new name stays hidden from other processes, as on NFS
  int64_t stale_list_ns = 0;       // how old a listing, and the attributes of a name that is gone, may be for other processes
};

// Who asks (process 0: the test, from which nothing is hidden): what it made itself is never hidden from it, and what it wrote dies with
// its host.
struct SimClient {
  int64_t process = 0;
  std::string host = {};
};

class SimDisk {
 public:
  struct Inode;
  using InodePtr = std::shared_ptr<Inode>;

  // `clock` is the server's wall clock.
  SimDisk(const SimDiskOptions& options, std::function<int64_t()> clock);

  absl::StatusOr<InodePtr> Create(const SimClient& client, const std::string& path);
  absl::StatusOr<InodePtr> Open(const SimClient& client, const std::string& path);
  absl::Status Link(const SimClient& client, const std::string& path, const std::string& link_path);
  absl::Status RenameNoReplace(const SimClient& client, const std::string& from, const std::string& to);
  absl::Status Unlink(const SimClient& client, const std::string& path);
  absl::Status MakeDirectory(const SimClient& client, const std::string& path);
  absl::Status RemoveDirectory(const SimClient& client, const std::string& path);
  absl::Status SyncDirectory(const SimClient& client, const std::string& path);
  absl::StatusOr<std::vector<DirectoryEntry>> List(const SimClient& client, const std::string& path);
  absl::StatusOr<FileInfo> Stat(const SimClient& client, const std::string& path);
  absl::Status Touch(const SimClient& client, const std::string& path);
  absl::Status MakeLink(const SimClient& client, const std::string& target, const std::string& path);  // a symbolic one
  FileSystemInfo Capacity() const;
  void set_capacity_bytes(int64_t bytes) { capacity_bytes_ = bytes; }
  int64_t UsedBytes() const;

  absl::Status Write(const SimClient& client, Inode& file, int64_t offset, std::span<const std::byte> bytes);
  int64_t Read(const Inode& file, int64_t offset, std::span<std::byte> bytes) const;
  int64_t Size(const Inode& file) const;
  absl::Status Truncate(const SimClient& client, Inode& file, int64_t bytes);
  void Sync(Inode& file);
  // The kernel forgets that the pages are dirty: a later sync says OK and some of them are still not durable.
  void FailSync(Inode& file);

  // The bytes land elsewhere, for good: over another part of the file or over another file beside it, whose path is returned (empty when
  // they hit nothing). Where they belong are zeros.
  absl::StatusOr<std::string> WriteElsewhere(const SimClient& client, const std::string& path, Inode& file, int64_t offset,
                                             std::span<const std::byte> bytes);

  // The server and all clients stop. What survives is durable then.
  void PowerCut();
  // One client stops: its unsynced bytes may be lost, names stay.
  void LoseHost(const std::string& host);

  std::map<std::string, std::string> Files() const;
  std::vector<std::string> Names(const std::string& directory) const;  // none when it is not there
  absl::Status CorruptByte(const std::string& path, int64_t offset);   // durable and present bytes alike
  void MakeDurable();                                                  // everything that is there now

 private:
  struct Entry {
    InodePtr inode = nullptr;
    int64_t maker = 0;
    int64_t visible_ns = 0;
  };
  using Entries = std::map<std::string, Entry>;
  // A name that is gone and still shows to those who did not remove it.
  struct Ghost {
    Entry entry;
    int64_t until_ns = 0;
  };
  // A change of one name; no inode: the name goes away, and `entry.maker` is who took it.
  struct NameChange {
    InodePtr directory;
    std::string name;
    Entry entry;
  };
  struct Place {
    int error = 0;
    InodePtr directory = nullptr;  // null for "/"
    std::string name = {};
    InodePtr inode = nullptr;  // null when nothing is seen there
    bool taken = false;
  };
  struct Survival;

  Place Find(const SimClient& client, const std::string& path, bool follow = false) const;
  bool Sees(const SimClient& client, const Entry& entry) const;
  const Ghost* FindGhost(const SimClient& client, const Place& place) const;
  InodePtr NewInode(FileKind kind);
  NameChange Addition(const SimClient& client, const Place& place, const InodePtr& inode) const;
  void Change(std::vector<NameChange> changes);
  int64_t AvailableBytes() const;
  void Overwrite(Inode& file, int64_t offset, std::span<const std::byte> bytes);
  void Settle(Inode& inode, const Survival& survival);
  void Lose(Inode& file, const std::string* host, const Survival& survival);
  absl::StatusOr<InodePtr> Add(const SimClient& client, std::string_view what, const std::string& path, FileKind kind);
  absl::Status Remove(const SimClient& client, std::string_view what, const std::string& path, bool directory);
  void Visit(const Inode& directory, const std::string& path, const std::function<void(const std::string&, Inode&)>& visit) const;

  const SimDiskOptions options_;
  const std::function<int64_t()> clock_;
  SimRandom random_;
  int64_t capacity_bytes_;
  int64_t inode_count_ = 0;
  InodePtr root_;
  std::vector<std::vector<NameChange>> unsynced_names_;  // in order; those of one call survive together
};

}  // namespace lamina::env
