#include "io/thread_queue.h"

#include <atomic>
#include <catch2/catch.hpp>

#include "env/posix_env.h"
#include "testing/io_queue_suite.h"
#include "testing/scratch_directory.h"

namespace lamina::io {
namespace {

// A file whose writes wait until they are let go, and that counts those under way.
class GatedFile : public env::File {
 public:
  explicit GatedFile(env::Env& env) : mutex_(env), changed_(env) {}
  absl::Status WriteAt(int64_t, std::span<const std::byte>) override {
    const env::MutexLock lock(mutex_);
    ++writing_;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mutex_);
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> ReadAt(int64_t, std::span<std::byte>) override { return 0; }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Size() override { return 0; }
  absl::Status Truncate(int64_t) override { return absl::OkStatus(); }

  void AwaitWriting(int count) {
    const env::MutexLock lock(mutex_);
    while (writing_ < count) changed_.Wait(mutex_);
  }
  void Open() {
    const env::MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  env::Mutex mutex_;
  env::CondVar changed_;
  int writing_ = 0;
  bool open_ = false;
};

TEST_CASE("A ThreadQueue does what every IoQueue must", "[io]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<env::Env> posix = env::NewPosixEnv();
  env::FaultEnv env(*posix);
  const auto [threads, depth] = GENERATE(std::pair(1, 1), std::pair(2, 8), std::pair(8, 1), std::pair(0, 0));
  ThreadQueue queue(env, threads, depth);
  testing::CheckIoQueue(env, env.plan(), queue, scratch.path());
}

TEST_CASE("A full ThreadQueue holds its submitter back", "[io]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  GatedFile file(*env);
  std::atomic<int> submitted = 0;
  {
    ThreadQueue queue(*env, 2, 3);
    IoBatch batch(*env);
    const std::unique_ptr<env::Task> submitter = env->Start("submitter", [&] {
      for (int i = 0; i < 10; ++i, ++submitted) queue.Submit(batch, testing::WriteOf(file, 0, "x"));
    });
    file.AwaitWriting(2);
    while (submitted < 5) env->SleepNs(1000);
    for (int i = 0; i < 10; ++i) {
      REQUIRE(submitted == 5);  // two under way, three waiting
      env->SleepNs(100'000);
    }
    file.Open();
    submitter->Join();
    REQUIRE(batch.Wait().ok());
    REQUIRE(batch.bytes_completed() == 10);
  }
  REQUIRE(submitted == 10);
}

TEST_CASE("Requests go on at the same time, as many as there are threads", "[io]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  GatedFile file(*env);
  ThreadQueue queue(*env, 3, 1);
  IoBatch batch(*env);
  for (int i = 0; i < 3; ++i) queue.Submit(batch, testing::WriteOf(file, 0, "x"));
  file.AwaitWriting(3);
  file.Open();
  REQUIRE(batch.Wait().ok());
}

TEST_CASE("A ThreadQueue that is destroyed has done what was submitted", "[io]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  auto file = env->files().CreateNew(scratch.path() + "/file");
  REQUIRE(file.ok());
  IoBatch batch(*env);
  {
    ThreadQueue queue(*env, 1, 100);
    for (int i = 0; i < 100; ++i) queue.Submit(batch, testing::WriteOf(**file, i, "x"));
  }
  REQUIRE(batch.bytes_completed() == 100);
  REQUIRE(testing::TextIn(env->files(), scratch.path() + "/file") == std::string(100, 'x'));
}

TEST_CASE("Several threads submit to one ThreadQueue", "[io]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  ThreadQueue queue(*env, 2, 2);
  const std::string text = testing::Pattern(1000);
  std::vector<std::unique_ptr<env::Task>> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.push_back(env->Start("writer", [&, path = scratch.path() + "/" + std::to_string(writer)] {
      auto file = env->files().CreateNew(path);
      IoBatch batch(*env);
      for (size_t i = 0; file.ok() && i < text.size(); i += 10) {
        queue.Submit(batch, testing::WriteOf(**file, static_cast<int64_t>(i), std::string_view(text).substr(i, 10)));
      }
    }));
  }
  for (const auto& writer : writers) writer->Join();
  for (int writer = 0; writer < 4; ++writer) {
    REQUIRE(testing::TextIn(env->files(), scratch.path() + "/" + std::to_string(writer)) == text);
  }
}

}  // namespace
}  // namespace lamina::io
