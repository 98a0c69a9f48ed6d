// A save under way, as its caller holds it.
#pragma once

#include <optional>

#include "env/env.h"
#include "env/sync.h"
#include "lamina/save_handle.h"

namespace lamina::engine {

// Outlives its engine, once it has ended.
class SaveTicket final : public SaveHandle {
 public:
  explicit SaveTicket(env::Env& env) : env_(env), mutex_(env), ended_(env) {}
  absl::StatusOr<SaveReport> Wait(double timeout_s) override;
  bool Done() override;
  // The first call counts.
  void End(absl::StatusOr<SaveReport> result);

 private:
  env::Env& env_;
  env::Mutex mutex_;
  env::CondVar ended_;
  std::optional<absl::StatusOr<SaveReport>> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lamina::engine
