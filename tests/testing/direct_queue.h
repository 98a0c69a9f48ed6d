// An IoQueue that does each request at once on the submitting thread: for tests that are not about queues.
#pragma once

#include "io/io_queue.h"

namespace lamina::testing {

class DirectQueue : public io::IoQueue {
 public:
  void Submit(io::IoBatch& batch, const io::IoRequest& request) override {
    const std::shared_ptr<io::IoBatchState> state = batch.state();
    state->Begin();
    state->Complete(io::Transfer(request), static_cast<int64_t>(request.source.size() + request.target.size()));
  }
};

}  // namespace lamina::testing
