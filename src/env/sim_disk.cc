#include "env/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::env {
namespace {

constexpr int64_t kSectorBytes = 512;
constexpr size_t kNameBytesMax = 255;
constexpr int64_t kFileBytesMax = 16 * base::kGiB;  // it lies in memory
constexpr int kLinkDepthMax = 8;

using base::ErrnoStatus;
using Bytes = std::vector<std::byte>;

enum class WriteKind { kBytes, kTruncate, kExtend };  // kExtend: the length alone survived

struct PendingWrite {
  WriteKind kind = WriteKind::kBytes;
  std::string host = {};
  int64_t offset = 0;  // the new length of kTruncate and kExtend
  Bytes bytes = {};
  bool forgotten = false;  // by a failed sync
};

void Apply(const PendingWrite& write, Bytes& content) {
  const size_t end = static_cast<size_t>(write.offset) + write.bytes.size();
  if (write.kind == WriteKind::kTruncate || content.size() < end) content.resize(end);
  std::copy(write.bytes.begin(), write.bytes.end(), content.begin() + write.offset);
}

std::vector<std::string> Components(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin && path.substr(begin, end - begin) != ".") parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

struct SimDisk::Inode {
  int64_t id = 0;
  FileKind kind = FileKind::kFile;
  int64_t modified_ns = 0;
  Bytes bytes;
  Bytes durable_bytes;
  std::vector<PendingWrite> unsynced_writes;
  Entries entries;
  Entries durable_entries;
  std::map<std::string, Ghost> ghosts;
  std::string link_target;
};

// How likely an unsynced thing is to outlive the present power cut.
struct SimDisk::Survival {
  double bytes = 0;
  double names = 0;
};

SimDisk::SimDisk(const SimDiskOptions& options, std::function<int64_t()> clock)
    : options_(options),
      clock_(std::move(clock)),
      random_(options.seed),
      capacity_bytes_(options.capacity_bytes),
      root_(NewInode(FileKind::kDirectory)) {}

SimDisk::InodePtr SimDisk::NewInode(FileKind kind) {
  InodePtr inode = std::make_shared<Inode>();
  inode->id = ++inode_count_;
  inode->kind = kind;
  inode->modified_ns = clock_();
  return inode;
}

bool SimDisk::Sees(const SimClient& client, const Entry& entry) const {
  return client.process == 0 || entry.maker == client.process || clock_() >= entry.visible_ns;
}

const SimDisk::Ghost* SimDisk::FindGhost(const SimClient& client, const Place& place) const {
  if (place.directory == nullptr || place.taken) return nullptr;
  const auto found = place.directory->ghosts.find(place.name);
  const bool shows = found != place.directory->ghosts.end() && client.process != 0 && client.process != found->second.entry.maker &&
                     clock_() < found->second.until_ns;
  return shows ? &found->second : nullptr;
}

SimDisk::Place SimDisk::Find(const SimClient& client, const std::string& path, bool follow) const {
  if (path.empty() || path.front() != '/') return {.error = EINVAL};
  std::vector<std::string> parts = Components(path);
  Place place{.inode = root_, .taken = true};
  int link_depth = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (place.inode == nullptr) return {.error = ENOENT};
    if (place.inode->kind != FileKind::kDirectory) return {.error = ENOTDIR};
    if (parts[i].size() > kNameBytesMax) return {.error = ENAMETOOLONG};
    if (parts[i] == "..") return {.error = EINVAL};
    place = {.directory = place.inode, .name = parts[i]};
    const auto found = place.directory->entries.find(parts[i]);
    place.taken = found != place.directory->entries.end();
    if (place.taken && Sees(client, found->second)) place.inode = found->second.inode;
    const bool through = follow || i + 1 < parts.size();
    if (place.inode == nullptr || place.inode->kind != FileKind::kLink || !through) continue;
    if (++link_depth > kLinkDepthMax) return {.error = ELOOP};
    std::vector<std::string> target = Components(place.inode->link_target);
    target.insert(target.end(), parts.begin() + static_cast<ptrdiff_t>(i) + 1, parts.end());
    parts = std::move(target);
    place = {.inode = root_, .taken = true};
    i = static_cast<size_t>(-1);
  }
  return place;
}

SimDisk::NameChange SimDisk::Addition(const SimClient& client, const Place& place, const InodePtr& inode) const {
  return {place.directory, place.name, {inode, client.process, client.process == 0 ? 0 : clock_() + options_.stale_ns}};
}

