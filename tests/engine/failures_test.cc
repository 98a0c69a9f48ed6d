// Saves that go wrong: who is named, what is left, and that the next one works.
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>

#include "testing/checks.h"
#include "testing/thread_job.h"

namespace lamina {
namespace {

namespace fs = std::filesystem;
using testing::All;
using testing::Checked;
using testing::Contains;
using testing::Found;
using testing::Moment;
using testing::RequireOk;
using testing::RootIn;
using testing::ScratchDirectory;
using testing::ThreadJob;

std::vector<std::string> FilesUnder(const std::string& directory) {
  std::vector<std::string> files;
  if (!fs::exists(directory)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  return files;
}

}  // namespace

TEST_CASE("A replica that differs is an error that names entry and ranks", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3);
  RequireOk(job.Save({1, 1}));
  const size_t entry = GENERATE(2, 3);  // "r" and "s"
  const std::vector<absl::Status> statuses = job.Each([&](int32_t rank) -> absl::Status {
    testing::RankState& state = job.state(rank);
    state.Set({2, 1});
    if (rank == 2) static_cast<std::byte*>(state.views()[entry].boxes[0].data)[0] ^= std::byte{1};
    const std::vector<BlobView> blobs = state.Blobs({2, 1});
    LAMINA_ASSIGN_OR_RETURN(const auto handle, job.engine(rank).Save({2, state.views(), blobs, {{"dp", 1}}}));
    return testing::Await(*handle);
  });
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(absl::IsInvalidArgument(status));
    REQUIRE(Contains(status, entry == 2 ? "'r'" : "'s'"));
    REQUIRE(Contains(status, "ranks 0 and 2"));
  }
  RequireOk(job.Save({3, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{3, 1}, {1, 1}});
}

TEST_CASE("A replica that may differ is kept as the lowest rank has it", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3);
  RequireOk(job.Each([&](int32_t rank) -> absl::Status {
    testing::RankState& state = job.state(rank);
    state.Set({2, 1});
    state.views()[2].replicas_may_differ = true;
    if (rank != 0) static_cast<std::byte*>(state.views()[2].boxes[0].data)[0] ^= std::byte{1};
    const std::vector<BlobView> blobs = state.Blobs({2, 1});
    LAMINA_ASSIGN_OR_RETURN(const auto handle, job.engine(rank).Save({2, state.views(), blobs, {{"dp", 1}}}));
    return testing::Await(*handle);
  }));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{2, 1}});
}

TEST_CASE("Plain values that differ between ranks are an error", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  const std::vector<absl::Status> statuses = job.Each([&](int32_t rank) -> absl::Status {
    job.state(rank).Set({1, 1});
    const std::vector<BlobView> blobs = job.state(rank).Blobs({1, 1 + rank});
    LAMINA_ASSIGN_OR_RETURN(const auto handle, job.engine(rank).Save({1, job.state(rank).views(), blobs, {{"dp", 1}}}));
    return testing::Await(*handle);
  });
  for (const absl::Status& status : statuses) {
    INFO(status);
    REQUIRE(absl::IsInvalidArgument(status));
    REQUIRE(Contains(status, "ranks 0 and 1"));
  }
}

TEST_CASE("A restore that fails once the targets are filled says so on every rank", "[engine]") {
  const ScratchDirectory scratch;
  {
    ThreadJob job(RootIn(scratch), 2);
    RequireOk(job.Save({1, 1}));
    RequireOk(job.Save({2, 1}));
    RequireOk(job.End());
  }
  ThreadJob job(RootIn(scratch), 2);
  // The claim's link goes well, that of the record which rewinds the line does not.
  job.faults(0).AddRule({.call = env::FaultCall::kLink, .path_part = "/log/", .error_number = EACCES, .first = 2, .count = 9});
  for (const absl::Status& status : job.Restore(1)) {
    INFO(status);
    REQUIRE(absl::IsPermissionDenied(status));
    REQUIRE(Contains(status, "the targets of this rank are filled: do not train on them"));
  }
  REQUIRE(!job.state(0).IsPoisoned());
  REQUIRE(Checked(RootIn(scratch)).line.front() == Moment{2, 1});
}

