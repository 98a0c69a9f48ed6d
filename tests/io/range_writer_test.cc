#include "io/range_writer.h"

#include <unistd.h>

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
};

// Appends `text` in parts of the lengths of `part_bytes`, in turn, and finishes.
absl::Status WriteInParts(Bench& bench, std::string_view text, const std::vector<size_t>& part_bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<RangeWriter> writer, RangeWriter::Create(bench.env, bench.queue, bench.path));
  for (size_t turn = 0; !text.empty(); ++turn) {
    const std::string_view part = text.substr(0, part_bytes[turn % part_bytes.size()]);
    LAMINA_RETURN_IF_ERROR(writer->Append(base::AsBytes(part)));
    text.remove_prefix(part.size());
  }
  return writer->Finish();
}

TEST_CASE("Parts of any size make one file in their order", "[io]") {
  Bench bench;
  const std::string text = testing::Pattern(100'000);
  SECTION("small and large, and nothing at all") { REQUIRE(WriteInParts(bench, text, {1, 0, 4096, 7, 20'000}).ok()); }
  SECTION("in one") { REQUIRE(WriteInParts(bench, text, {text.size()}).ok()); }
  REQUIRE((testing::TextIn(bench.env.files(), bench.path) == text));
}

TEST_CASE("A part above the largest request is split", "[io]") {
  Bench bench;
  const std::string text = testing::Pattern(2 * kRequestBytesMax + 5);
  const int64_t never = bench.env.plan().AddRule({.call = env::FaultCall::kWrite, .path_part = "", .error_number = EIO, .first = 4});
  REQUIRE(WriteInParts(bench, text, {text.size()}).ok());
  REQUIRE((testing::TextIn(bench.env.files(), bench.path) == text));
  REQUIRE(bench.env.plan().fault_count() == 0);  // three writes did it
  REQUIRE(bench.env.plan().RemoveRule(never));
}

TEST_CASE("An empty file is a file", "[io]") {
  Bench bench;
  REQUIRE(WriteInParts(bench, "", {1}).ok());
  REQUIRE(testing::TextIn(bench.env.files(), bench.path).empty());
}

TEST_CASE("A RangeWriter never writes into a file that is there", "[io]") {
  Bench bench;
  REQUIRE(testing::WriteText(bench.env.files(), bench.path, "old").ok());
  REQUIRE(absl::IsAlreadyExists(RangeWriter::Create(bench.env, bench.queue, bench.path).status()));
  REQUIRE(testing::TextIn(bench.env.files(), bench.path) == "old");
}

TEST_CASE("The counters tell what was appended and what was written", "[io]") {
  Bench bench;
  const auto writer = RangeWriter::Create(bench.env, bench.queue, bench.path);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Append(base::AsBytes("abc")).ok());
  REQUIRE((*writer)->Append(base::AsBytes("defg")).ok());
  REQUIRE((*writer)->bytes_appended() == 7);
  REQUIRE((*writer)->bytes_written() <= 7);
  REQUIRE((*writer)->Finish().ok());
  REQUIRE((*writer)->bytes_written() == 7);
  SECTION("and a finished file takes no more") {
    REQUIRE(absl::IsFailedPrecondition((*writer)->Append(base::AsBytes("h"))));
    REQUIRE((*writer)->Finish().ok());
    REQUIRE(testing::TextIn(bench.env.files(), bench.path) == "abcdefg");
  }
}

TEST_CASE("The bytes are synced before Finish says that they are durable", "[io]") {
  Bench bench;
  bench.env.plan().AddRule({.call = env::FaultCall::kSync, .path_part = "file", .error_number = EIO});
  const auto writer = RangeWriter::Create(bench.env, bench.queue, bench.path);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Append(base::AsBytes("abc")).ok());
  REQUIRE(base::ErrnoOf((*writer)->Finish()) == EIO);
  // A second sync would say OK of pages that the system has dropped.
  REQUIRE(base::ErrnoOf((*writer)->Finish()) == EIO);
}

TEST_CASE("A RangeWriter tells of any call that the system refuses, and of the bytes it has not written", "[io]") {
  const std::string text = testing::Pattern(1000);
  const int error_number = GENERATE(EIO, ENOSPC, EDQUOT, ESTALE);
  bool refused = true;
  for (int64_t call = 1; refused; ++call) {
    Bench bench;
    bench.env.plan().SetWriteBytesMax(30);
    bench.env.plan().AddRule({.call = {}, .path_part = "file", .error_number = error_number, .first = call});
    const absl::Status status = WriteInParts(bench, text, {100});
    refused = bench.env.plan().fault_count() > 0;
    INFO("call " << call << ": " << status.ToString());
    REQUIRE(status.ok() == !refused);
    if (refused) {
      REQUIRE(base::ErrnoOf(status) == error_number);
    } else {
      REQUIRE(call > 10 * 4 + 3);  // create, four writes for each of the ten parts, length, sync
      REQUIRE((testing::TextIn(bench.posix->files(), bench.path) == text));
    }
  }
}

TEST_CASE("After a failure a RangeWriter writes no more", "[io]") {
  Bench bench;
  bench.env.plan().AddRule({.call = env::FaultCall::kWrite, .path_part = "", .error_number = ENOSPC, .count = env::kFaultsForEver});
  const auto writer = RangeWriter::Create(bench.env, bench.queue, bench.path);
  REQUIRE(writer.ok());
  absl::Status status;
  while (status.ok()) status = (*writer)->Append(base::AsBytes("abc"));
  REQUIRE(base::ErrnoOf(status) == ENOSPC);
  REQUIRE(base::ErrnoOf((*writer)->Finish()) == ENOSPC);
  const int64_t appended = (*writer)->bytes_appended();
  REQUIRE_FALSE((*writer)->Append(base::AsBytes("abc")).ok());
  REQUIRE((*writer)->bytes_appended() == appended);
  REQUIRE((*writer)->bytes_written() == 0);
}

TEST_CASE("A RangeWriter that is given up leaves no write under way", "[io]") {
  Bench bench;
  {
    const std::string text = testing::Pattern(1000);
    const auto writer = RangeWriter::Create(bench.env, bench.queue, bench.path);
    REQUIRE(writer.ok());
    for (int i = 0; i < 20; ++i) REQUIRE((*writer)->Append(base::AsBytes(text)).ok());
  }
  REQUIRE(bench.env.files().Stat(bench.path)->bytes == 20'000);
}

TEST_CASE("A file that others shortened meanwhile is DataLoss", "[io]") {
  Bench bench;
  const auto writer = RangeWriter::Create(bench.env, bench.queue, bench.path);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Append(base::AsBytes("abc")).ok());
  while ((*writer)->bytes_written() < 3) bench.env.SleepNs(1000);
  REQUIRE(truncate(bench.path.c_str(), 1) == 0);
  REQUIRE(absl::IsDataLoss((*writer)->Finish()));
}

}  // namespace
}  // namespace lamina::io
