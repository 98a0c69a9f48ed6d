// Saves and restores by real threads on a real file system.
#include "lamina/engine.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_join.h"
#include "testing/checks.h"
#include "testing/thread_job.h"

namespace lamina {
namespace {

using testing::All;
using testing::Checked;
using testing::Contains;
using testing::Found;
using testing::Moment;
using testing::RequireOk;
using testing::RootIn;
using testing::ScratchDirectory;
using testing::ThreadJob;

// Saves steps 100 and 200 with a job of its own.
void SaveTwice(const std::string& root, int32_t rank_count) {
  ThreadJob job(root, rank_count);
  RequireOk(job.Restore(std::nullopt));
  RequireOk(job.Save({100, 1}));
  RequireOk(job.Save({200, 1}));
  RequireOk(job.End());
}

}  // namespace

TEST_CASE("What ranks save any number of ranks restores, bit for bit", "[engine]") {
  const auto [saving, restoring] = GENERATE(table<int32_t, int32_t>({{1, 1}, {4, 2}, {4, 6}, {2, 7}}));
  INFO(saving << " ranks save, " << restoring << " restore");
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), saving);
  Moment moment;
  ThreadJob job(RootIn(scratch), restoring);
  RequireOk(job.Restore(std::nullopt, &moment));
  REQUIRE(moment == Moment{200, 1});
  RequireOk(job.Restore(100, &moment));
  REQUIRE(moment == Moment{100, 1});
}

TEST_CASE("An empty root restores nothing, and the first save needs no restore", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  if (GENERATE(true, false)) {
    Moment moment;
    RequireOk(job.Restore(std::nullopt, &moment));
    REQUIRE(moment == Moment{-1, 0});
  }
  RequireOk(job.Save({0, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{0, 1}});
}

TEST_CASE("A report counts what was written", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  std::vector<SaveReport> reports(2);
  RequireOk(job.Each([&](int32_t rank) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const auto handle, testing::BeginSave(job.engine(rank), job.state(rank), {5, 1}));
    LAMINA_ASSIGN_OR_RETURN(reports[static_cast<size_t>(rank)], handle->Wait(-1));
    return handle->Done() ? absl::OkStatus() : absl::InternalError("waited for, and not done");
  }));
  for (const SaveReport& report : reports) {
    REQUIRE(report.step == 5);
    REQUIRE(report.outcome == Outcome::kCommitted);
    REQUIRE(report.total.state_bytes == 6 * 5 * 4 + 4 * 3 * 2 + 3 * 8 + 8);
    REQUIRE(report.total.written_bytes > report.rank.written_bytes);
    REQUIRE(report.durable_s >= report.hold_s);
    REQUIRE(report.hold_s >= report.stage_s);
  }
  REQUIRE(reports[0].rank.state_bytes + reports[1].rank.state_bytes == reports[0].total.state_bytes);
  REQUIRE(reports[0].rank.chunks_new + reports[1].rank.chunks_new == reports[0].total.chunks_new);
}

TEST_CASE("The state may be changed as soon as a save has returned", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3);
  RequireOk(job.Each([&](int32_t rank) -> absl::Status {
    std::vector<std::shared_ptr<SaveHandle>> handles;
    for (int64_t step = 1; step <= 6; ++step) {
      LAMINA_ASSIGN_OR_RETURN(handles.emplace_back(), testing::BeginSave(job.engine(rank), job.state(rank), {step, 1}));
      job.state(rank).Poison();
    }
    for (const auto& handle : handles) LAMINA_RETURN_IF_ERROR(testing::Await(*handle));
    return absl::OkStatus();
  }));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line.size() == 6);
}

TEST_CASE("A state that has grown is planned anew", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3);
  std::vector<std::unique_ptr<testing::RankState>> grown;
  for (int32_t rank = 0; rank < 3; ++rank) grown.push_back(std::make_unique<testing::RankState>(rank, 3, /*with_moments=*/true));
  RequireOk(job.Save({1, 1}));
  for (int64_t step = 2; step <= 5; ++step) {
    INFO("step " << step);
    RequireOk(job.Each([&](int32_t rank) -> absl::Status {
      LAMINA_ASSIGN_OR_RETURN(const auto handle, testing::BeginSave(job.engine(rank), *grown[static_cast<size_t>(rank)], {step, 1}));
      return testing::Await(*handle);
    }));
  }
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line.size() == 5);
  ThreadJob next(
      RootIn(scratch), 2, [](Options&) {}, /*with_moments=*/true);
  RequireOk(next.Restore(std::nullopt));
}

