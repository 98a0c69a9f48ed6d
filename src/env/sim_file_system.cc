#include "env/sim_file_system.h"

#include <cerrno>
#include <utility>

#include "base/status.h"

namespace lamina::env {
namespace {

using base::ErrnoStatus;

uint64_t HashOf(std::span<const std::byte> bytes) {
  uint64_t hash = bytes.size();
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3ULL;
  return hash;
}

uint64_t HashOf(std::string_view text) { return HashOf(std::as_bytes(std::span<const char>(text.data(), text.size()))); }

uint64_t HashOf(int64_t offset, std::span<const std::byte> bytes) { return SimRandom::Mix(static_cast<uint64_t>(offset)) ^ HashOf(bytes); }

int ErrorOf(const absl::Status& status) { return status.ok() ? 0 : base::ErrnoOf(status).value_or(-1); }

template <typename T>
int ErrorOf(const absl::StatusOr<T>& result) {
  return ErrorOf(result.status());
}

}  // namespace

SimFileSystem::SimFileSystem(SimWorld& world, SimProcess& process, SimClient client)
    : world_(world), process_(process), client_(std::move(client)) {}

template <typename Effect>
auto SimFileSystem::Do(const Call& call, Effect effect) -> decltype(effect()) {
  const auto dead = [&call] { return ErrnoStatus(EIO, call.what, call.path); };  // seen by destructors of the dead only
  SimTask& task = world_.scheduler_.current();
  task.torn_effect = call.torn_effect;
  if (!world_.Enter(process_, call.what, call.path, call.arguments)) return dead();
  const SimFault fault = world_.FaultFor(call.what, call.path);
  const int64_t latency_ns = world_.scheduler_.in_test() ? 0 : world_.fault_random_.Below(world_.options_.latency_ns_max);
  const int64_t before_ns = world_.fault_random_.Below(latency_ns);
  if (!world_.Wait(process_, fault.delay_ns + before_ns)) return dead();
  task.torn_effect = nullptr;
  const bool spared = fault.error_number == 0 || fault.takes_effect;
  if (call.misdirected != nullptr) *call.misdirected = fault.misdirected;
  if (!spared && call.failed_effect != nullptr) (*call.failed_effect)();
  auto result = spared ? effect() : ErrnoStatus(fault.error_number, call.what, call.path);
  if (fault.error_number != 0) result = ErrnoStatus(fault.error_number, call.what, call.path);
  world_.Trace(static_cast<uint64_t>(ErrorOf(result)));
  if (!world_.Wait(process_, latency_ns - before_ns)) return dead();
  return result;
}

absl::StatusOr<std::unique_ptr<File>> SimFileSystem::CreateNew(const std::string& path) {
  return Do({"create", path}, [&]() -> absl::StatusOr<std::unique_ptr<File>> {
    LAMINA_ASSIGN_OR_RETURN(SimDisk::InodePtr inode, disk().Create(client_, path));
    return std::make_unique<SimFile>(*this, std::move(inode), path, /*writable=*/true);
  });
}

absl::StatusOr<std::unique_ptr<File>> SimFileSystem::OpenForRead(const std::string& path) {
  return Do({"open", path}, [&]() -> absl::StatusOr<std::unique_ptr<File>> {
    LAMINA_ASSIGN_OR_RETURN(SimDisk::InodePtr inode, disk().Open(client_, path));
    return std::make_unique<SimFile>(*this, std::move(inode), path, /*writable=*/false);
  });
}

absl::Status SimFileSystem::Link(const std::string& path, const std::string& link_path) {
  return Do({"link", link_path, HashOf(path)}, [&] { return disk().Link(client_, path, link_path); });
}

absl::Status SimFileSystem::RenameNoReplace(const std::string& from, const std::string& to) {
  return Do({"rename", to, HashOf(from)}, [&] { return disk().RenameNoReplace(client_, from, to); });
}

absl::Status SimFileSystem::Unlink(const std::string& path) {
  return Do({"unlink", path}, [&] { return disk().Unlink(client_, path); });
}

absl::Status SimFileSystem::MakeDirectory(const std::string& path) {
  return Do({"mkdir", path}, [&] { return disk().MakeDirectory(client_, path); });
}

absl::Status SimFileSystem::RemoveDirectory(const std::string& path) {
  return Do({"rmdir", path}, [&] { return disk().RemoveDirectory(client_, path); });
}

absl::Status SimFileSystem::SyncDirectory(const std::string& path) {
  return Do({"syncdir", path}, [&] { return disk().SyncDirectory(client_, path); });
}

absl::StatusOr<std::vector<DirectoryEntry>> SimFileSystem::List(const std::string& path) {
  return Do({"list", path}, [&] { return disk().List(client_, path); });
}

absl::StatusOr<FileInfo> SimFileSystem::Stat(const std::string& path) {
  return Do({"stat", path}, [&] { return disk().Stat(client_, path); });
}

absl::Status SimFileSystem::Touch(const std::string& path) {
  return Do({"touch", path}, [&] { return disk().Touch(client_, path); });
}

absl::StatusOr<FileSystemInfo> SimFileSystem::Capacity(const std::string& path) {
  return Do({"capacity", path}, [&]() -> absl::StatusOr<FileSystemInfo> {
    LAMINA_RETURN_IF_ERROR(disk().Stat(client_, path).status());
    return disk().Capacity();
  });
}

absl::Status SimFile::WriteAt(int64_t offset, std::span<const std::byte> bytes) {
  SimWorld& world = files_.world_;
  if (!world.options_.short_writes || bytes.size() < 2) return WritePart(offset, bytes);
  const int64_t first = 1 + world.fault_random_.Below(static_cast<int64_t>(bytes.size()) - 1);
  LAMINA_RETURN_IF_ERROR(WritePart(offset, bytes.first(static_cast<size_t>(first))));
  return WritePart(offset + first, bytes.subspan(static_cast<size_t>(first)));
}

absl::Status SimFile::WritePart(int64_t offset, std::span<const std::byte> bytes) {
  const std::function<void()> torn_effect = [&] {
    const int64_t prefix = files_.world_.fault_random_.Below(static_cast<int64_t>(bytes.size()) + 1);
    if (!writable_) return;
    files_.disk().Write(files_.client_, *inode_, offset, bytes.first(static_cast<size_t>(prefix))).IgnoreError();  // it fails anyway
  };
  bool misdirected = false;
  return files_.Do({"write", path_, HashOf(offset, bytes), &torn_effect, &torn_effect, &misdirected}, [&] {
    if (!writable_) return ErrnoStatus(EBADF, "write", path_);
    if (misdirected) return WriteElsewhere(offset, bytes);
    return base::Annotate(files_.disk().Write(files_.client_, *inode_, offset, bytes), path_);
  });
}

absl::Status SimFile::WriteElsewhere(int64_t offset, std::span<const std::byte> bytes) {
  std::set<std::string>& hit = files_.world_.misdirected_files_;
  hit.insert(path_);
  LAMINA_ASSIGN_OR_RETURN(const std::string victim, files_.disk().WriteElsewhere(files_.client_, path_, *inode_, offset, bytes));
  if (!victim.empty()) hit.insert(victim);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SimFile::ReadAt(int64_t offset, std::span<std::byte> bytes) {
  return files_.Do({"read", path_, static_cast<uint64_t>(offset)}, [&]() -> absl::StatusOr<int64_t> {
    if (writable_) return ErrnoStatus(EBADF, "read", path_);
    if (offset < 0) return ErrnoStatus(EINVAL, "read", path_);
    return files_.disk().Read(*inode_, offset, bytes);
  });
}

absl::Status SimFile::Sync() {
  const std::function<void()> failed_effect = [&] { files_.disk().FailSync(*inode_); };
  return files_.Do({"sync", path_, 0, nullptr, &failed_effect}, [&] {
    files_.disk().Sync(*inode_);
    return absl::OkStatus();
  });
}

absl::StatusOr<int64_t> SimFile::Size() {
  return files_.Do({"size", path_}, [&]() -> absl::StatusOr<int64_t> { return files_.disk().Size(*inode_); });
}

absl::Status SimFile::Truncate(int64_t bytes) {
  return files_.Do({"truncate", path_, static_cast<uint64_t>(bytes)}, [&] {
    if (!writable_) return ErrnoStatus(EBADF, "truncate", path_);
    return base::Annotate(files_.disk().Truncate(files_.client_, *inode_, bytes), path_);
  });
}

}  // namespace lamina::env
