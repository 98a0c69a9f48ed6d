// A tier on a file system that several hosts may share: POSIX, NFS, Lustre. Objects are files under the root; what must appear at once is
// written under a hidden name, synced and linked. Nothing is ever written in place, and no name leads out of the root: the root itself may
// be a link, but nothing below it is reached through one.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "env/env.h"
#include "env/sync.h"
#include "tier/tier.h"

namespace lamina::io {
class IoQueue;
}

namespace lamina::tier {

class FileTier : public Tier {
 public:
  // `root` is absolute. `env` and `queue`, which writes the parts of new objects, outlive the tier. Nothing is touched yet.
  FileTier(env::Env& env, std::string root, io::IoQueue& queue);

  std::string Describe() const override { return root_; }
  std::optional<FileProbe> Probe() override { return ProbeFiles(env_, root_); }
  absl::StatusOr<std::optional<env::FileSystemInfo>> Capacity() override;
  // NotFound, naming the longest existing prefix, when the directory that should hold the root is missing.
  absl::Status Prepare(std::string_view prefix) override;
  absl::StatusOr<std::unique_ptr<ObjectWriter>> CreateObject(std::string_view name) override;
  absl::StatusOr<std::unique_ptr<ObjectReader>> OpenObject(std::string_view name) override;
  absl::StatusOr<std::vector<ObjectInfo>> List(std::string_view prefix) override;
  absl::StatusOr<std::vector<std::string>> ListNames(std::string_view prefix) override;
  absl::Status PutIfAbsent(std::string_view name, std::string_view bytes) override;
  absl::Status Touch(std::string_view name) override;
  absl::StatusOr<ObjectInfo> Stat(std::string_view name) override;
  absl::Status Delete(std::string_view name) override;
  absl::Status SettleNames(std::string_view prefix) override;
  absl::StatusOr<int64_t> RemoveLeftovers(std::string_view prefix, int64_t age_ns) override;
  absl::Status RemovePrefix(std::string_view prefix) override;

 private:
  std::string PathOf(std::string_view name) const;
  // DataLoss when a directory that `name` lies in is a link, or none. Each is looked at once.
  absl::Status CheckLevels(std::string_view name);
  absl::StatusOr<std::optional<env::FileKind>> KindOf(std::string_view name);  // nullopt: not there
  absl::Status Astray(std::string_view name) const;
  absl::Status PrepareRoot();
  absl::Status MakeLevel(const std::string& parent, const std::string& path);
  absl::StatusOr<std::string> WriteTemporary(const std::string& directory, std::string_view bytes);
  absl::Status PublishName(const std::string& temporary, const std::string& path);

  env::Env& env_;
  env::FileSystem& files_;
  const std::string root_;
  io::IoQueue& queue_;
  env::Mutex mutex_;
  std::set<std::string> levels_ ABSL_GUARDED_BY(mutex_);  // known to be directories
};

}  // namespace lamina::tier