TEST_CASE("A rank that does not come is named after begin_timeout_s", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 4, [](Options& options) { options.begin_timeout_s = 0.3; });
  SECTION("to the first save") {}
  SECTION("to a later one") { RequireOk(job.Save({1, 1})); }
  for (const absl::Status& status : job.Save({2, 1}, {0, 1, 3})) {
    INFO(status);
    REQUIRE(absl::IsDeadlineExceeded(status));
    REQUIRE(Contains(status, "rank 2 did not come in time"));
    REQUIRE(base::DetailOf(status, base::kRankDetail) == "2");
    REQUIRE(base::DetailOf(status, base::kPhaseDetail) == "waiting");
  }
}

TEST_CASE("A description that is wrong on one rank fails the save on all and names it", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  const bool first = GENERATE(true, false);
  if (!first) RequireOk(job.Save({1, 1}));
  TensorView& view = job.state(1).views()[2];
  const TensorView sound = view;
  view.boxes[0].strides = {1, 1};
  for (const absl::Status& status : job.Save({2, 1})) {
    INFO(status);
    REQUIRE(absl::IsInvalidArgument(status));
    REQUIRE(Contains(status, "'r'"));
  }
  view = sound;
  RequireOk(job.Save({3, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line.front() == Moment{3, 1});
}

TEST_CASE("A failed write fails the save on all ranks, names rank and errno, and is forgotten by the next save", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3);
  RequireOk(job.Save({1, 1}));
  const int error_number = GENERATE(EIO, ENOSPC);
  const env::FaultCall call = GENERATE(env::FaultCall::kCreate, env::FaultCall::kWrite, env::FaultCall::kSync);
  job.faults(1).AddRule({.call = call, .path_part = "00001.pack", .error_number = error_number, .first = 1, .count = 1});
  for (const absl::Status& status : job.Save({2, 1})) {
    INFO(status);
    REQUIRE((error_number == EIO ? absl::IsUnavailable(status) : absl::IsResourceExhausted(status)));
    REQUIRE(Contains(status, "rank 1"));
    REQUIRE(base::ErrnoOf(status) == error_number);
    REQUIRE(base::DetailOf(status, base::kRankDetail) == "1");
  }
  REQUIRE(job.faults(1).fault_count() == 1);
  // They are removed at once, by a task beside.
  for (int i = 0; i < 3000 && !FilesUnder(RootIn(scratch) + "/steps/000000000002").empty(); ++i) job.env().SleepNs(10'000'000);
  REQUIRE(FilesUnder(RootIn(scratch) + "/steps/000000000002").empty());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{1, 1}});
  RequireOk(job.Save({3, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{3, 1}, {1, 1}});
}

TEST_CASE("A pack that comes about while its failed save is swept is removed by its writer", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3);
  RequireOk(job.Save({1, 1}));
  const std::string step = "/steps/000000000002";
  job.faults(1).AddRule({.call = env::FaultCall::kCreate, .path_part = "00001.pack", .error_number = EIO, .first = 1, .count = 1});
  job.faults(2).SetHang("00002.pack", env::FaultCall::kCreate);
  // The leader comes to its votes when the failure is told, and so sweeps before rank 2 looks for failures.
  job.faults(0).SetHang("00000.pack", env::FaultCall::kCreate);
  const auto await = [&job](const std::function<bool()>& seen) {
    for (int i = 0; i < 60'000 && !seen(); ++i) job.env().SleepNs(1'000'000);
  };
  const std::unique_ptr<env::Task> release = job.env().Start("release", [&] {
    await([&] { return job.faults(1).fault_count() == 1 && job.faults(0).hang_count() == 1; });
    job.env().SleepNs(200'000'000);
    job.faults(0).SetHang(step, env::FaultCall::kRemoveDirectory);
    await([&] { return job.faults(0).hang_count() == 2; });
    job.faults(2).SetHang(std::nullopt);
  });
  for (const absl::Status& status : job.Save({2, 1})) REQUIRE(absl::IsUnavailable(status));
  release->Join();
  const std::vector<std::string> left = FilesUnder(RootIn(scratch) + step);
  job.faults(0).SetHang(std::nullopt);
  REQUIRE(job.faults(0).hang_count() == 2);
  REQUIRE(left.empty());
  RequireOk(job.Save({3, 1}));
  RequireOk(job.End());
}

