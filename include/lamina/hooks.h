// Where modules attach. Called on one thread of the runtime, never with a lock held. A hook that throws is reported and dropped.
#pragma once

#include "lamina/events.h"

namespace lamina {

class Hook {
 public:
  virtual ~Hook() = default;
  virtual void OnEvent(const Event& event) = 0;
};

}  // namespace lamina
