// Python's lock around calls that work or wait.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace lamina::bindings {

// Runs `work` with the lock released. It must not touch Python.
template <typename Work>
auto WithoutGil(Work&& work) {
  const pybind11::gil_scoped_release release;
  return std::forward<Work>(work)();
}

// What a signal's handler in Python raises while `work` runs.
enum class OnSignal {
  kWait,   // is raised when `work` has ended: it is at memory of the caller
  kLeave,  // is raised at once: `work` owns all that it touches, and is left behind
};

// As WithoutGil, for work that takes long: it has a thread of its own, so that on this one signal handlers run (Ctrl-C, a preemption
// notice).
template <typename Work>
auto WithSignals(OnSignal on_signal, Work work) {
  struct Running {
    explicit Running(Work todo) : work(std::move(todo)) {}
    Work work;
    std::optional<decltype(work())> result;
    std::promise<void> ended;
  };
  constexpr std::chrono::milliseconds kSlice(100);
  const auto running = std::make_shared<Running>(std::move(work));
  std::future<void> ended = running->ended.get_future();
  std::thread thread;
  try {
    thread = std::thread([running] {
      try {
        running->result.emplace(running->work());
        running->ended.set_value();
      } catch (...) {  // no memory: it is raised where the caller waits, and does not end the process
        running->ended.set_exception(std::current_exception());
      }
    });
  } catch (const std::system_error&) {  // no thread is to be had: then handlers wait
    return WithoutGil(running->work);
  }
  std::optional<pybind11::error_already_set> raised;
  while (WithoutGil([&] { return ended.wait_for(kSlice); }) != std::future_status::ready) {
    if (raised.has_value() || PyErr_CheckSignals() == 0) continue;
    raised.emplace();
    if (on_signal == OnSignal::kLeave) {
      thread.detach();
      throw pybind11::error_already_set(*raised);
    }
  }
  WithoutGil([&] { thread.join(); });
  if (raised.has_value()) throw pybind11::error_already_set(*raised);
  ended.get();
  return *std::move(running->result);
}

}  // namespace lamina::bindings