TEST_CASE("A tensor that appears on one rank alone is planned anew, and one that leaves a hole is an error", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3);
  RequireOk(job.Save({1, 1}));
  std::vector<float> memory(4);
  const bool whole = GENERATE(true, false);
  job.state(1).views().push_back({"extra", DType::kFloat32, {whole ? 4 : 5}, {{{{0}, {4}}, memory.data(), {1}}}, "", false});
  for (int64_t step = 2; step <= 4; ++step) {
    INFO("step " << step);
    const absl::Status status = All(job.Save({step, 1}));
    INFO(status);
    REQUIRE((whole ? status.ok() : absl::IsInvalidArgument(status)));
    if (!whole) REQUIRE(Contains(status, "'extra'"));
  }
  job.state(1).views().pop_back();
  RequireOk(job.Save({5, 1}));
  RequireOk(job.Save({6, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line.size() == (whole ? 6 : 3));
}

TEST_CASE("Targets may be strided, reversed and transposed, and what lies between their elements stays", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 2);
  ThreadJob job(RootIn(scratch), 1);
  testing::RankState truth(0, 1);
  truth.Set({200, 1});
  std::vector<float> memory(200, -1.0F);
  TensorView target = truth.views()[0];
  const auto* const expected = static_cast<const float*>(target.boxes[0].data);
  const auto [first, row, column] = GENERATE(table<int64_t, int64_t, int64_t>({{0, 11, 2}, {0, 1, 6}, {199, -17, -3}, {100, 13, -2}}));
  target.boxes[0].data = memory.data() + first;
  target.boxes[0].strides = {row, column};
  RequireOk(job.Each([&](int32_t) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const auto session, job.engine(0).BeginRestore(std::nullopt));
    LAMINA_RETURN_IF_ERROR(session->Fill({&target, 1}).status());
    return session->End();
  }));
  int64_t written = 0;
  for (const float value : memory) written += value != -1.0F;
  REQUIRE(written == 30);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 5; ++j) {
      REQUIRE(std::memcmp(&memory[static_cast<size_t>(first + i * row + j * column)], expected + i * 5 + j, sizeof(float)) == 0);
    }
  }
}

TEST_CASE("A target whose elements share memory is refused", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 1);
  ThreadJob job(RootIn(scratch), 1);
  job.state(0).views()[0].boxes[0].strides = {0, 1};
  const absl::Status status = All(job.Restore(std::nullopt));
  INFO(status);
  REQUIRE(absl::IsInvalidArgument(status));
  REQUIRE(Contains(status, "'w'"));
}

TEST_CASE("Targets of another dtype or shape leave everything untouched on all ranks", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 2);
  ThreadJob job(RootIn(scratch), 2);
  TensorView& view = job.state(1).views()[2];
  SECTION("dtype") { view.dtype = DType::kInt64; }
  SECTION("shape") {
    view.global_shape = {4};
    view.boxes[0].box = {{0}, {3}};
  }
  SECTION("name") { view.name = "rr"; }
  for (const absl::Status& status : job.Restore(std::nullopt)) {
    INFO(status);
    REQUIRE(absl::IsInvalidArgument(status));
    REQUIRE(base::DetailOf(status, base::kMismatchDetail).has_value());
    REQUIRE(Contains(status, "rank 1"));
    REQUIRE(Contains(status, "'r"));
  }
  REQUIRE(job.state(0).IsPoisoned());
  REQUIRE(job.state(1).IsPoisoned());
  view = testing::RankState(1, 2).views()[2];
}

TEST_CASE("A restore that fails once its targets are filled rolls nothing back, and nothing is saved on it", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 2);
  ThreadJob job(RootIn(scratch), 2);
  RequireOk(job.Restore(std::nullopt));
  const std::vector<absl::Status> statuses = job.Each([&](int32_t rank) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const auto session, job.engine(rank).BeginRestore(100));
    LAMINA_RETURN_IF_ERROR(session->Fill(job.state(rank).views()).status());
    return rank == 1 ? session->Fail(absl::InternalError("a scheduler that takes no state")) : session->End();
  });
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(absl::IsInternal(status));
    REQUIRE(Contains(status, "rank 1, ending: a scheduler that takes no state"));
    REQUIRE(Contains(status, "are filled: do not train on them"));
  }
  for (const absl::Status& status : job.Save({300, 3})) REQUIRE(absl::IsFailedPrecondition(status));
  Moment moment;
  RequireOk(job.Restore(std::nullopt, &moment));
  REQUIRE(moment == Moment{200, 1});
  RequireOk(job.Save({300, 3}));
}

