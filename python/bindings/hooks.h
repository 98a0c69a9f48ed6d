// Events on their way to Python: they wait here until a Python thread asks for them, since core threads never touch Python.
#pragma once

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "lamina/events.h"
#include "lamina/hooks.h"

namespace lamina::bindings {

// Bounded by the dispatcher behind it: it takes an event only when the one before has been fetched.
class EventMailbox final : public Hook {
 public:
  void OnEvent(const Event& event) override;
  // The next event; nullopt after `timeout_s`, or when closed and empty.
  std::optional<Event> Next(double timeout_s);
  void Close();  // events from now on are not waited for
  bool closed();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool closed_ = false;
};

pybind11::dict EventToPython(const Event& event);

}  // namespace lamina::bindings
