#include "store_coordinator.h"

#include <chrono>
#include <utility>

#include <pybind11/stl.h>
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "gil.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT: the literals are how keyword arguments are written

// The thread that answers needs the GIL, which a long call of the trainer's may hold: that is no failure. What the store itself takes is
// limited there.
constexpr std::chrono::seconds kAnswerWithin{600};

absl::Status Failed(const StoreQueue::Reply& reply, const std::string& operation) {
  return absl::UnavailableError(
      absl::StrCat("the job's store did not take a ", operation, ": ", reply.value.empty() ? reply.status : reply.value));
}

}  // namespace

std::optional<StoreQueue::Request> StoreQueue::Next(double timeout_s) {
  std::unique_lock lock(mutex_);
  asked_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return !requests_.empty() || closed_; });
  if (requests_.empty()) return std::nullopt;
  Request request = std::move(requests_.front());
  requests_.pop_front();
  return request;
}

void StoreQueue::Answer(int64_t number, Reply reply) {
  const std::lock_guard lock(mutex_);
  const auto waiting = replies_.find(number);
  if (waiting == replies_.end()) return;  // its asker gave up
  waiting->second = std::move(reply);
  answered_.notify_all();
}

void StoreQueue::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  asked_.notify_all();
  answered_.notify_all();
}

absl::StatusOr<StoreQueue::Reply> StoreQueue::Ask(const std::string& operation, const std::string& key, std::string_view value) {
  std::unique_lock lock(mutex_);
  if (closed_) return absl::UnavailableError("the job's store is closed");
  const int64_t number = next_number_++;
  requests_.push_back({number, operation, key, std::string(value)});
  const auto waiting = replies_.emplace(number, std::nullopt).first;
  asked_.notify_one();
  answered_.wait_for(lock, kAnswerWithin, [&] { return waiting->second.has_value() || closed_; });
  const std::optional<Reply> reply = std::move(waiting->second);
  replies_.erase(waiting);
  if (reply.has_value()) return *reply;
  return absl::UnavailableError(
      closed_ ? "the job's store is closed"
              : absl::StrCat("the job's store did not answer a ", operation, " within ", kAnswerWithin.count(), " s"));
}

absl::Status StoreCoordinator::Set(const std::string& key, std::string_view value) {
  LAMINA_ASSIGN_OR_RETURN(const StoreQueue::Reply reply, queue_.Ask("set", key, value));
  return reply.status == "ok" ? absl::OkStatus() : Failed(reply, "set");
}

absl::StatusOr<std::optional<std::string>> StoreCoordinator::Get(const std::string& key) {
  LAMINA_ASSIGN_OR_RETURN(StoreQueue::Reply reply, queue_.Ask("get", key, {}));
  if (reply.status == "absent") return std::optional<std::string>();
  if (reply.status != "ok") return Failed(reply, "get");
  return std::optional<std::string>(std::move(reply.value));
}

absl::StatusOr<bool> StoreCoordinator::Check(const std::string& key) {
  LAMINA_ASSIGN_OR_RETURN(const StoreQueue::Reply reply, queue_.Ask("check", key, {}));
  if (reply.status != "ok" && reply.status != "absent") return Failed(reply, "check");
  return reply.status == "ok";
}

absl::Status StoreCoordinator::Delete(const std::string& key) {
  LAMINA_ASSIGN_OR_RETURN(const StoreQueue::Reply reply, queue_.Ask("delete", key, {}));
  return reply.status == "ok" || reply.status == "absent" ? absl::OkStatus() : Failed(reply, "delete");
}

void BindStoreQueue(py::module_& module) {
  py::class_<StoreQueue, std::shared_ptr<StoreQueue>>(module, "StoreQueue")
      .def(py::init<>())
      .def(
          "next",
          [](StoreQueue& queue, double timeout_s) -> py::object {
            const std::optional<StoreQueue::Request> request = WithoutGil([&] { return queue.Next(timeout_s); });
            if (!request.has_value()) return py::none();
            return py::make_tuple(request->number, request->operation, request->key, py::bytes(request->value));
          },
          "timeout_s"_a)
      .def(
          "reply",
          [](StoreQueue& queue, int64_t number, const std::string& status, const std::optional<py::bytes>& value) {
            std::string text = value.has_value() ? std::string(*value) : std::string();
            WithoutGil([&] { queue.Answer(number, {status, std::move(text)}); });
          },
          "number"_a, "status"_a, "value"_a)
      .def("close", [](StoreQueue& queue) { WithoutGil([&] { queue.Close(); }); });
}

}  // namespace lamina::bindings
