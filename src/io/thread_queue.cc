#include "io/thread_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "env/no_thread.h"

namespace lamina::io {

ThreadQueue::ThreadQueue(env::Env& env, int depth_max)
    : depth_max_(static_cast<size_t>(std::max(depth_max, 1))), mutex_(env), changed_(env) {}

// Delegates, so that the destructor ends the threads that run when one more cannot be started.
ThreadQueue::ThreadQueue(env::Env& env, int thread_count, int depth_max) : ThreadQueue(env, depth_max) {
  for (int ordinal = 0; ordinal < std::max(thread_count, 1); ++ordinal) {
    std::unique_ptr<env::Task> task = env.Start(absl::StrCat("lamina-io-", ordinal), [this] { Work(); });
    if (task != nullptr) tasks_.push_back(std::move(task));
  }
}

ThreadQueue::~ThreadQueue() {
  {
    const env::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (const std::unique_ptr<env::Task>& task : tasks_) task->Join();
}

void ThreadQueue::Submit(IoBatch& batch, const IoRequest& request) {
  if (tasks_.empty()) {  // the system has granted none
    batch.state()->Begin();
    batch.state()->Complete(env::NoThread("reading and writing files"), 0);
    return;
  }
  const env::MutexLock lock(mutex_);
  while (waiting_.size() >= depth_max_) changed_.Wait(mutex_);
  waiting_.push_back({batch.state(), request});
  batch.state()->Begin();
  changed_.NotifyAll();
}

// False when all is done and no more will come.
bool ThreadQueue::Take(Entry& entry) {
  const env::MutexLock lock(mutex_);
  while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
  if (waiting_.empty()) return false;
  entry = std::move(waiting_.front());
  waiting_.pop_front();
  changed_.NotifyAll();
  return true;
}

void ThreadQueue::Work() {
  for (Entry entry; Take(entry); entry = {}) {
    if (!entry.batch->status().ok()) {
      entry.batch->Complete(absl::OkStatus(), 0);  // in vain after a failure
      continue;
    }
    const absl::Status status = base::WithinMemory([&entry] { return Transfer(entry.request); });
    const size_t bytes = entry.request.source.size() + entry.request.target.size();
    entry.batch->Complete(status, status.ok() ? static_cast<int64_t>(bytes) : 0);
  }
}

}  // namespace lamina::io
