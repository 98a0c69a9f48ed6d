// A tier in this process's memory, with the semantics of an object store: names without directories, objects that appear whole when they
// are finished, put-if-absent that is atomic.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "env/env.h"
#include "env/sync.h"
#include "tier/tier.h"

namespace lamina::tier {

class MemoryTier : public Tier {
 public:
  explicit MemoryTier(env::Env& env) : env_(env), mutex_(env) {}

  std::string Describe() const override { return "memory"; }
  absl::Status Prepare(std::string_view prefix) override;
  absl::StatusOr<std::unique_ptr<ObjectWriter>> CreateObject(std::string_view name) override;
  absl::StatusOr<std::unique_ptr<ObjectReader>> OpenObject(std::string_view name) override;
  absl::StatusOr<std::vector<ObjectInfo>> List(std::string_view prefix) override;
  absl::StatusOr<std::vector<std::string>> ListNames(std::string_view prefix) override;
  absl::Status PutIfAbsent(std::string_view name, std::string_view bytes) override;
  absl::Status Touch(std::string_view name) override;
  absl::StatusOr<ObjectInfo> Stat(std::string_view name) override;
  absl::Status Delete(std::string_view name) override;
  absl::Status SettleNames(std::string_view prefix) override { return CheckPrefix(prefix); }
  absl::StatusOr<int64_t> RemoveLeftovers(std::string_view prefix, int64_t age_ns) override;
  absl::Status RemovePrefix(std::string_view prefix) override { return CheckName(prefix); }

 private:
  struct Object {
    std::shared_ptr<const std::string> bytes;  // shared with its readers, which outlive a Delete
    int64_t modified_ns = 0;
  };

  env::Env& env_;
  env::Mutex mutex_;
  std::map<std::string, Object> objects_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lamina::tier