TEST_CASE("Whatever the leader cannot write fails the save on all ranks, and the next one works", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  RequireOk(job.Save({1, 1}));
  const std::string part = GENERATE(as<std::string>(), "catalog", "packs", "steps/000000000002", "00000.pack");
  job.faults(0).AddRule({.call = std::nullopt, .path_part = part, .error_number = ENOSPC, .first = 1, .count = 1});
  for (const absl::Status& status : job.Save({2, 1})) {
    INFO(status);
    REQUIRE(absl::IsResourceExhausted(status));
    REQUIRE(Contains(status, "rank 0, "));
    REQUIRE(base::DetailOf(status, base::kRankDetail) == "0");
  }
  REQUIRE(job.faults(0).fault_count() == 1);
  RequireOk(job.Save({3, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{3, 1}, {1, 1}});
}

TEST_CASE("Any single call that fails on any rank is told or overcome, and the next save works", "[engine]") {
  const int32_t rank = GENERATE(0, 1);
  bool hit = true;
  for (int64_t call = 1; hit; ++call) {
    INFO("call " << call << " of rank " << rank << " fails");
    const ScratchDirectory scratch;
    ThreadJob job(RootIn(scratch), 2);
    RequireOk(job.Save({1, 1}));
    const int64_t rule = job.faults(rank).AddRule({.call = {}, .path_part = "/root/", .error_number = EIO, .first = call, .count = 1});
    const std::vector<absl::Status> statuses = job.Save({2, 1});
    job.faults(rank).RemoveRule(rule);
    hit = job.faults(rank).fault_count() == 1;
    REQUIRE(statuses[0].ok() == statuses[1].ok());
    const bool committed = statuses[0].ok();
    INFO(statuses[0]);
    REQUIRE((hit || committed));
    RequireOk(job.Save({3, 1}));
    RequireOk(job.End());
    const Found found = Checked(RootIn(scratch));
    REQUIRE(found.Has({2, 1}) == committed);
    REQUIRE(found.line.front() == Moment{3, 1});
  }
}

namespace {

// Flips a bit in the middle of a file.
void Damage(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  REQUIRE(file.good());
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(middle);
  file.put(byte);
}

std::string FileOfStep(const std::string& root, int64_t step, const std::string& name) {
  for (const std::string& file : FilesUnder(absl::StrCat(root, "/steps/", absl::Dec(step, absl::kZeroPad12)))) {
    if (fs::path(file).filename() == name) return file;
  }
  FAIL("step " << step << " has no file " << name);
  return {};
}

}  // namespace

TEST_CASE("A damaged newest step is passed over by all ranks unless it was asked for", "[engine]") {
  const ScratchDirectory scratch(/*is_damaged=*/true);
  {
    ThreadJob job(RootIn(scratch), 2);
    RequireOk(job.Save({100, 1}));
    RequireOk(job.Save({200, 1}));
    RequireOk(job.End());
  }
  const std::string name = GENERATE(as<std::string>(), "catalog", "00001.pack", "missing");
  if (name == "missing") {
    fs::remove(FileOfStep(RootIn(scratch), 200, "00001.pack"));
  } else {
    Damage(FileOfStep(RootIn(scratch), 200, name));
  }
  ThreadJob readers(RootIn(scratch), 3, [](Options& options) { options.mode = Mode::kRead; });
  RequireOk(readers.Each([&](int32_t rank) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const RestoreInfo info, readers.engine(rank).Restore(readers.state(rank).views()));
    const bool told = info.step == 100 && info.passed_over.size() == 1 && info.passed_over[0].step == 200 &&
                      info.passed_over[0].reason.find(name == "missing" ? "00001.pack" : name) != std::string::npos;
    return told ? absl::OkStatus() : absl::InternalError(absl::StrCat("rank ", rank, " was not told why step 200 was passed over"));
  }));
  ThreadJob job(RootIn(scratch), 3);
  for (const absl::Status& status : job.Restore(200)) {
    INFO(status);
    REQUIRE(absl::IsDataLoss(status));
  }
  for (int32_t rank = 0; rank < 3; ++rank) REQUIRE(job.state(rank).IsPoisoned());
  Moment moment;
  RequireOk(job.Restore(std::nullopt, &moment));
  REQUIRE(moment == Moment{100, 1});
  RequireOk(job.Save({150, 2}));
  RequireOk(job.Restore(std::nullopt, &moment));
  REQUIRE(moment == Moment{150, 2});
}

