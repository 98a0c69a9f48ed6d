#include "env/fault_env.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace lamina::env {

namespace {

bool IsOn(const std::string& part, const std::string& path, const std::string& second_path) {
  return path.find(part) != std::string::npos || second_path.find(part) != std::string::npos;
}

}  // namespace

int64_t FaultPlan::AddRule(const FaultRule& rule) {
  const std::lock_guard lock(mutex_);
  rules_.emplace(next_number_, ActiveRule{rule});
  return next_number_++;
}

bool FaultPlan::RemoveRule(int64_t number) {
  const std::lock_guard lock(mutex_);
  return rules_.erase(number) > 0;
}

void FaultPlan::SetWriteBytesMax(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  write_bytes_max_ = bytes;
}

void FaultPlan::SetWriteBytesPerSecond(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  write_bytes_per_second_ = bytes;
  write_free_ns_ = 0;
}

void FaultPlan::SetHiddenNs(int64_t duration_ns) {
  const std::lock_guard lock(mutex_);
  hidden_ns_ = duration_ns;
}

void FaultPlan::SetHiddenFromOthersNs(int64_t duration_ns) {
  const std::lock_guard lock(mutex_);
  hidden_from_others_ns_ = duration_ns;
}

void FaultPlan::SetHang(std::optional<std::string> path_part, std::optional<FaultCall> call) {
  const std::lock_guard lock(mutex_);
  hang_ = std::move(path_part);
  hang_call_ = call;
}

bool FaultPlan::Hangs(FaultCall call, const std::string& path, const std::string& second_path) const {
  const std::lock_guard lock(mutex_);
  return hang_call_.value_or(call) == call && hang_.has_value() && IsOn(*hang_, path, second_path);
}

void FaultPlan::CountHang() {
  const std::lock_guard lock(mutex_);
  ++hang_count_;
}

int64_t FaultPlan::hang_count() const {
  const std::lock_guard lock(mutex_);
  return hang_count_;
}

void FaultPlan::Made(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (hidden_from_others_ns_ > 0) made_.insert(path);
}

bool FaultPlan::HidesOthers(const std::string& path, int64_t age_ns) const {
  const std::lock_guard lock(mutex_);
  return age_ns < hidden_from_others_ns_ && !made_.contains(path);
}

void FaultPlan::SetTaskRefusedEvery(int64_t count) {
  const std::lock_guard lock(mutex_);
  task_refused_every_ = count;
  task_count_ = 0;
}

bool FaultPlan::RefusesTask() {
  const std::lock_guard lock(mutex_);
  if (task_refused_every_ == 0 || ++task_count_ % task_refused_every_ != 0) return false;
  ++fault_count_;
  return true;
}

void FaultPlan::SetStaleOpenEvery(int64_t count) {
  const std::lock_guard lock(mutex_);
  stale_open_every_ = count;
  open_count_ = 0;
}

int64_t FaultPlan::fault_count() const {
  const std::lock_guard lock(mutex_);
  return fault_count_;
}

std::optional<int> FaultPlan::Due(FaultCall call, const std::string& path, const std::string& second_path) {
  const std::lock_guard lock(mutex_);
  std::optional<int> error_number;
  // Every rule counts the call, also when another one fails it.
  for (auto& [number, active] : rules_) {
    const FaultRule& rule = active.rule;
    if ((rule.call.has_value() && *rule.call != call) || !IsOn(rule.path_part, path, second_path)) continue;
    const int64_t past_first = ++active.calls - rule.first;
    if (past_first >= 0 && past_first < rule.count && !error_number.has_value()) error_number = rule.error_number;
  }
  if (call == FaultCall::kOpen && stale_open_every_ > 0 && ++open_count_ % stale_open_every_ == 0 && !error_number.has_value()) {
    error_number = ESTALE;
  }
  if (error_number.has_value()) ++fault_count_;
  return error_number;
}

size_t FaultPlan::PartBytes(size_t bytes) const {
  constexpr size_t kPacedBytesMax = 256 * base::kKiB;  // so that a pace holds within a long write too
  const std::lock_guard lock(mutex_);
  if (write_bytes_max_ > 0) bytes = std::min(bytes, static_cast<size_t>(write_bytes_max_));
  return write_bytes_per_second_ > 0 ? std::min(bytes, kPacedBytesMax) : bytes;
}

int64_t FaultPlan::ReserveWrite(size_t bytes, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (write_bytes_per_second_ <= 0) return 0;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(write_bytes_per_second_);
  write_free_ns_ = std::max(now_ns, write_free_ns_) + static_cast<int64_t>(seconds * static_cast<double>(base::kSecondNs));
  return write_free_ns_ - now_ns;
}

void FaultPlan::Hide(const std::string& path, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (hidden_ns_ > 0) hidden_until_ns_[path] = now_ns + hidden_ns_;
}

bool FaultPlan::IsHidden(const std::string& path, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const auto found = hidden_until_ns_.find(path);
  if (found == hidden_until_ns_.end()) return false;
  if (now_ns < found->second) return true;
  hidden_until_ns_.erase(found);
  return false;
}