void SimDisk::Change(std::vector<NameChange> changes) {
  for (const NameChange& change : changes) {
    Inode& directory = *change.directory;
    if (change.entry.inode != nullptr) {
      directory.entries[change.name] = change.entry;
    } else {
      const auto gone = directory.entries.find(change.name);
      if (options_.stale_list_ns > 0) {
        Ghost& ghost = directory.ghosts[change.name];
        ghost.entry = gone->second;
        ghost.entry.maker = change.entry.maker;
        ghost.until_ns = clock_() + options_.stale_list_ns;
      }
      directory.entries.erase(gone);
    }
    directory.modified_ns = clock_();
  }
  unsynced_names_.push_back(std::move(changes));
}

absl::StatusOr<SimDisk::InodePtr> SimDisk::Add(const SimClient& client, std::string_view what, const std::string& path, FileKind kind) {
  const Place place = Find(client, path);
  if (place.error != 0) return ErrnoStatus(place.error, what, path);
  if (place.taken) return ErrnoStatus(EEXIST, what, path);
  InodePtr inode = NewInode(kind);
  Change({Addition(client, place, inode)});
  return inode;
}

absl::StatusOr<SimDisk::InodePtr> SimDisk::Create(const SimClient& client, const std::string& path) {
  return Add(client, "create", path, FileKind::kFile);
}

absl::StatusOr<SimDisk::InodePtr> SimDisk::Open(const SimClient& client, const std::string& path) {
  const Place place = Find(client, path, /*follow=*/true);
  if (place.error != 0) return ErrnoStatus(place.error, "open", path);
  if (place.inode == nullptr) return ErrnoStatus(ENOENT, "open", path);
  if (place.inode->kind == FileKind::kDirectory) return ErrnoStatus(EISDIR, "open", path);
  return place.inode;
}

absl::Status SimDisk::Link(const SimClient& client, const std::string& path, const std::string& link_path) {
  const Place source = Find(client, path);
  if (source.error != 0) return ErrnoStatus(source.error, "link", path);
  if (source.inode == nullptr) return ErrnoStatus(ENOENT, "link", path);
  const Place target = Find(client, link_path);
  if (target.error != 0) return ErrnoStatus(target.error, "link", link_path);
  if (target.taken) return ErrnoStatus(EEXIST, "link", link_path);
  if (source.inode->kind == FileKind::kDirectory) return ErrnoStatus(EPERM, "link", path);
  Change({Addition(client, target, source.inode)});
  return absl::OkStatus();
}

absl::Status SimDisk::RenameNoReplace(const SimClient& client, const std::string& from, const std::string& to) {
  const Place source = Find(client, from);
  if (source.error != 0) return ErrnoStatus(source.error, "rename", from);
  if (source.inode == nullptr) return ErrnoStatus(ENOENT, "rename", from);
  const Place target = Find(client, to);
  if (target.error != 0) return ErrnoStatus(target.error, "rename", to);
  if (target.taken) return ErrnoStatus(EEXIST, "rename", to);
  if (source.directory == nullptr || to.starts_with(from + "/")) return ErrnoStatus(EINVAL, "rename", from);
  Change({{source.directory, source.name, {.maker = client.process}}, Addition(client, target, source.inode)});
  return absl::OkStatus();
}

absl::Status SimDisk::Remove(const SimClient& client, std::string_view what, const std::string& path, bool directory) {
  const Place place = Find(client, path);
  if (place.error != 0) return ErrnoStatus(place.error, what, path);
  if (place.inode == nullptr) return ErrnoStatus(ENOENT, what, path);
  const bool is_directory = place.inode->kind == FileKind::kDirectory;
  if (is_directory != directory) return ErrnoStatus(directory ? ENOTDIR : EISDIR, what, path);
  if (place.directory == nullptr) return ErrnoStatus(EBUSY, what, path);
  if (!place.inode->entries.empty()) return ErrnoStatus(ENOTEMPTY, what, path);
  Change({{place.directory, place.name, {.maker = client.process}}});
  return absl::OkStatus();
}

absl::Status SimDisk::Unlink(const SimClient& client, const std::string& path) {
  return Remove(client, "unlink", path, /*directory=*/false);
}

absl::Status SimDisk::MakeDirectory(const SimClient& client, const std::string& path) {
  return Add(client, "mkdir", path, FileKind::kDirectory).status();
}

