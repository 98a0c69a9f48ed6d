// What a save returns at once, and what it reports when it has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lamina {

enum class Outcome { kCommitted, kSkipped };

struct SaveTotals {
  int64_t state_bytes = 0;    // raw bytes, each box once
  int64_t written_bytes = 0;  // to the store, metadata included
  int64_t chunks_new = 0;
  int64_t chunks_shared = 0;     // stored by reference to an earlier save
  int64_t chunks_dependent = 0;  // stored against another chunk
};

struct SaveReport {
  int64_t step = 0;
  Outcome outcome = Outcome::kCommitted;
  std::string reason;    // of a skip
  SaveTotals rank;       // this rank's own
  SaveTotals total;      // of the job
  double hold_s = 0;     // how long Save held the caller
  double stage_s = 0;    // of it: copying
  double durable_s = 0;  // from the call to the commit
};

// Thread-safe. A failed save's status carries the first cause: its code, its message with rank and phase, its errno.
class SaveHandle {
 public:
  virtual ~SaveHandle() = default;
  // Waits until the save has ended. DeadlineExceeded when `timeout_s` passes first; the save goes on. A negative timeout waits without end.
  virtual absl::StatusOr<SaveReport> Wait(double timeout_s) = 0;
  virtual bool Done() = 0;
};

}  // namespace lamina
