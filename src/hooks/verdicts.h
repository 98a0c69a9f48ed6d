// Asks the hooks that may refuse, and waits for them no longer than is stated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "env/env.h"
#include "env/sync.h"
#include "lamina/hooks.h"

namespace lamina::hooks {

enum class VerdictKind : uint8_t { kMayCommit, kMayRestore };
const char* VerdictName(VerdictKind kind);  // "may_commit" and so on

// Thread-safe but for Add, which comes first.
class Verdicts {
 public:
  // `report` gets one line for each hook that is asked no more; it must not throw.
  Verdicts(env::Env& env, int64_t limit_ns, std::function<void(std::string)> report);
  // Waits a second for the hooks that are still at an answer, then leaves their threads behind: what they hold must be their own.
  ~Verdicts();
  Verdicts(const Verdicts&) = delete;
  Verdicts& operator=(const Verdicts&) = delete;

  void Add(std::string name, std::shared_ptr<VerdictHook> hook);
  // "may_commit of step 5: <name>: <why>" of the first hook that refuses; nullopt when none does. Takes at most the limit for each hook.
  std::optional<std::string> Refusal(VerdictKind kind, int64_t step);

 private:
  struct Question {
    explicit Question(env::Env& env) : mutex(env), answered(env) {}
    env::Mutex mutex;
    env::CondVar answered;
    bool done ABSL_GUARDED_BY(mutex) = false;
    std::optional<std::string> refusal ABSL_GUARDED_BY(mutex);
    std::string failure ABSL_GUARDED_BY(mutex);  // what the hook threw
  };
  struct Asked {
    std::string name;
    std::shared_ptr<VerdictHook> hook;  // null: asked no more
  };
  struct LeftBehind {
    std::shared_ptr<Question> question;
    std::unique_ptr<env::Task> task;
  };

  std::optional<std::string> AskOne(Asked& asked, VerdictKind kind, int64_t step);
  static bool WaitFor(Question& question, int64_t deadline_ns);
  void Drop(Asked& asked, VerdictKind kind, int64_t step, const std::string& why);

  env::Env& env_;
  const int64_t limit_ns_;
  const std::function<void(std::string)> report_;
  env::Mutex mutex_;  // held by the one who asks: answers are given one after another
  std::vector<Asked> asked_ ABSL_GUARDED_BY(mutex_);
  std::vector<LeftBehind> left_behind_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lamina::hooks
