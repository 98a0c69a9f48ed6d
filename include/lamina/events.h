// What the runtime tells: value structs, delivered in order on one thread. docs/hooks.md describes each.
#pragma once

#include <cstdint>
#include <string>

namespace lamina {

enum class EventKind : uint8_t {
  kSaveBegin,
  kSnapshotDone,
  kWriteDone,
  kCommitted,
  kSaveFailed,
  kSaveSkipped,
  kRestoreBegin,
  kRestoreDone,
  kRestorePassedOver,
  kReplicaMismatch,
  kIoSlow,
  kFallback,
  kFenced,
};

struct Event {
  EventKind kind = EventKind::kSaveBegin;
  int64_t monotonic_ns = 0;
  int64_t wall_ns = 0;
  int32_t rank = 0;
  int64_t step = 0;
  int64_t save_number = 0;  // counts this checkpointer's saves from 0; restores count on their own
  int64_t bytes = 0;
  int64_t duration_ns = 0;
  std::string cause;  // empty when nothing went wrong
};

// "SaveBegin" and so on.
const char* EventName(EventKind kind);

}  // namespace lamina
