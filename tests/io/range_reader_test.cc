#include "io/range_reader.h"

#include <catch2/catch.hpp>

#include "env/posix_env.h"
#include "io/thread_queue.h"
#include "testing/io_queue_suite.h"
#include "testing/scratch_directory.h"

namespace lamina::io {
namespace {

struct Bench {
  testing::ScratchDirectory scratch;
  std::unique_ptr<env::Env> posix = env::NewPosixEnv();
  env::FaultEnv env{*posix};
  ThreadQueue queue{env, 2, 4};
  std::string path = scratch.path() + "/file";

  std::unique_ptr<env::File> FileWith(const std::string& text) {
    REQUIRE(testing::WriteText(env.files(), path, text).ok());
    auto file = env.files().OpenForRead(path);
    REQUIRE(file.ok());
    return *std::move(file);
  }
};

ReadRange RangeInto(int64_t offset, std::string& target) { return {offset, std::as_writable_bytes(std::span<char>(target))}; }

TEST_CASE("Ranges in any order, and the same bytes twice, fill their targets", "[io]") {
  Bench bench;
  const std::string text = testing::Pattern(5000);
  const std::unique_ptr<env::File> file = bench.FileWith(text);
  std::string last(100, '-');
  std::string first(3000, '-');
  std::string again(3000, '-');
  std::string none;
  const ReadRange ranges[] = {RangeInto(4900, last), RangeInto(0, first), RangeInto(0, again), RangeInto(9999, none)};
  REQUIRE(ReadRanges(bench.env, bench.queue, *file, ranges).ok());
  REQUIRE(last == text.substr(4900));
  REQUIRE(first == text.substr(0, 3000));
  REQUIRE(again == first);
}

TEST_CASE("A range above the largest request is split", "[io]") {
  Bench bench;
  const std::string text = testing::Pattern(2 * kRequestBytesMax + 5);
  const std::unique_ptr<env::File> file = bench.FileWith(text);
  bench.env.plan().AddRule({.call = env::FaultCall::kRead, .path_part = "", .error_number = EIO, .first = 4});
  std::string target(text.size() - 1, '-');
  const ReadRange ranges[] = {RangeInto(1, target)};
  REQUIRE(ReadRanges(bench.env, bench.queue, *file, ranges).ok());
  REQUIRE((target == text.substr(1)));
}

TEST_CASE("A file that is too short is DataLoss with offset and lengths", "[io]") {
  Bench bench;
  const std::unique_ptr<env::File> file = bench.FileWith("abcdef");
  std::string whole(6, '-');
  std::string beyond(4, '-');
  const ReadRange ranges[] = {RangeInto(0, whole), RangeInto(3, beyond)};
  const absl::Status status = ReadRanges(bench.env, bench.queue, *file, ranges);
  REQUIRE(absl::IsDataLoss(status));
  REQUIRE_THAT(std::string(status.message()), Catch::Contains("4 bytes at offset 3 ended after 3"));
}

TEST_CASE("Each read refused in turn is told, and none is under way afterwards", "[io]") {
  const std::string text = testing::Pattern(2000);
  for (int64_t call = 1; call <= 20; ++call) {
    Bench bench;
    const std::unique_ptr<env::File> file = bench.FileWith(text);
    bench.env.plan().AddRule({.call = env::FaultCall::kRead, .path_part = "file", .error_number = EIO, .first = call});
    std::vector<std::string> targets(20, std::string(100, '-'));
    std::vector<ReadRange> ranges;
    for (size_t i = 0; i < targets.size(); ++i) ranges.push_back(RangeInto(static_cast<int64_t>(100 * i), targets[i]));
    INFO("call " << call);
    REQUIRE(base::ErrnoOf(ReadRanges(bench.env, bench.queue, *file, ranges)) == EIO);
  }
}

TEST_CASE("Many threads read one file", "[io]") {
  Bench bench;
  const std::string text = testing::Pattern(4000);
  const std::unique_ptr<env::File> file = bench.FileWith(text);
  std::vector<std::string> targets(4, std::string(4000, '-'));
  std::vector<absl::Status> statuses(4);
  std::vector<std::unique_ptr<env::Task>> readers;
  for (size_t reader = 0; reader < targets.size(); ++reader) {
    readers.push_back(bench.env.Start("reader", [&, reader] {
      const ReadRange ranges[] = {RangeInto(0, targets[reader])};
      statuses[reader] = ReadRanges(bench.env, bench.queue, *file, ranges);
    }));
  }
  for (const auto& reader : readers) reader->Join();
  for (size_t reader = 0; reader < targets.size(); ++reader) {
    REQUIRE(statuses[reader].ok());
    REQUIRE(targets[reader] == text);
  }
}

}  // namespace
}  // namespace lamina::io
