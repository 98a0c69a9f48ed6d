// How much memory the code under test holds at most. Counts what operator new hands out in this program.
#pragma once

#include <cstddef>

namespace lamina::format {

class MemoryMeter {
 public:
  MemoryMeter();  // starts from what is held now
  size_t PeakBytes() const;

 private:
  size_t begin_bytes_;
};

}  // namespace lamina::format