TEST_CASE("A root where no step proves whole restores nothing and says so", "[engine]") {
  const ScratchDirectory scratch(/*is_damaged=*/true);
  {
    ThreadJob job(RootIn(scratch), 2);
    RequireOk(job.Save({100, 1}));
    RequireOk(job.Save({200, 1}));
    RequireOk(job.End());
  }
  Damage(FileOfStep(RootIn(scratch), 100, "catalog"));
  Damage(FileOfStep(RootIn(scratch), 200, "00000.pack"));
  ThreadJob job(RootIn(scratch), 2);
  for (const absl::Status& status : job.Restore(std::nullopt)) {
    INFO(status);
    REQUIRE(absl::IsDataLoss(status));
    REQUIRE(Contains(status, "no step of this root proves whole"));
  }
}

TEST_CASE("Trouble that is no damage never makes a restore resume older", "[engine]") {
  const ScratchDirectory scratch;
  {
    ThreadJob job(RootIn(scratch), 2);
    RequireOk(job.Save({100, 1}));
    RequireOk(job.Save({200, 1}));
    RequireOk(job.End());
  }
  ThreadJob job(RootIn(scratch), 2);
  const int error_number = GENERATE(EIO, EACCES);
  job.faults(1).AddRule(
      {.call = std::nullopt, .path_part = "steps/000000000200", .error_number = error_number, .first = 4, .count = env::kFaultsForEver});
  for (const absl::Status& status : job.Restore(std::nullopt)) {
    INFO(status);
    REQUIRE((error_number == EIO ? absl::IsUnavailable(status) : absl::IsPermissionDenied(status)));
    REQUIRE(Contains(status, "rank 1"));
  }
}

namespace {

// How one save of a rank ended, and whether it was Save itself that refused it.
struct SaveEnd {
  absl::Status status;
  bool refused = false;
};

SaveEnd SaveOf(ThreadJob& job, int32_t rank, const Moment& moment) {
  const auto handle = testing::BeginSave(job.engine(rank), job.state(rank), moment);
  if (!handle.ok()) return {handle.status(), true};
  return {testing::Await(**handle), false};
}

// Lets another trainer claim the root right behind the next record that is put.
class TakenOverTier final : public tier::FileTier {
 public:
  TakenOverTier(env::Env& env, const std::string& root, io::IoQueue& queue)
      : FileTier(env, root, queue), env_(env), other_(env, root, queue) {}
  absl::Status PutIfAbsent(std::string_view name, std::string_view bytes) override {
    LAMINA_RETURN_IF_ERROR(FileTier::PutIfAbsent(name, bytes));
    if (!name.starts_with("log/") || !std::exchange(armed, false)) return absl::OkStatus();
    return tier::Log(env_, other_).Claim({.run_id = {}, .takeover = true}).status();
  }
  bool armed = false;

 private:
  env::Env& env_;
  tier::FileTier other_;
};

}  // namespace

TEST_CASE("A job that was taken over writes nothing more, and all its ranks raise at the same call", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob old_job(RootIn(scratch), 3);
  RequireOk(old_job.Save({1, 1}));
  {
    ThreadJob new_job(RootIn(scratch), 2);
    RequireOk(new_job.Restore(std::nullopt));
    RequireOk(new_job.Save({2, 2}));
    RequireOk(new_job.End());
  }
  std::vector<std::vector<SaveEnd>> outcomes(3);
  RequireOk(old_job.Each([&](int32_t rank) {
    for (int64_t step = 3; step < 8; ++step) outcomes[static_cast<size_t>(rank)].push_back(SaveOf(old_job, rank, {step, 1}));
    return absl::OkStatus();
  }));
  for (const std::vector<SaveEnd>& of_rank : outcomes) {
    for (size_t i = 0; i < of_rank.size(); ++i) {
      INFO("save " << i << ": " << of_rank[i].status);
      REQUIRE(absl::IsAborted(of_rank[i].status));
      REQUIRE(Contains(of_rank[i].status, "was fenced by incarnation"));
      REQUIRE(of_rank[i].refused == (i >= 2));
    }
  }
  for (const absl::Status& status : old_job.Restore(std::nullopt)) REQUIRE(absl::IsAborted(status));
  for (const char* const step : {"3", "4", "5"}) REQUIRE_FALSE(fs::exists(RootIn(scratch) + "/steps/00000000000" + step));
  RequireOk(old_job.End());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{2, 2}, {1, 1}});
}

