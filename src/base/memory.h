// Want of memory as a status. On a thread of ours an exception ends the process, and across the C++ interface none may pass.
#pragma once

#include <new>
#include <stdexcept>

#include "absl/status/status.h"

namespace lamina::base {

inline constexpr char kNoMemory[] = "there is not enough memory";

// What `work` returns, an absl::Status or StatusOr; ResourceExhausted where memory runs out in it, or is asked for in a size that no
// machine has. Every other exception passes: the simulator ends the tasks of a dead process by one.
template <typename Work>
auto WithinMemory(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(kNoMemory);
  } catch (const std::length_error&) {
    return absl::ResourceExhaustedError(kNoMemory);
  }
}

}  // namespace lamina::base
