#include "engine/in_time.h"

#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "env/no_thread.h"
#include "env/sync.h"

namespace lamina::engine {
namespace {

struct Running {
  explicit Running(env::Env& env) : mutex(env), ended(env) {}
  env::Mutex mutex;
  env::CondVar ended;
  bool done ABSL_GUARDED_BY(mutex) = false;
  absl::Status status ABSL_GUARDED_BY(mutex);
};

}  // namespace

absl::Status RunInTime(env::Env& env, int64_t deadline_ns, std::string_view what, std::shared_ptr<void> hold,
                       std::function<absl::Status()> work) {
  const auto running = std::make_shared<Running>(env);
  std::unique_ptr<env::Task> task = env.Start("lamina-restore", [running, hold = std::move(hold), work = std::move(work)]() mutable {
    absl::Status status = base::WithinMemory(work);
    work = nullptr;  // what it holds goes first
    {
      env::MutexLock lock(running->mutex);
      running->done = true;
      running->status = std::move(status);
      running->ended.NotifyAll();
    }
    hold.reset();
  });
  if (task == nullptr) return env::NoThread(what);
  absl::Status status;
  {
    env::MutexLock lock(running->mutex);
    while (!running->done && running->ended.WaitUntil(running->mutex, deadline_ns)) {
    }
    if (!running->done) {
      static_cast<void>(task.release());  // joining it would hang here
      return absl::DeadlineExceededError(absl::StrCat(std::string(what), ": storage does not answer"));
    }
    status = running->status;
  }
  task->Join();
  return status;
}

}  // namespace lamina::engine
