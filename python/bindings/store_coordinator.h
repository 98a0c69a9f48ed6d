// The coordinator of a job under torch.distributed: requests wait in a queue that one Python thread serves from the job's store. Core
// threads never touch Python.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include <pybind11/pybind11.h>
#include "coord/coordinator.h"

namespace lamina::bindings {

class StoreQueue {
 public:
  struct Request {
    int64_t number = 0;
    std::string operation;  // set get check delete
    std::string key;
    std::string value;
  };
  struct Reply {
    std::string status;  // ok absent, or anything else for a failure
    std::string value;   // of a get; of a failure its text
  };

  // Python's side.
  std::optional<Request> Next(double timeout_s);
  void Answer(int64_t number, Reply reply);
  // Requests from now on fail, and those that wait.
  void Close();

  // The core's side: waits for the answer. Unavailable after a minute, or when closed.
  absl::StatusOr<Reply> Ask(const std::string& operation, const std::string& key, std::string_view value);

 private:
  std::mutex mutex_;
  std::condition_variable asked_;
  std::condition_variable answered_;
  int64_t next_number_ = 0;
  bool closed_ = false;
  std::deque<Request> requests_;
  std::map<int64_t, std::optional<Reply>> replies_;  // of those who wait
};

class StoreCoordinator final : public coord::Coordinator {
 public:
  explicit StoreCoordinator(StoreQueue& queue) : queue_(queue) {}
  absl::Status Set(const std::string& key, std::string_view value) override;
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override;
  absl::StatusOr<bool> Check(const std::string& key) override;
  absl::Status Delete(const std::string& key) override;

 private:
  StoreQueue& queue_;
};

void BindStoreQueue(pybind11::module_& module);

}  // namespace lamina::bindings
