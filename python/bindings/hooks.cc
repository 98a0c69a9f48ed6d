#include "hooks.h"

#include <chrono>
#include <utility>

namespace lamina::bindings {
namespace {

constexpr size_t kHeldMax = 4096;

}  // namespace

void EventMailbox::OnEvent(const Event& event) {
  std::unique_lock lock(mutex_);
  // A full mailbox holds up the dispatcher's thread alone, which then drops what may be dropped, and counts it.
  changed_.wait(lock, [this] { return events_.size() < kHeldMax || let_pass_; });
  events_.push_back(event);
  changed_.notify_all();
}

std::optional<Event> EventMailbox::Next(double timeout_s) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return !events_.empty() || closed_; });
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  changed_.notify_all();
  return event;
}

void EventMailbox::LetPass() {
  const std::lock_guard lock(mutex_);
  let_pass_ = true;
  changed_.notify_all();
}

void EventMailbox::Close() {
  const std::lock_guard lock(mutex_);
  let_pass_ = closed_ = true;
  changed_.notify_all();
}

bool EventMailbox::closed() {
  const std::lock_guard lock(mutex_);
  return closed_ && events_.empty();
}

std::optional<VerdictMailbox::Question> VerdictMailbox::Next(double timeout_s) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return question_.has_value() || closed_; });
  return std::exchange(question_, std::nullopt);
}

void VerdictMailbox::Answer(std::optional<std::string> refusal) {
  const std::lock_guard lock(mutex_);
  answer_ = std::move(refusal);
  changed_.notify_all();
}

void VerdictMailbox::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool VerdictMailbox::closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::optional<std::string> VerdictMailbox::Ask(Question question) {
  std::unique_lock lock(mutex_);
  question_ = std::move(question);
  answer_.reset();
  changed_.notify_all();
  changed_.wait(lock, [this] { return answer_.has_value() || closed_; });
  return answer_.has_value() ? *answer_ : std::nullopt;
}

pybind11::dict EventToPython(const Event& event) {
  using namespace pybind11::literals;  // NOLINT: the literals are how keyword arguments are written
  return pybind11::dict("kind"_a = EventName(event.kind), "monotonic_ns"_a = event.monotonic_ns, "wall_ns"_a = event.wall_ns,
                        "rank"_a = event.rank, "step"_a = event.step, "save_number"_a = event.save_number, "bytes"_a = event.bytes,
                        "duration_ns"_a = event.duration_ns, "cause"_a = event.cause);
}

}  // namespace lamina::bindings
