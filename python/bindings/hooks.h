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
  void LetPass();  // from now on no event is held up, however many are in it
  void Close();    // there will be no more events
  bool closed();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool let_pass_ = false;
  bool closed_ = false;
};

// A Python hook that is asked: the question waits here until a Python thread fetches it, and the answer until the one who asked has it.
class VerdictMailbox final : public VerdictHook {
 public:
  struct Question {
    std::string name;  // "may_commit" or "may_restore"
    int64_t step = 0;
  };

  std::optional<std::string> MayCommit(int64_t step) override { return Ask({"may_commit", step}); }
  std::optional<std::string> MayRestore(int64_t step) override { return Ask({"may_restore", step}); }
  // The next question; nullopt after `timeout_s`, or when closed.
  std::optional<Question> Next(double timeout_s);
  void Answer(std::optional<std::string> refusal);  // to the question last fetched
  void Close();                                     // every question is a yes from now on
  bool closed();

 private:
  std::optional<std::string> Ask(Question question);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Question> question_;
  std::optional<std::optional<std::string>> answer_;
  bool closed_ = false;
};

pybind11::dict EventToPython(const Event& event);

}  // namespace lamina::bindings
