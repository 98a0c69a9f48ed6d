// What every IoQueue must do. Run by each implementation's test, in a directory that is there and empty.
#pragma once

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "env/env.h"
#include "env/fault_env.h"
#include "io/io_queue.h"
#include "testing/file_system_suite.h"

namespace lamina::testing {

// Text in which no two stretches are alike.
inline std::string Pattern(size_t bytes) {
  std::string text(bytes, '\0');
  uint64_t state = 1;
  for (char& letter : text) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    letter = static_cast<char>(state >> 56);
  }
  return text;
}

inline io::IoRequest WriteOf(env::File& file, int64_t offset, std::string_view text) {
  return {.file = &file, .offset = offset, .source = base::AsBytes(text), .target = {}};
}

inline io::IoRequest ReadOf(env::File& file, int64_t offset, std::string& text) {
  return {.file = &file, .offset = offset, .source = {}, .target = std::as_writable_bytes(std::span<char>(text))};
}

// `env` is the one whose files the queue's requests use, `plan` its faults.
inline void CheckIoQueue(env::Env& env, env::FaultPlan& plan, io::IoQueue& queue, const std::string& directory) {
  constexpr int64_t kPartBytes = 100;
  constexpr int kPartCount = 64;
  const std::string path = directory + "/file";
  const std::string text = Pattern(kPartBytes * kPartCount);
  auto file = env.files().CreateNew(path);
  REQUIRE(file.ok());
  io::IoBatch batch(env);
  const auto submit_all = [&] {
    for (int part = kPartCount - 1; part >= 0; --part) {
      queue.Submit(batch, WriteOf(**file, part * kPartBytes, std::string_view(text).substr(part * kPartBytes, kPartBytes)));
    }
  };
  SECTION("All that was submitted is written when the batch has been waited for") {
    submit_all();
    REQUIRE(batch.Wait().ok());
    REQUIRE(batch.bytes_completed() == static_cast<int64_t>(text.size()));
    REQUIRE((TextIn(env.files(), path) == text));
  }
  SECTION("Reads fill their targets") {
    submit_all();
    REQUIRE(batch.Wait().ok());
    auto reader = env.files().OpenForRead(path);
    REQUIRE(reader.ok());
    std::vector<std::string> parts(kPartCount, std::string(kPartBytes, '-'));
    for (int part = 0; part < kPartCount; ++part) queue.Submit(batch, ReadOf(**reader, part * kPartBytes, parts[part]));
    REQUIRE(batch.Wait().ok());
    for (int part = 0; part < kPartCount; ++part) REQUIRE(parts[part] == text.substr(part * kPartBytes, kPartBytes));
  }
  SECTION("A read beyond the end is DataLoss with the lengths") {
    REQUIRE((*file)->WriteAt(0, base::AsBytes("abc")).ok());
    auto reader = env.files().OpenForRead(path);
    REQUIRE(reader.ok());
    std::string target(5, '-');
    queue.Submit(batch, ReadOf(**reader, 1, target));
    const absl::Status status = batch.Wait();
    REQUIRE(absl::IsDataLoss(status));
    REQUIRE_THAT(std::string(status.message()), Catch::Contains("5 bytes at offset 1 ended after 2"));
    REQUIRE(batch.bytes_completed() == 0);
  }
  SECTION("A failure of any request is the batch's, with its errno, and sticks") {
    plan.AddRule({.call = env::FaultCall::kWrite, .path_part = "file", .error_number = ENOSPC, .first = kPartCount / 2});
    submit_all();
    REQUIRE(base::ErrnoOf(batch.Wait()) == ENOSPC);
    REQUIRE(base::ErrnoOf(batch.status()) == ENOSPC);
    REQUIRE(batch.bytes_completed() < static_cast<int64_t>(text.size()));
    queue.Submit(batch, WriteOf(**file, 0, text));
    REQUIRE(base::ErrnoOf(batch.Wait()) == ENOSPC);
  }
  SECTION("Batches fail apart") {
    REQUIRE(WriteText(env.files(), directory + "/empty", "").ok());
    auto empty = env.files().OpenForRead(directory + "/empty");
    REQUIRE(empty.ok());
    io::IoBatch other(env);
    std::string target(1, '-');
    queue.Submit(other, ReadOf(**empty, 0, target));
    submit_all();
    REQUIRE(batch.Wait().ok());
    REQUIRE((TextIn(env.files(), path) == text));
    REQUIRE(absl::IsDataLoss(other.Wait()));
  }
  SECTION("A batch without requests waits for nothing") {
    REQUIRE(batch.Wait().ok());
    REQUIRE(batch.bytes_completed() == 0);
  }
  SECTION("A batch that is destroyed has nothing under way") {
    {
      const std::string own = text;  // gone right after the batch
      io::IoBatch brief(env);
      for (int part = 0; part < kPartCount; ++part) queue.Submit(brief, WriteOf(**file, part * kPartBytes, own));
    }
    const int64_t bytes = (*file)->Size().value();
    REQUIRE(bytes == (kPartCount - 1) * kPartBytes + static_cast<int64_t>(text.size()));
  }
}

}  // namespace lamina::testing
