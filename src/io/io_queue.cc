#include "io/io_queue.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lamina::io {

void IoBatchState::Begin() {
  const env::MutexLock lock(mutex_);
  ++pending_count_;
}

void IoBatchState::Complete(const absl::Status& status, int64_t bytes) {
  const env::MutexLock lock(mutex_);
  bytes_completed_ += bytes;
  status_.Update(status);
  if (--pending_count_ == 0) changed_.NotifyAll();
}

absl::Status IoBatchState::status() {
  const env::MutexLock lock(mutex_);
  return status_;
}

int64_t IoBatchState::bytes_completed() {
  const env::MutexLock lock(mutex_);
  return bytes_completed_;
}

absl::Status IoBatchState::Wait() {
  const env::MutexLock lock(mutex_);
  // A wait without a deadline fails only where a simulated process has died; once the batch has been given up, its threads touch no memory
  // of requests any more.
  while (pending_count_ > 0 && changed_.WaitUntil(mutex_, env::kForeverNs)) continue;
  return status_;
}

void IoBatchState::GiveUp() {
  const env::MutexLock lock(mutex_);
  if (pending_count_ > 0) status_.Update(absl::CancelledError("the batch is gone"));
}

IoBatch::~IoBatch() {
  try {
    state_->Wait().IgnoreError();  // told by status() and Wait() to whom it concerned
  } catch (...) {
    // As above: nobody is left to whom the memory could matter.
  }
  state_->GiveUp();
}

absl::Status Transfer(const IoRequest& request) {
  if (!request.source.empty()) return request.file->WriteAt(request.offset, request.source);
  LAMINA_ASSIGN_OR_RETURN(const int64_t count, request.file->ReadAt(request.offset, request.target));
  if (count == static_cast<int64_t>(request.target.size())) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("read of ", request.target.size(), " bytes at offset ", request.offset, " ended after ", count,
                                          ": the file is too short"));
}

}  // namespace lamina::io