namespace {

constexpr int64_t kHangPollNs = 10 * base::kMillisecondNs;

absl::Status Check(Env& base, FaultPlan& plan, FaultCall call, std::string_view what, const std::string& path,
                   const std::string& second_path = {}) {
  if (plan.Hangs(call, path, second_path)) plan.CountHang();
  while (plan.Hangs(call, path, second_path)) base.SleepNs(kHangPollNs);
  const std::optional<int> error_number = plan.Due(call, path, second_path);
  if (error_number == kNoMemory) throw std::bad_alloc();
  return error_number.has_value() ? base::ErrnoStatus(*error_number, what, second_path.empty() ? path : second_path) : absl::OkStatus();
}

class FaultFile : public File {
 public:
  FaultFile(Env& base, FaultPlan& plan, std::unique_ptr<File> file, std::string path)
      : base_(base), plan_(plan), file_(std::move(file)), path_(std::move(path)) {}

  absl::Status WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
    do {
      const auto part = bytes.first(plan_.PartBytes(bytes.size()));
      LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kWrite, "write", path_));
      if (const int64_t pause_ns = plan_.ReserveWrite(part.size(), base_.MonotonicNs()); pause_ns > 0) base_.SleepNs(pause_ns);
      LAMINA_RETURN_IF_ERROR(file_->WriteAt(offset, part));
      offset += static_cast<int64_t>(part.size());
      bytes = bytes.subspan(part.size());
    } while (!bytes.empty());
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kRead, "read", path_));
    return file_->ReadAt(offset, bytes);
  }
  absl::Status Sync() override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kSync, "fdatasync", path_));
    return file_->Sync();
  }
  absl::StatusOr<int64_t> Size() override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kStat, "fstat", path_));
    return file_->Size();
  }
  absl::Status Truncate(int64_t bytes) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kTruncate, "ftruncate", path_));
    return file_->Truncate(bytes);
  }

 private:
  Env& base_;
  FaultPlan& plan_;
  std::unique_ptr<File> file_;
  std::string path_;
};

class FaultFileSystem : public FileSystem {
 public:
  FaultFileSystem(Env& base, FaultPlan& plan) : base_(base), plan_(plan) {}

  absl::StatusOr<std::unique_ptr<File>> CreateNew(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kCreate, "create", path));
    plan_.Made(path);
    return Wrap(base_.files().CreateNew(path), path);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForRead(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kOpen, "open", path));
    if (IsHidden(path)) return base::ErrnoStatus(ENOENT, "open", path);
    return Wrap(base_.files().OpenForRead(path), path);
  }
  absl::Status Link(const std::string& path, const std::string& link_path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kLink, "link", path, link_path));
    return HideNew(base_.files().Link(path, link_path), link_path);
  }
  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kRename, "rename without replacing to", from, to));
    return HideNew(base_.files().RenameNoReplace(from, to), to);
  }
  absl::Status Unlink(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kUnlink, "unlink", path));
    return base_.files().Unlink(path);
  }
  absl::Status MakeDirectory(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kMakeDirectory, "make directory", path));
    return base_.files().MakeDirectory(path);
  }
  absl::Status RemoveDirectory(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kRemoveDirectory, "remove directory", path));
    return base_.files().RemoveDirectory(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kSyncDirectory, "fsync directory", path));
    return base_.files().SyncDirectory(path);
  }
  absl::StatusOr<std::vector<DirectoryEntry>> List(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kList, "list", path));
    LAMINA_ASSIGN_OR_RETURN(std::vector<DirectoryEntry> entries, base_.files().List(path));
    std::erase_if(entries, [&](const DirectoryEntry& entry) { return IsHidden(path + "/" + entry.name); });
    return entries;
  }
  absl::StatusOr<FileInfo> Stat(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kStat, "stat", path));
    if (IsHidden(path)) return base::ErrnoStatus(ENOENT, "stat", path);
    return base_.files().Stat(path);
  }
  absl::Status Touch(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kTouch, "touch", path));
    plan_.Made(path);
    return base_.files().Touch(path);
  }
  absl::StatusOr<FileSystemInfo> Capacity(const std::string& path) override {
    LAMINA_RETURN_IF_ERROR(Check(base_, plan_, FaultCall::kCapacity, "statvfs", path));
    return base_.files().Capacity(path);
  }

 private:
  absl::StatusOr<std::unique_ptr<File>> Wrap(absl::StatusOr<std::unique_ptr<File>> file, const std::string& path) {
    if (!file.ok()) return file.status();
    return std::make_unique<FaultFile>(base_, plan_, *std::move(file), path);
  }
  absl::Status HideNew(const absl::Status& status, const std::string& path) {
    if (status.ok()) {
      plan_.Hide(path, base_.MonotonicNs());
      plan_.Made(path);
    }
    return status;
  }
  bool IsHidden(const std::string& path) {
    if (plan_.IsHidden(path, base_.MonotonicNs())) return true;
    if (!plan_.HidesOthers(path, 0)) return false;  // even if it were new
    const absl::StatusOr<FileInfo> info = base_.files().Stat(path);
    return info.ok() && info->kind == FileKind::kFile && plan_.HidesOthers(path, base_.WallNs() - info->modified_ns);
  }

  Env& base_;
  FaultPlan& plan_;
};

}  // namespace

FaultEnv::FaultEnv(Env& base) : base_(base), files_(std::make_unique<FaultFileSystem>(base, plan_)) {}

}  // namespace lamina::env