TEST_CASE("A rank that cannot go on with a restore says so to all", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 2);
  ThreadJob job(RootIn(scratch), 2);
  const std::vector<absl::Status> statuses = job.Each([&](int32_t rank) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const auto session, job.engine(rank).BeginRestore(std::nullopt));
    job.state(rank).Poison();
    if (rank == 1) return session->Fail(absl::DataLossError("an optimizer without names"));
    return session->Fill(job.state(rank).views()).status();
  });
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(absl::IsInvalidArgument(status));
    REQUIRE(Contains(status, "rank 1"));
    REQUIRE(Contains(status, "an optimizer without names"));
  }
  REQUIRE(job.state(0).IsPoisoned());
}

TEST_CASE("Steps rise, and going back is by a restore", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 2);
  ThreadJob job(RootIn(scratch), 2);
  RequireOk(job.Restore(100));
  for (const absl::Status& status : job.Save({99, 2})) REQUIRE(absl::IsInvalidArgument(status));
  for (const absl::Status& status : job.Save({-1, 2})) REQUIRE(absl::IsInvalidArgument(status));
  RequireOk(job.Save({150, 2}));
  for (const absl::Status& status : job.Save({150, 2})) REQUIRE(absl::IsInvalidArgument(status));
  for (const absl::Status& status : job.Save({100, 2})) REQUIRE(absl::IsInvalidArgument(status));
  RequireOk(job.Save({200, 2}));
  RequireOk(job.End());
  const Found found = Checked(RootIn(scratch));
  REQUIRE(found.line == std::vector<Moment>{{200, 2}, {150, 2}, {100, 1}});
  REQUIRE(found.Has({200, 1}));  // abandoned, and readable
}

TEST_CASE("Saving the restored step again supersedes it", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 2);
  ThreadJob job(RootIn(scratch), 2);
  RequireOk(job.Restore(std::nullopt));
  RequireOk(job.Save({200, 2}));
  RequireOk(job.Save({300, 2}));
  for (const absl::Status& status : job.Save({300, 2})) REQUIRE(absl::IsInvalidArgument(status));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).all == std::vector<Moment>{{300, 2}, {200, 2}, {100, 1}});
}

TEST_CASE("A restore of an unknown step names those there are", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 2);
  ThreadJob job(RootIn(scratch), 2);
  for (const absl::Status& status : job.Restore(150)) {
    INFO(status);
    REQUIRE(absl::IsNotFound(status));
    REQUIRE(Contains(status, "200, 100"));
  }
}

TEST_CASE("Saving to a used root without a restore is refused and fences nobody", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob owner(RootIn(scratch), 2);
  RequireOk(owner.Save({100, 1}));
  {
    ThreadJob other(RootIn(scratch), 2);
    for (const absl::Status& status : other.Save({200, 2})) {
      INFO(status);
      REQUIRE(absl::IsFailedPrecondition(status));
      REQUIRE(Contains(status, "restore"));
    }
  }
  RequireOk(owner.Save({300, 1}));
  RequireOk(owner.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{300, 1}, {100, 1}});
}

TEST_CASE("A restore that failed does not count as one: what follows is no save", "[engine]") {
  const ScratchDirectory scratch;
  SaveTwice(RootIn(scratch), 2);
  ThreadJob job(RootIn(scratch), 2);
  REQUIRE(!All(job.Restore(150)).ok());
  for (const absl::Status& status : job.Save({300, 2})) {
    INFO(status);
    REQUIRE(absl::IsFailedPrecondition(status));
  }
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{200, 1}, {100, 1}});
}

TEST_CASE("What ranks have said to each other is taken back once all are past it", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  int64_t step = 0;
  const auto save = [&](int count) {
    for (int i = 0; i < count; ++i) RequireOk(job.Save({step += 100, 1}));
  };
  for (const int count : {4, 3, 3}) {
    RequireOk(job.Restore(std::nullopt));
    save(count);
  }
  RequireOk(job.End());
  const std::vector<std::string> keys = job.hub().Keys();
  const std::string all = absl::StrJoin(keys, "\n");
  INFO(all);
  for (const char* part : {"/root/", "/first/", "/restore/"}) REQUIRE(all.find(part) == std::string::npos);
  REQUIRE(keys.size() <= 16);  // of two saves, and the beats
}

