#include "hooks/verdicts.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "env/no_thread.h"

namespace lamina::hooks {
namespace {

constexpr int64_t kLastWaitNs = base::kSecondNs;

}  // namespace

const char* VerdictName(VerdictKind kind) { return kind == VerdictKind::kMayCommit ? "may_commit" : "may_restore"; }

Verdicts::Verdicts(env::Env& env, int64_t limit_ns, std::function<void(std::string)> report)
    : env_(env), limit_ns_(limit_ns), report_(std::move(report)), mutex_(env) {}

Verdicts::~Verdicts() {
  for (LeftBehind& left : left_behind_) {
    // Joining a hook that never returns would hang whoever closes.
    if (!WaitFor(*left.question, env_.MonotonicNs() + kLastWaitNs)) static_cast<void>(left.task.release());
  }
}

void Verdicts::Add(std::string name, std::shared_ptr<VerdictHook> hook) {
  env::MutexLock lock(mutex_);
  asked_.push_back({std::move(name), std::move(hook)});
}

std::optional<std::string> Verdicts::Refusal(VerdictKind kind, int64_t step) {
  env::MutexLock lock(mutex_);
  for (Asked& asked : asked_) {
    if (asked.hook == nullptr) continue;
    const std::optional<std::string> refusal = AskOne(asked, kind, step);
    if (refusal.has_value()) return absl::StrCat(VerdictName(kind), " of step ", step, ": ", asked.name, ": ", *refusal);
  }
  return std::nullopt;
}

std::optional<std::string> Verdicts::AskOne(Asked& asked, VerdictKind kind, int64_t step) {
  const auto question = std::make_shared<Question>(env_);
  std::unique_ptr<env::Task> task = env_.Start("lamina-verdict", [&env = env_, question, hook = asked.hook, kind, step] {
    std::optional<std::string> refusal;
    std::string failure;
    try {
      refusal = kind == VerdictKind::kMayCommit ? hook->MayCommit(step) : hook->MayRestore(step);
    } catch (const std::exception& error) {
      failure = absl::StrCat("threw ", error.what());
    } catch (...) {
      failure = "threw an exception of an unknown type";
    }
    // The simulator ends a dead process's tasks by an exception that is no hook's: in that case this call throws it again.
    if (!failure.empty()) env.Operation("hooks.verdict");
    env::MutexLock lock(question->mutex);
    question->done = true;
    question->refusal = std::move(refusal);
    question->failure = std::move(failure);
    question->answered.NotifyAll();
  });
  if (task == nullptr) {
    report_(absl::StrCat("the hook ", asked.name, " was not asked ", VerdictName(kind), " of step ", step,
                         ", which counts as a yes: ", env::NoThread("asking hooks").message()));
    return std::nullopt;
  }
  if (!WaitFor(*question, env_.MonotonicNs() + limit_ns_)) {
    left_behind_.push_back({question, std::move(task)});
    Drop(asked, kind, step, absl::StrCat("did not answer within ", limit_ns_ / base::kMillisecondNs, " ms"));
    return std::nullopt;
  }
  task->Join();
  env::MutexLock lock(question->mutex);
  if (!question->failure.empty()) Drop(asked, kind, step, question->failure);
  return question->refusal;
}

bool Verdicts::WaitFor(Question& question, int64_t deadline_ns) {
  env::MutexLock lock(question.mutex);
  while (!question.done) {
    if (!question.answered.WaitUntil(question.mutex, deadline_ns)) break;
  }
  return question.done;
}

void Verdicts::Drop(Asked& asked, VerdictKind kind, int64_t step, const std::string& why) {
  asked.hook = nullptr;
  report_(absl::StrCat("the hook ", asked.name, " ", why, " at ", VerdictName(kind), " of step ", step,
                       "; it counts as a yes, and is asked no more"));
}

}  // namespace lamina::hooks
