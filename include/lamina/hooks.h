// Where modules attach: hooks that are told, and hooks that are asked. None is ever called with a lock held.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lamina/events.h"

namespace lamina {

// Is told what happens, one event at a time, on a thread of the runtime. One that throws, or is still at an event after
// `verdict_timeout_s`, gets no further events; the other hooks are told so (kFallback). It may be called on when the engine is gone: what
// it uses is its own.
class Hook {
 public:
  virtual ~Hook() = default;
  virtual void OnEvent(const Event& event) = 0;
};

// Is asked, each time on a thread of its own, and waited for at most `verdict_timeout_s`. nullopt: yes; a text: no, and why. One that
// throws or does not answer in time does not refuse by that: it is reported and asked no more.
class VerdictHook {
 public:
  virtual ~VerdictHook() = default;
  // On every rank, once what it writes is durable and before it votes. A refusal on any rank ends the save as skipped on all.
  virtual std::optional<std::string> MayCommit(int64_t /*step*/) { return std::nullopt; }
  // On rank 0, of the step that a restore is about to choose. A refused step is passed over for the next older one of the line; when it was
  // asked for by number, or none is left, the restore is FailedPrecondition.
  virtual std::optional<std::string> MayRestore(int64_t /*step*/) { return std::nullopt; }
};

}  // namespace lamina
