#include "lamina/events.h"

namespace lamina {

const char* EventName(EventKind kind) {
  switch (kind) {
    case EventKind::kSaveBegin:
      return "SaveBegin";
    case EventKind::kSnapshotDone:
      return "SnapshotDone";
    case EventKind::kWriteDone:
      return "WriteDone";
    case EventKind::kCommitted:
      return "Committed";
    case EventKind::kSaveFailed:
      return "SaveFailed";
    case EventKind::kSaveSkipped:
      return "SaveSkipped";
    case EventKind::kRestoreBegin:
      return "RestoreBegin";
    case EventKind::kRestoreDone:
      return "RestoreDone";
    case EventKind::kRestorePassedOver:
      return "RestorePassedOver";
    case EventKind::kReplicaMismatch:
      return "ReplicaMismatch";
    case EventKind::kIoSlow:
      return "IoSlow";
    case EventKind::kFallback:
      return "Fallback";
    case EventKind::kFenced:
      return "Fenced";
  }
  return "unknown";
}

}  // namespace lamina
