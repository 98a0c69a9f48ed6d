// An IoQueue of plain threads and blocking calls: works wherever Env does.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "env/env.h"
#include "env/sync.h"
#include "io/io_queue.h"

namespace lamina::io {

class ThreadQueue : public IoQueue {
 public:
  // `thread_count` requests are under way at most, `depth_max` more wait for a thread (at least one of each). `env` outlives the queue.
  ThreadQueue(env::Env& env, int thread_count, int depth_max);
  // Does what was submitted and ends the threads. Nobody submits any more.
  ~ThreadQueue() override;
  void Submit(IoBatch& batch, const IoRequest& request) override;

 private:
  struct Entry {
    std::shared_ptr<IoBatchState> batch;
    IoRequest request;
  };
  ThreadQueue(env::Env& env, int depth_max);
  void Work();
  bool Take(Entry& entry);

  const size_t depth_max_;
  env::Mutex mutex_;
  env::CondVar changed_;
  std::deque<Entry> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<env::Task>> tasks_;
};

}  // namespace lamina::io
