// What belongs to the process that made it: its threads are not there in a forked child.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "errors.h"
#include "gil.h"

namespace lamina::bindings {

// Owns a T. In a forked child it gives it to nobody and never frees it, since that would wait for threads that are not there.
template <typename T>
class OfThisProcess {
 public:
  explicit OfThisProcess(std::shared_ptr<T> made) : pid_(getpid()), made_(std::move(made)) {}
  ~OfThisProcess() {
    if (getpid() != pid_) {
      static_cast<void>(new std::shared_ptr<T>(std::move(made_)));
    } else if (made_ != nullptr) {
      WithoutGil([this] { made_.reset(); });
    }
  }
  OfThisProcess(const OfThisProcess&) = delete;
  OfThisProcess& operator=(const OfThisProcess&) = delete;

  bool IsForked() const { return getpid() != pid_; }
  // StateError in a forked child.
  const std::shared_ptr<T>& Here() const {
    if (IsForked()) RaiseIfError(absl::FailedPreconditionError("this belongs to the parent of this forked process: open it anew here"));
    return made_;
  }

 private:
  const pid_t pid_;
  std::shared_ptr<T> made_;
};

}  // namespace lamina::bindings
