#include "tier/memory_tier.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"

namespace lamina::tier {
namespace {

absl::Status Taken(std::string_view name) { return absl::AlreadyExistsError(absl::StrCat("'", std::string(name), "' in memory exists")); }

class MemoryWriter : public ObjectWriter {
 public:
  MemoryWriter(Tier& tier, std::string name) : tier_(tier), name_(std::move(name)) {}

  absl::Status Append(std::span<const std::byte> part) override {
    if (ended_) return absl::FailedPreconditionError(absl::StrCat("'", name_, "' is finished or given up"));
    bytes_.append(base::AsText(part));
    return absl::OkStatus();
  }
  int64_t bytes_appended() const override { return static_cast<int64_t>(bytes_.size()); }
  int64_t bytes_written() const override { return bytes_appended(); }
  absl::Status Finish() override {
    if (std::exchange(ended_, true)) return absl::FailedPreconditionError(absl::StrCat("'", name_, "' is finished or given up"));
    return tier_.PutIfAbsent(name_, bytes_);
  }
  absl::Status Abort() override {
    ended_ = true;
    return absl::OkStatus();
  }

 private:
  Tier& tier_;
  const std::string name_;
  std::string bytes_;
  bool ended_ = false;
};

class MemoryReader : public ObjectReader {
 public:
  MemoryReader(std::string name, std::shared_ptr<const std::string> bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {}

  int64_t bytes() const override { return static_cast<int64_t>(bytes_->size()); }
  absl::Status ReadRange(int64_t offset, std::span<std::byte> target) override {
    if (offset < 0 || offset > bytes() || target.size() > bytes_->size() - static_cast<size_t>(offset)) {
      return absl::DataLossError(absl::StrCat("'", name_, "' in memory has ", bytes(), " bytes, expected ", target.size(), " at ", offset));
    }
    if (!target.empty()) std::memcpy(target.data(), bytes_->data() + offset, target.size());
    return absl::OkStatus();
  }

 private:
  const std::string name_;
  const std::shared_ptr<const std::string> bytes_;
};

}  // namespace

absl::Status MemoryTier::Prepare(std::string_view prefix) {
  env_.Operation("memory tier: prepare");
  return CheckPrefix(prefix);
}

absl::StatusOr<std::unique_ptr<ObjectWriter>> MemoryTier::CreateObject(std::string_view name) {
  env_.Operation("memory tier: create");
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  const env::MutexLock lock(mutex_);
  if (objects_.contains(std::string(name))) return Taken(name);
  return std::make_unique<MemoryWriter>(*this, std::string(name));
}

absl::StatusOr<std::unique_ptr<ObjectReader>> MemoryTier::OpenObject(std::string_view name) {
  env_.Operation("memory tier: open");
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  const env::MutexLock lock(mutex_);
  const auto found = objects_.find(std::string(name));
  if (found == objects_.end()) return absl::NotFoundError(absl::StrCat("no object '", std::string(name), "' in memory"));
  return std::make_unique<MemoryReader>(found->first, found->second.bytes);
}

absl::StatusOr<std::vector<ObjectInfo>> MemoryTier::List(std::string_view prefix) {
  env_.Operation("memory tier: list");
  LAMINA_RETURN_IF_ERROR(CheckPrefix(prefix));
  const std::string start = prefix.empty() ? std::string() : std::string(prefix) + "/";
  const env::MutexLock lock(mutex_);
  std::map<std::string, ObjectInfo> infos;  // a sub-prefix comes up once for each of its objects
  for (auto at = objects_.lower_bound(start); at != objects_.end() && at->first.starts_with(start); ++at) {
    const size_t slash = at->first.find('/', start.size());
    const std::string name = slash == std::string::npos ? at->first : at->first.substr(0, slash + 1);
    if (name[start.size()] == '.') continue;
    if (slash != std::string::npos) {
      infos[name].name = name;
    } else {
      infos[name] = {name, static_cast<int64_t>(at->second.bytes->size()), at->second.modified_ns};
    }
  }
  std::vector<ObjectInfo> list;
  list.reserve(infos.size());
  for (auto& [name, info] : infos) list.push_back(std::move(info));
  return list;
}

absl::StatusOr<std::vector<std::string>> MemoryTier::ListNames(std::string_view prefix) {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> infos, List(prefix));
  std::vector<std::string> names;
  names.reserve(infos.size());
  for (const ObjectInfo& info : infos) names.push_back(info.name.substr(prefix.empty() ? 0 : prefix.size() + 1));
  return names;
}

absl::Status MemoryTier::PutIfAbsent(std::string_view name, std::string_view bytes) {
  env_.Operation("memory tier: put if absent");
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  const Object object{std::make_shared<const std::string>(bytes), env_.WallNs()};
  const env::MutexLock lock(mutex_);
  return objects_.emplace(std::string(name), object).second ? absl::OkStatus() : Taken(name);
}

absl::Status MemoryTier::Touch(std::string_view name) {
  env_.Operation("memory tier: touch");
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  const int64_t now_ns = env_.WallNs();
  const env::MutexLock lock(mutex_);
  Object& object = objects_[std::string(name)];
  if (object.bytes == nullptr) object.bytes = std::make_shared<const std::string>();
  object.modified_ns = now_ns;
  return absl::OkStatus();
}

absl::StatusOr<ObjectInfo> MemoryTier::Stat(std::string_view name) {
  env_.Operation("memory tier: stat");
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  const env::MutexLock lock(mutex_);
  const auto found = objects_.find(std::string(name));
  if (found == objects_.end()) return absl::NotFoundError(absl::StrCat("no object '", std::string(name), "' in memory"));
  return ObjectInfo{found->first, static_cast<int64_t>(found->second.bytes->size()), found->second.modified_ns};
}

absl::Status MemoryTier::Delete(std::string_view name) {
  env_.Operation("memory tier: delete");
  LAMINA_RETURN_IF_ERROR(CheckName(name));
  const env::MutexLock lock(mutex_);
  objects_.erase(std::string(name));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> MemoryTier::RemoveLeftovers(std::string_view prefix, int64_t) {
  LAMINA_RETURN_IF_ERROR(CheckPrefix(prefix));
  return 0;  // a put is whole or has not happened
}

}  // namespace lamina::tier