absl::Status SimDisk::RemoveDirectory(const SimClient& client, const std::string& path) {
  return Remove(client, "rmdir", path, /*directory=*/true);
}

absl::Status SimDisk::MakeLink(const SimClient& client, const std::string& target, const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(const InodePtr link, Add(client, "symlink", path, FileKind::kLink));
  link->link_target = target;
  return absl::OkStatus();
}

absl::Status SimDisk::SyncDirectory(const SimClient& client, const std::string& path) {
  const Place place = Find(client, path, /*follow=*/true);
  if (place.error != 0) return ErrnoStatus(place.error, "sync directory", path);
  if (place.inode == nullptr) return ErrnoStatus(ENOENT, "sync directory", path);
  if (place.inode->kind != FileKind::kDirectory) return ErrnoStatus(ENOTDIR, "sync directory", path);
  place.inode->durable_entries = place.inode->entries;
  for (std::vector<NameChange>& changes : unsynced_names_) {
    std::erase_if(changes, [&place](const NameChange& change) { return change.directory == place.inode; });
  }
  std::erase_if(unsynced_names_, [](const std::vector<NameChange>& changes) { return changes.empty(); });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DirectoryEntry>> SimDisk::List(const SimClient& client, const std::string& path) {
  const Place place = Find(client, path, /*follow=*/true);
  if (place.error != 0) return ErrnoStatus(place.error, "list", path);
  if (place.inode == nullptr) return ErrnoStatus(ENOENT, "list", path);
  if (place.inode->kind != FileKind::kDirectory) return ErrnoStatus(ENOTDIR, "list", path);
  std::vector<DirectoryEntry> list;
  const int64_t now_ns = clock_();
  const auto old = [&](int64_t maker) { return client.process != 0 && client.process != maker; };
  for (const auto& [name, entry] : place.inode->entries) {
    const bool listed = !old(entry.maker) || now_ns >= entry.visible_ns - options_.stale_ns + options_.stale_list_ns;
    if (listed && Sees(client, entry)) list.push_back({name, entry.inode->kind});
  }
  std::erase_if(place.inode->ghosts, [now_ns](const auto& ghost) { return now_ns >= ghost.second.until_ns; });
  for (const auto& [name, ghost] : place.inode->ghosts) {
    if (old(ghost.entry.maker) && !place.inode->entries.contains(name)) list.push_back({name, ghost.entry.inode->kind});
  }
  std::sort(list.begin(), list.end(), [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
  return list;
}

absl::StatusOr<FileInfo> SimDisk::Stat(const SimClient& client, const std::string& path) {
  const Place place = Find(client, path);
  if (place.error != 0) return ErrnoStatus(place.error, "stat", path);
  if (const Ghost* ghost = FindGhost(client, place)) {
    const Inode& inode = *ghost->entry.inode;
    return FileInfo{inode.kind, Size(inode), inode.modified_ns};
  }
  if (place.inode == nullptr) return ErrnoStatus(ENOENT, "stat", path);
  return FileInfo{place.inode->kind, Size(*place.inode), place.inode->modified_ns};
}

absl::Status SimDisk::Touch(const SimClient& client, const std::string& path) {
  const Place place = Find(client, path, /*follow=*/true);
  if (place.error != 0) return ErrnoStatus(place.error, "touch", path);
  if (!place.taken) return Add(client, "touch", path, FileKind::kFile).status();
  place.directory->entries[place.name].inode->modified_ns = clock_();
  return absl::OkStatus();
}

int64_t SimDisk::UsedBytes() const {
  std::set<int64_t> seen;  // hard links count once
  int64_t used = 0;
  Visit(*root_, "", [&](const std::string&, const Inode& file) { used += seen.insert(file.id).second ? Size(file) : 0; });
  return used;
}

int64_t SimDisk::AvailableBytes() const {
  if (capacity_bytes_ == kUnlimitedBytes) return kUnlimitedBytes;
  return std::max<int64_t>(capacity_bytes_ - UsedBytes(), 0);
}

FileSystemInfo SimDisk::Capacity() const { return {.bytes_total = capacity_bytes_, .bytes_available = AvailableBytes()}; }

absl::Status SimDisk::Write(const SimClient& client, Inode& file, int64_t offset, std::span<const std::byte> bytes) {
  if (offset < 0) return ErrnoStatus(EINVAL, "write");
  const int64_t length = static_cast<int64_t>(bytes.size());
  if (offset > kFileBytesMax - length) return ErrnoStatus(EFBIG, "write");
  const int64_t excess = std::clamp<int64_t>(offset + length - Size(file) - AvailableBytes(), 0, length);
  const std::span<const std::byte> fitting = bytes.first(bytes.size() - static_cast<size_t>(excess));
  if (!fitting.empty()) {
    PendingWrite write{.host = client.host, .offset = offset, .bytes = Bytes(fitting.begin(), fitting.end())};
    Apply(write, file.bytes);
    file.unsynced_writes.push_back(std::move(write));
    file.modified_ns = clock_();
  }
  return excess > 0 ? ErrnoStatus(ENOSPC, "write") : absl::OkStatus();
}

int64_t SimDisk::Read(const Inode& file, int64_t offset, std::span<std::byte> bytes) const {
  if (offset >= Size(file)) return 0;
  const size_t count = std::min(bytes.size(), file.bytes.size() - static_cast<size_t>(offset));
  std::copy_n(file.bytes.begin() + offset, count, bytes.begin());
  return static_cast<int64_t>(count);
}

int64_t SimDisk::Size(const Inode& file) const { return static_cast<int64_t>(file.bytes.size()); }

absl::Status SimDisk::Truncate(const SimClient& client, Inode& file, int64_t bytes) {
  if (bytes < 0) return ErrnoStatus(EINVAL, "truncate");
  if (bytes > kFileBytesMax) return ErrnoStatus(EFBIG, "truncate");
  PendingWrite write{.kind = WriteKind::kTruncate, .host = client.host, .offset = bytes};
  Apply(write, file.bytes);
  file.unsynced_writes.push_back(std::move(write));
  file.modified_ns = clock_();
  return absl::OkStatus();
}

void SimDisk::Sync(Inode& file) {
  for (const PendingWrite& write : file.unsynced_writes) {
    if (!write.forgotten) Apply(write, file.durable_bytes);
  }
  std::erase_if(file.unsynced_writes, [](const PendingWrite& write) { return !write.forgotten; });
}

void SimDisk::FailSync(Inode& file) {
  for (PendingWrite& write : file.unsynced_writes) write.forgotten = write.forgotten || options_.lose_all_unsynced || random_.Chance(0.5);
  Sync(file);
}

// Unsynced writes survive whole, not at all, or by sectors, and the length survives apart from them.
void SimDisk::Lose(Inode& file, const std::string* host, const Survival& survival) {
  std::vector<PendingWrite> survivors;
  for (PendingWrite& write : file.unsynced_writes) {
    const bool kept = (host != nullptr && write.host != *host) || random_.Chance(survival.bytes);
    if (kept) {
      survivors.push_back(std::move(write));
      continue;
    }
    if (write.kind != WriteKind::kBytes) continue;
    const int64_t end = write.offset + static_cast<int64_t>(write.bytes.size());
    if (random_.Chance(survival.bytes)) survivors.push_back({.kind = WriteKind::kExtend, .host = write.host, .offset = end});
    const bool torn = random_.Chance(survival.bytes);
    for (int64_t at = write.offset; torn && at < end;) {
      const int64_t next = std::min((at / kSectorBytes + 1) * kSectorBytes, end);
      const auto first = write.bytes.begin() + (at - write.offset);
      if (random_.Chance(0.5)) survivors.push_back({.host = write.host, .offset = at, .bytes = Bytes(first, first + (next - at))});
      at = next;
    }
  }
  file.unsynced_writes = std::move(survivors);
  file.bytes = file.durable_bytes;
  for (const PendingWrite& write : file.unsynced_writes) Apply(write, file.bytes);
}

void SimDisk::PowerCut() {
  // Extremes matter: all names with no bytes, all bytes with no names.
  constexpr double kLikelihoods[] = {0.0, 0.1, 0.5, 0.9, 1.0};
  Survival survival{kLikelihoods[random_.Below(5)], kLikelihoods[random_.Below(5)]};
  if (options_.lose_all_unsynced) survival = {};
  for (const std::vector<NameChange>& changes : std::exchange(unsynced_names_, {})) {
    if (!random_.Chance(survival.names)) continue;
    for (const NameChange& change : changes) {
      if (change.entry.inode != nullptr) {
        change.directory->durable_entries[change.name] = change.entry;
      } else {
        change.directory->durable_entries.erase(change.name);
      }
    }
  }
  Settle(*root_, survival);
}

void SimDisk::Settle(Inode& inode, const Survival& survival) {
  Lose(inode, nullptr, survival);
  inode.unsynced_writes.clear();
  inode.durable_bytes = inode.bytes;
  inode.entries = inode.durable_entries;
  inode.ghosts.clear();
  for (auto& [name, entry] : inode.entries) {
    entry.visible_ns = 0;  // caches of clients are gone
    Settle(*entry.inode, survival);
  }
}

void SimDisk::LoseHost(const std::string& host) {
  const Survival survival{options_.lose_all_unsynced ? 0.0 : 0.5, 1.0};
  Visit(*root_, "", [&](const std::string&, Inode& file) { Lose(file, &host, survival); });
}

void SimDisk::MakeDurable() {
  for (const std::vector<NameChange>& changes : std::exchange(unsynced_names_, {})) {
    for (const NameChange& change : changes) change.directory->durable_entries = change.directory->entries;
  }
  Visit(*root_, "", [](const std::string&, Inode& file) {
    file.unsynced_writes.clear();
    file.durable_bytes = file.bytes;
  });
}

void SimDisk::Visit(const Inode& directory, const std::string& path, const std::function<void(const std::string&, Inode&)>& visit) const {
  for (const auto& [name, entry] : directory.entries) {
    const std::string child = absl::StrCat(path, "/", name);
    if (entry.inode->kind == FileKind::kDirectory) Visit(*entry.inode, child, visit);
    if (entry.inode->kind == FileKind::kFile) visit(child, *entry.inode);
  }
}

std::map<std::string, std::string> SimDisk::Files() const {
  std::map<std::string, std::string> files;
  Visit(*root_, "", [&](const std::string& path, const Inode& file) {
    files[path].assign(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  });
  return files;
}

std::vector<std::string> SimDisk::Names(const std::string& directory) const {
  std::vector<std::string> names;
  const Place place = Find({}, directory);
  if (place.error != 0 || place.inode == nullptr) return names;
  for (const auto& [name, entry] : place.inode->entries) names.push_back(name);
  return names;
}

absl::Status SimDisk::CorruptByte(const std::string& path, int64_t offset) {
  const Place place = Find({}, path);
  if (place.error != 0 || !place.taken) return ErrnoStatus(ENOENT, "corrupt", path);
  Inode& file = *place.directory->entries[place.name].inode;
  if (offset < 0 || offset >= Size(file)) return ErrnoStatus(EINVAL, "corrupt", path);
  const std::byte flipped = file.bytes[static_cast<size_t>(offset)] ^ static_cast<std::byte>(1 + random_.Below(255));
  Overwrite(file, offset, {&flipped, 1});
  return absl::OkStatus();
}

// Present and durable bytes alike, as far as the file reaches.
void SimDisk::Overwrite(Inode& file, int64_t offset, std::span<const std::byte> bytes) {
  for (Bytes* content : {&file.bytes, &file.durable_bytes}) {
    const int64_t room = static_cast<int64_t>(content->size()) - offset;
    const std::span<const std::byte> hit = bytes.first(static_cast<size_t>(std::clamp<int64_t>(room, 0, std::ssize(bytes))));
    std::copy(hit.begin(), hit.end(), content->begin() + std::min<int64_t>(offset, std::ssize(*content)));
  }
  // So that a later sync of what lies under it changes nothing back.
  file.unsynced_writes.push_back({.offset = offset, .bytes = Bytes(bytes.begin(), bytes.end())});
}

absl::StatusOr<std::string> SimDisk::WriteElsewhere(const SimClient& client, const std::string& path, Inode& file, int64_t offset,
                                                    std::span<const std::byte> bytes) {
  std::vector<std::pair<std::string, Inode*>> victims{{path, &file}};
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  Visit(*root_, "", [&](const std::string& other, Inode& inode) {
    const bool beside = other.starts_with(directory) && other.find('/', directory.size()) == std::string::npos;
    if (beside && &inode != &file) victims.emplace_back(other, &inode);
  });
  const auto& [victim_path, victim] = victims[static_cast<size_t>(random_.Below(std::ssize(victims)))];
  const int64_t room = Size(*victim) - std::ssize(bytes);
  const int64_t hit = random_.Below(room + 1) / kSectorBytes * kSectorBytes;
  const bool lands = room >= 0 && !bytes.empty();
  if (lands) Overwrite(*victim, hit, bytes);
  LAMINA_RETURN_IF_ERROR(Write(client, file, offset, Bytes(bytes.size())));
  return lands ? victim_path : std::string();
}

}  // namespace lamina::env
