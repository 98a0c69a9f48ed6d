// A tier for readers of a network file system, which may lose track of a file (ESTALE) or not show it yet: it asks again for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "env/env.h"
#include "env/sync.h"
#include "tier/tier.h"

namespace lamina::tier {

struct Patience {
  int64_t retry_ns = 0;  // for each name from its first failure on, until it answers: whoever asks for it again then has no more of it
  // Whether an object that is not there is waited for, too. None is when null.
  std::function<bool(std::string_view name)> may_show = {};
  // What a failure that may pass comes to, asked when a name fails first and when its time is over (`last`); one that is returned changed
  // is final.
  std::function<absl::Status(const std::string& name, const absl::Status& failure, bool last)> judge = {};
  std::function<void(std::string)> tell = {};  // one line for each name that keeps a caller waiting for more than a moment
};

// For a Log: LAMINA is waited for where there are records, since a root that has some has that file whether it shows or not.
Patience LogPatience(Tier& tier, int64_t retry_ns, std::function<void(std::string)> tell = {});

// Reads, and what else may be done twice, are tried again, objects opened anew; one that fails for longer keeps its status, which names it
// and tells for how long. What publishes and creates is passed on as it is.
class PatientTier final : public Tier {
 public:
  // `env` and `tier` outlive it and the objects that it opens; it outlives these too.
  PatientTier(env::Env& env, Tier& tier, Patience patience) : env_(env), tier_(tier), patience_(std::move(patience)), mutex_(env) {}

  std::string Describe() const override { return tier_.Describe(); }
  std::optional<FileProbe> Probe() override { return tier_.Probe(); }
  absl::StatusOr<std::optional<env::FileSystemInfo>> Capacity() override { return tier_.Capacity(); }
  absl::Status Prepare(std::string_view prefix) override;
  absl::StatusOr<std::unique_ptr<ObjectWriter>> CreateObject(std::string_view name) override { return tier_.CreateObject(name); }
  absl::StatusOr<std::unique_ptr<ObjectReader>> OpenObject(std::string_view name) override;
  absl::StatusOr<std::vector<ObjectInfo>> List(std::string_view prefix) override;
  absl::StatusOr<std::vector<std::string>> ListNames(std::string_view prefix) override;
  absl::Status PutIfAbsent(std::string_view name, std::string_view bytes) override { return tier_.PutIfAbsent(name, bytes); }
  absl::Status Touch(std::string_view name) override;
  absl::StatusOr<ObjectInfo> Stat(std::string_view name) override;
  absl::Status Delete(std::string_view name) override;
  absl::Status SettleNames(std::string_view prefix) override;
  absl::StatusOr<int64_t> RemoveLeftovers(std::string_view prefix, int64_t age_ns) override {
    return tier_.RemoveLeftovers(prefix, age_ns);
  }
  absl::Status RemovePrefix(std::string_view prefix) override { return tier_.RemovePrefix(prefix); }

 private:
  class Reader;
  enum class Kind { kOpen, kRead, kOther };  // the first two are of objects
  struct Row {                               // of failures of one name
    int64_t since_ns = 0;
    int64_t tries = 0;
  };

  template <typename Call>
  auto Patiently(std::string_view name, Kind kind, const Call& call) -> decltype(call());
  void Answered(const std::string& name);
  absl::Status PauseAfter(const std::string& name, const absl::Status& failure, std::optional<int64_t>& since_ns);

  env::Env& env_;
  Tier& tier_;
  const Patience patience_;
  env::Mutex mutex_;
  std::map<std::string, Row> rows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lamina::tier
