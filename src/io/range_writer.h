// Writes one new file front to back through a queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/env.h"
#include "env/file_system.h"
#include "io/io_queue.h"

namespace lamina::io {

// Used by one thread; the counters may be read by any. Destroyed without Finish it leaves the file as it is then: the owner of the name
// removes it.
class RangeWriter {
 public:
  // Creates the file: AlreadyExists when the name is taken. `env` and `queue` outlive the writer.
  static absl::StatusOr<std::unique_ptr<RangeWriter>> Create(env::Env& env, IoQueue& queue, const std::string& path);
  // Writes to an empty file that is open for writing.
  RangeWriter(env::Env& env, IoQueue& queue, std::unique_ptr<env::File> file);

  // Adds `part` behind what was appended before. Borrows it until Finish returned or the writer is destroyed. Waits while the queue is
  // full. The first failure of any part sticks; it may show here, and shows in Finish.
  absl::Status Append(std::span<const std::byte> part);
  int64_t bytes_appended() const { return bytes_appended_.load(std::memory_order_relaxed); }
  int64_t bytes_written() const { return batch_.bytes_completed(); }
  // Waits for all parts and makes them and the length durable (fdatasync; the name is the directory's). After a failure, of the sync too,
  // the file is to be given up, and every later call returns that failure.
  absl::Status Finish();

 private:
  absl::Status Settle();

  IoQueue& queue_;
  std::unique_ptr<env::File> file_;
  std::atomic<int64_t> bytes_appended_ = 0;
  bool finished_ = false;
  absl::Status outcome_;
  IoBatch batch_;  // last: it waits for requests on the file
};

}  // namespace lamina::io
