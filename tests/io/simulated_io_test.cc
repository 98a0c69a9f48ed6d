// The queue, the writer and the reader where one thread runs at a time and processes die anywhere.
#include <catch2/catch.hpp>

#include "env/sim_env.h"
#include "io/range_reader.h"
#include "io/range_writer.h"
#include "io/thread_queue.h"
#include "testing/io_queue_suite.h"

namespace lamina::io {
namespace {

constexpr char kPath[] = "/ckpt/file";

absl::Status WriteAndReadBack(env::Env& env, const std::string& text) {
  ThreadQueue queue(env, 2, 2);
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<RangeWriter> writer, RangeWriter::Create(env, queue, kPath));
  for (size_t i = 0; i < text.size(); i += 10) LAMINA_RETURN_IF_ERROR(writer->Append(base::AsBytes(text).subspan(i, 10)));
  LAMINA_RETURN_IF_ERROR(writer->Finish());
  LAMINA_RETURN_IF_ERROR(env.files().SyncDirectory("/ckpt"));
  std::string read(text.size(), '-');
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<env::File> file, env.files().OpenForRead(kPath));
  const auto target = std::as_writable_bytes(std::span<char>(read));
  const ReadRange ranges[] = {{60, target.subspan(60)}, {0, target.first(60)}};
  LAMINA_RETURN_IF_ERROR(ReadRanges(env, queue, *file, ranges));
  return read == text ? absl::OkStatus() : absl::InternalError("other bytes than were written");
}

TEST_CASE("A ThreadQueue in the simulator does what every IoQueue must", "[io]") {
  const uint64_t seed = GENERATE(range(1, 6));
  env::SimWorld world({.seed = seed, .latency_ns_max = 1000, .short_writes = true});
  env::FaultEnv env(world.NewProcess("writer"));
  ThreadQueue queue(env, 2, 3);
  testing::CheckIoQueue(env, env.plan(), queue, "/ckpt");
}

TEST_CASE("A power cut at any operation keeps a file that was finished", "[io]") {
  const std::string text = testing::Pattern(100);
  env::SimThreads threads;
  int64_t op_count = 1;
  for (int64_t cut = 0; cut <= op_count; ++cut) {
    INFO("power cut at operation " << cut);
    env::SimWorld world({.seed = 7, .power_cut_at_op = cut, .lose_all_unsynced = true, .threads = &threads});
    env::SimProcess& process = world.NewProcess("writer");
    bool finished = false;
    const absl::Status run = world.Run(process, [&](env::Env& env) { finished = WriteAndReadBack(env, text).ok(); });
    REQUIRE(run.ok());
    op_count = world.op_count();
    world.Reboot();
    REQUIRE((!finished || world.Files().at(kPath) == text));
    REQUIRE(finished == (cut >= op_count));
  }
  REQUIRE(op_count > 15);  // ten writes and what stands around them
}

TEST_CASE("A process that dies at any operation leaves nothing that waits", "[io]") {
  const std::string text = testing::Pattern(100);
  env::SimThreads threads;
  const uint64_t seed = GENERATE(range(1, 6));
  bool died = true;
  for (int64_t op = 0; died; ++op) {
    INFO("seed " << seed << ", death at operation " << op);
    env::SimWorld world({.seed = seed, .latency_ns_max = 1000, .threads = &threads});
    env::SimProcess& process = world.NewProcess("writer");
    world.KillAtOp(process, op);
    absl::Status status = absl::UnknownError("died");
    REQUIRE(world.Run(process, [&](env::Env& env) { status = WriteAndReadBack(env, text); }).ok());
    died = process.dead();
    REQUIRE(status.ok() == !died);
  }
}

TEST_CASE("A process that another one ends between its operations touches nothing that is gone", "[io]") {
  const std::string text = testing::Pattern(100);
  env::SimThreads threads;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    env::SimWorld world({.seed = seed, .switch_probability = 0.5, .threads = &threads});
    env::SimProcess& writer = world.NewProcess("writer");
    world.Start(writer, [&](env::Env& env) { WriteAndReadBack(env, text).IgnoreError(); });
    world.Start(world.NewProcess("other"), [&](env::Env& env) {
      for (uint64_t i = 0; i < seed % 40; ++i) env.Operation("tick");
      world.Kill(writer);
    });
    REQUIRE(world.Run().ok());
    REQUIRE(writer.dead());
  }
}

TEST_CASE("A failure of any operation is told in the simulator too", "[io]") {
  const std::string text = testing::Pattern(100);
  env::SimThreads threads;
  absl::Status status = absl::UnknownError("not run");
  for (int64_t op = 0; !status.ok(); ++op) {
    INFO("failure of operation " << op);
    REQUIRE(op < 1000);
    env::SimWorld world({.seed = 3, .threads = &threads});
    world.AddFault({.path = "/ckpt", .first = op, .error_number = EIO});
    REQUIRE(world.Run(world.NewProcess("writer"), [&](env::Env& env) { status = WriteAndReadBack(env, text); }).ok());
    if (!status.ok()) REQUIRE(base::ErrnoOf(status) == EIO);
    if (status.ok()) REQUIRE(op == world.op_count());
  }
}

}  // namespace
}  // namespace lamina::io
