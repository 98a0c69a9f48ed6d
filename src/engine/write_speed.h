// Tells a write that is far slower than those before it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace lamina::engine {

// Of one thread.
class WriteSpeed {
 public:
  // What is slow about a write, when it took more than a second and went at less than a quarter of the median speed of the last eight;
  // nothing is slow before there are three to compare with.
  std::optional<std::string> Judge(int64_t bytes, int64_t duration_ns);

 private:
  std::deque<double> recent_;  // bytes a second
};

}  // namespace lamina::engine