TEST_CASE("A newer launch fences an older one at its next save", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob old_one(RootIn(scratch), 2);
  RequireOk(old_one.Save({100, 1}));
  ThreadJob new_one(RootIn(scratch), 2);
  RequireOk(new_one.Restore(std::nullopt));
  for (const absl::Status& status : old_one.Save({200, 1})) {
    INFO(status);
    REQUIRE(absl::IsAborted(status));
  }
  for (const absl::Status& status : old_one.Save({300, 1})) REQUIRE(absl::IsAborted(status));
  for (const absl::Status& status : old_one.Restore(std::nullopt)) REQUIRE(absl::IsAborted(status));
  RequireOk(new_one.Save({200, 2}));
  RequireOk(old_one.End());
  RequireOk(new_one.End());
  REQUIRE(Checked(RootIn(scratch)).all == std::vector<Moment>{{200, 2}, {100, 1}});
}

TEST_CASE("A save that a newer launch makes fail says that it is fenced, and what failed first", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob old_one(RootIn(scratch), 2);
  RequireOk(old_one.Save({100, 1}));
  // The newer one claims when the older one's save has begun to write, having found itself the newest.
  old_one.faults(0).SetHang("steps/000000000200");
  std::vector<absl::Status> statuses;
  const std::unique_ptr<env::Task> saving = old_one.env().Start("saving", [&] { statuses = old_one.Save({200, 1}); });
  while (old_one.faults(0).hang_count() == 0) old_one.env().SleepNs(1'000'000);
  ThreadJob new_one(RootIn(scratch), 2);
  RequireOk(new_one.Restore(std::nullopt));
  // As where the newer one has swept what is being written, and for any other cause.
  const auto [rank, call, part, error_number] =
      GENERATE(table<int32_t, env::FaultCall, std::string, int>({{0, env::FaultCall::kMakeDirectory, "steps/000000000200", EIO},
                                                                 {0, env::FaultCall::kSync, "00000.pack", ENOENT},
                                                                 {1, env::FaultCall::kSync, "00001.pack", ENOENT},
                                                                 {1, env::FaultCall::kWrite, "00001.pack", ENOSPC}}));
  old_one.faults(rank).AddRule({.call = call, .path_part = part, .error_number = error_number});
  old_one.faults(0).SetHang(std::nullopt);
  saving->Join();
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(absl::IsAborted(status));
    REQUIRE(std::string(status.message()).find("was fenced by incarnation") != std::string::npos);
    REQUIRE(std::string(status.message()).find(base::ErrnoName(error_number)) != std::string::npos);
  }
  REQUIRE(old_one.faults(rank).fault_count() == 1);
  RequireOk(new_one.Save({200, 2}));
  RequireOk(old_one.End());
  RequireOk(new_one.End());
  REQUIRE(Checked(RootIn(scratch)).all == std::vector<Moment>{{200, 2}, {100, 1}});
}

TEST_CASE("A closed engine neither saves nor restores", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  RequireOk(job.Save({100, 1}));
  RequireOk(job.Each([&](int32_t rank) { return job.engine(rank).Close(-1); }));
  for (const absl::Status& status : job.Save({200, 1})) REQUIRE(absl::IsFailedPrecondition(status));
  for (const absl::Status& status : job.Restore(std::nullopt)) REQUIRE(absl::IsFailedPrecondition(status));
  RequireOk(job.End());
}

TEST_CASE("A reader neither claims nor saves", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob owner(RootIn(scratch), 2);
  RequireOk(owner.Save({100, 1}));
  RequireOk(owner.Save({200, 1}));
  ThreadJob reader(RootIn(scratch), 3, [](Options& options) { options.mode = Mode::kRead; });
  Moment moment;
  RequireOk(reader.Restore(std::nullopt, &moment));
  REQUIRE(moment == Moment{200, 1});
  RequireOk(reader.Restore(100, &moment));
  REQUIRE(moment == Moment{100, 1});
  for (const absl::Status& status : reader.Save({300, 2})) REQUIRE(absl::IsFailedPrecondition(status));
  RequireOk(owner.Save({300, 1}));
  RequireOk(owner.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{300, 1}, {200, 1}, {100, 1}});
}

}  // namespace lamina
