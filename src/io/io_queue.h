// Transfers between memory and files in the background. A queue does them in any order and at the same time; who submits groups them in a
// batch and waits for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "env/env.h"
#include "env/file_system.h"
#include "env/sync.h"

namespace lamina::io {

// One write (of `source`) or one read (into `target`, to be filled wholly); the other span is empty. File and memory are borrowed until the
// batch has the request completed.
struct IoRequest {
  env::File* file = nullptr;
  int64_t offset = 0;
  std::span<const std::byte> source;
  std::span<std::byte> target;
};

// What queues share with a batch. Thread-safe.
class IoBatchState {
 public:
  explicit IoBatchState(env::Env& env) : mutex_(env), changed_(env) {}
  void Begin();
  // `bytes` were transferred, or none and a failure.
  void Complete(const absl::Status& status, int64_t bytes);
  absl::Status status();
  int64_t bytes_completed();
  absl::Status Wait();
  // Requests that no thread has begun are not to be done any more: what they borrow goes.
  void GiveUp();

 private:
  env::Mutex mutex_;
  env::CondVar changed_;
  int64_t pending_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_completed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Requests that are waited for together. The first failure sticks, and requests that no thread has begun by then are completed undone.
// Thread-safe. Waits have no deadline: memory that the system may still read or fill cannot be given back, whatever the time.
class IoBatch {
 public:
  explicit IoBatch(env::Env& env) : state_(std::make_shared<IoBatchState>(env)) {}
  IoBatch(const IoBatch&) = delete;
  IoBatch& operator=(const IoBatch&) = delete;
  // Waits until no request is under way, so that what they borrow may go.
  ~IoBatch();

  // Waits until all that was submitted so far is completed: the first failure, or OK.
  absl::Status Wait() { return state_->Wait(); }
  // The first failure so far, or OK. Never waits.
  absl::Status status() const { return state_->status(); }
  // Bytes of requests that were done wholly: progress.
  int64_t bytes_completed() const { return state_->bytes_completed(); }
  // For queues: shared, since a thread may still hold it when the batch has just been waited for.
  const std::shared_ptr<IoBatchState>& state() const { return state_; }

 private:
  std::shared_ptr<IoBatchState> state_;
};

// Thread-safe.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // Takes the request; waits while the queue is full. Failures go to the batch. The queue outlives the batch's requests.
  virtual void Submit(IoBatch& batch, const IoRequest& request) = 0;
};

// No request is larger: so one transfer never keeps a thread from others for long.
inline constexpr int64_t kRequestBytesMax = 4 << 20;

// Does the request at once on this thread. DataLoss when the file ends before `target` is full.
absl::Status Transfer(const IoRequest& request);

}  // namespace lamina::io