TEST_CASE("A commit that a claim came right behind counts, and is the job's last", "[engine]") {
  const ScratchDirectory scratch;
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  const Options options = testing::JobOptions(RootIn(scratch), 0, 1);
  testing::DirectQueue queue;
  TakenOverTier tier(*env, options.root, queue);
  coord::InProcessHub hub;
  coord::InProcessCoordinator coordinator(*env, hub);
  device::HostDevice device(*env);
  const std::unique_ptr<Engine> engine = engine::NewEngine(options, {*env, tier, coordinator, device}).value();
  testing::RankState state(0, 1);
  REQUIRE(testing::Await(*testing::BeginSave(*engine, state, {1, 1}).value()) == absl::OkStatus());
  tier.armed = true;
  REQUIRE(testing::Await(*testing::BeginSave(*engine, state, {2, 1}).value()) == absl::OkStatus());
  const auto behind = testing::BeginSave(*engine, state, {3, 1});
  REQUIRE(absl::IsAborted(testing::Await(**behind)));
  REQUIRE_FALSE(fs::exists(RootIn(scratch) + "/steps/000000000003"));
  REQUIRE(absl::IsAborted(testing::BeginSave(*engine, state, {4, 1}).status()));
  REQUIRE(engine->Close(-1) == absl::OkStatus());
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{2, 1}, {1, 1}});
}

TEST_CASE("A thread that the system refuses fails the call that needs it on all ranks, and the next call works", "[engine]") {
  const int64_t every = GENERATE(1, 2, 3, 4);
  INFO("each " << every << ". thread is refused");
  const auto told = [](const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) {
      INFO(status);
      REQUIRE((status.ok() || absl::IsResourceExhausted(status)));
      if (!status.ok()) REQUIRE(Contains(status, "pids.max"));
    }
  };
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  job.faults(0).SetTaskRefusedEvery(every);
  told(job.Save({1, 1}));
  job.faults(0).SetTaskRefusedEvery(0);
  RequireOk(job.Save({2, 1}));
  job.faults(0).SetTaskRefusedEvery(every);
  job.faults(1).SetTaskRefusedEvery(every);
  told(job.Restore(std::nullopt));
  told(job.Save({3, 1}));
  job.faults(0).SetTaskRefusedEvery(0);
  job.faults(1).SetTaskRefusedEvery(0);
  RequireOk(job.Restore(std::nullopt));
  RequireOk(job.Save({4, 1}));
  RequireOk(job.End());
  REQUIRE(Checked(RootIn(scratch)).line.front() == Moment{4, 1});
}

TEST_CASE("An engine that gets too few threads is not made", "[engine]") {
  const ScratchDirectory scratch;
  const std::unique_ptr<env::Env> posix = env::NewPosixEnv();
  env::FaultEnv env(*posix);
  testing::DirectQueue queue;
  tier::FileTier tier(env, RootIn(scratch), queue);
  coord::InProcessHub hub;
  coord::InProcessCoordinator coordinator(env, hub);
  device::HostDevice device(env);
  for (const int64_t every : {1, 2}) {
    env.plan().SetTaskRefusedEvery(every);
    const auto engine = engine::NewEngine(testing::JobOptions(RootIn(scratch), 0, 1), {env, tier, coordinator, device});
    INFO(engine.status());
    REQUIRE(absl::IsResourceExhausted(engine.status()));
  }
}

}  // namespace lamina
