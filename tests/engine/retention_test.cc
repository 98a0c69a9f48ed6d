// keep, leases and gc by real threads on a real file system.
#include "engine/retention.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "engine/collect.h"
#include "testing/checks.h"
#include "testing/thread_job.h"

namespace lamina {
namespace {

using testing::All;
using testing::Checked;
using testing::Found;
using testing::Moment;
using testing::RequireOk;
using testing::RootIn;
using testing::ScratchDirectory;
using testing::ThreadJob;

// -1 when something was deleted meanwhile.
int64_t FilesUnderSteps(const std::string& root) {
  int64_t count = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(root + "/steps", error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) count += entry->is_regular_file(error);
  return error ? -1 : count;
}

// A sweep is under way beside what the test does.
void WaitForFiles(const std::string& root, int64_t count) {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  for (int i = 0; i < 6000 && FilesUnderSteps(root) != count; ++i) env->SleepNs(10'000'000);
  REQUIRE(FilesUnderSteps(root) == count);
}

// A tool's view of the root.
struct Tool {
  explicit Tool(const std::string& root) : tier(*env, root, queue) {}
  std::unique_ptr<env::Env> env = env::NewPosixEnv();
  testing::DirectQueue queue;
  tier::FileTier tier;
  engine::Collector collector{*env, tier};
};

// Does something before its first record of the log.
class BusyTier : public tier::FileTier {
 public:
  using FileTier::FileTier;
  absl::Status PutIfAbsent(std::string_view name, std::string_view bytes) override {
    if (name.starts_with("log/") && before_record) std::exchange(before_record, nullptr)();
    return FileTier::PutIfAbsent(name, bytes);
  }
  std::function<void()> before_record;
};

// Deletes nothing under steps/ before it may.
class HeldTier : public tier::FileTier {
 public:
  using FileTier::FileTier;
  absl::Status Delete(std::string_view name) override {
    if (name.starts_with("steps/")) {
      std::unique_lock<std::mutex> lock(mutex_);
      asked_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return free_; });
    }
    return FileTier::Delete(name);
  }
  void WaitUntilAsked() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return asked_; });
  }
  void Free() {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool asked_ = false;
  bool free_ = false;
};

}  // namespace

TEST_CASE("A job keeps as many steps as it was told, and a restart goes on so", "[engine][retention]") {
  const ScratchDirectory scratch;
  const auto keep_two = [](Options& options) {
    options.keep = 2;
    options.gc_grace_s = 0;
  };
  {
    ThreadJob job(RootIn(scratch), 2, keep_two);
    for (int64_t step = 1; step <= 4; ++step) RequireOk(All(job.Save({step, 1})));
    WaitForFiles(RootIn(scratch), 2 * 4);
    RequireOk(All(job.End()));
    REQUIRE(Checked(RootIn(scratch)).all == std::vector<Moment>{{4, 1}, {3, 1}});
  }
  ThreadJob job(RootIn(scratch), 1, keep_two);
  RequireOk(All(job.Restore(std::nullopt)));
  RequireOk(All(job.Save({4, 2})));  // supersedes
  RequireOk(All(job.Save({5, 2})));
  WaitForFiles(RootIn(scratch), 2 * 3);
  RequireOk(All(job.End()));
  REQUIRE(Checked(RootIn(scratch)).all == std::vector<Moment>{{5, 2}, {4, 2}});
}

TEST_CASE("Files of dropped steps stay for the time of grace, and a failed save drops nothing", "[engine][retention]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2, [](Options& options) { options.keep = 1; });
  RequireOk(All(job.Save({1, 1})));
  const int64_t rule = job.faults(1).AddRule({env::FaultCall::kWrite, "steps/", ENOSPC, 1, env::kFaultsForEver});
  REQUIRE(absl::IsResourceExhausted(All(job.Save({2, 1}))));
  REQUIRE(Checked(RootIn(scratch)).all == std::vector<Moment>{{1, 1}});
  job.faults(1).RemoveRule(rule);
  RequireOk(All(job.Save({3, 1})));
  WaitForFiles(RootIn(scratch), 8);  // of the failed one nothing is left, and the dropped one's stay for now
  RequireOk(All(job.End()));
  REQUIRE(Checked(RootIn(scratch)).all == std::vector<Moment>{{3, 1}});
}

TEST_CASE("Saves go on while files are deleted (FC-16)", "[engine][retention]") {
  const ScratchDirectory scratch;
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  Options options = testing::JobOptions(RootIn(scratch), 0, 1);
  options.keep = 1;
  options.gc_grace_s = 0;
  coord::InProcessHub hub;
  coord::InProcessCoordinator coordinator(*env, hub);
  device::HostDevice device(*env, {.threads = 1, .chaos_seed = 1});
  io::ThreadQueue queue(*env, 1, 1);
  HeldTier tier(*env, options.root, queue);
  testing::RankState state(0, 1);
  {
    const std::unique_ptr<Engine> engine = engine::NewEngine(options, {*env, tier, coordinator, device}).value();
    const auto save = [&](int64_t step) {
      const auto handle = testing::BeginSave(*engine, state, {step, 1});
      RequireOk(handle.status());
      RequireOk(testing::Await(**handle));
    };
    save(100);
    save(200);
    tier.WaitUntilAsked();  // the deletion of step 100 has begun, and does not come to an end
    save(300);
    save(400);
    REQUIRE(FilesUnderSteps(options.root) == 4 * 3);
    tier.Free();
    WaitForFiles(options.root, 3);
    RequireOk(engine->Close(-1));
  }
  REQUIRE(Checked(options.root).all == std::vector<Moment>{{400, 1}});
}

TEST_CASE("A restore of any mode holds up the deletion of what it reads until it has ended", "[engine][retention]") {
  const ScratchDirectory scratch;
  {
    ThreadJob job(RootIn(scratch), 2);
    RequireOk(All(job.Save({100, 1})));
    RequireOk(All(job.Save({200, 1})));
    RequireOk(All(job.End()));
  }
  Tool tool(RootIn(scratch));
  const Mode mode = GENERATE(Mode::kRead, Mode::kTrain);
  ThreadJob job(RootIn(scratch), 2, [&](Options& options) { options.mode = mode; });
  std::vector<std::unique_ptr<RestoreSession>> sessions(2);
  RequireOk(All(job.Each([&](int32_t rank) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(sessions[static_cast<size_t>(rank)], job.engine(rank).BeginRestore(200));
    return absl::OkStatus();
  })));
  REQUIRE(tool.tier.ListNames("readers")->size() == 1);  // the leader's is for all
  REQUIRE(tool.collector.Collect({.step = 100, .reader_grace_ns = 0})->sweep.waiting[0].readers.size() == 1);
  REQUIRE(FilesUnderSteps(RootIn(scratch)) == 8);
  RequireOk(All(job.Each([&](int32_t rank) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(sessions[static_cast<size_t>(rank)]->Fill(job.state(rank).views()).status());
    return sessions[static_cast<size_t>(rank)]->End();
  })));
  REQUIRE(tool.tier.ListNames("readers")->empty());
  const engine::Collected collected = tool.collector.Collect({.reader_grace_ns = 0}).value();
  REQUIRE(collected.sweep.waiting.empty());
  REQUIRE(FilesUnderSteps(RootIn(scratch)) == 4);
  REQUIRE(collected.usage.disk_bytes == collected.usage.needed_bytes);
}

TEST_CASE("A restore that cannot register goes on, and a step that is dropped under a reader is told apart from damage",
          "[engine][retention]") {
  const ScratchDirectory scratch;
  {
    ThreadJob job(RootIn(scratch), 1);
    RequireOk(All(job.Save({100, 1})));
    RequireOk(All(job.Save({200, 1})));
    RequireOk(All(job.End()));
  }
  ThreadJob job(RootIn(scratch), 1, [](Options& options) { options.mode = Mode::kRead; });
  job.faults(0).AddRule({env::FaultCall::kTouch, "readers/", GENERATE(EACCES, EROFS, ENOSPC), 1, env::kFaultsForEver});
  RequireOk(All(job.Restore(std::nullopt)));
  Tool tool(RootIn(scratch));
  const std::unique_ptr<engine::Store> store = engine::Store::Open(*tool.env, tool.tier).value();
  const format::StepEntry entry = store->Steps(false).value().front().entry;
  const auto begun = engine::StepReader::Open(*tool.env, tool.tier, store->header(), entry, 30);
  RequireOk(begun.status());
  REQUIRE(tool.collector.Collect({.step = 200, .reader_grace_ns = 0})->sweep.removed.size() == 3);
  for (const absl::Status& status : {engine::StepReader::Open(*tool.env, tool.tier, store->header(), entry, 30).status(),
                                     (*begun)->ReadPacks().status(), (*begun)->IndexOf(0).status()}) {
    INFO(status);
    REQUIRE(absl::IsNotFound(status));
    REQUIRE(std::string(status.message()).find("step 200 was dropped while reading: 'steps/000000000200") == 0);
  }
  format::StepEntry later = entry;
  later.commit += 100;  // of a record that this host does not see yet: nothing is known then
  REQUIRE(absl::IsDataLoss(engine::StepReader::Open(*tool.env, tool.tier, store->header(), later, 0).status()));
  const absl::Status unknown = store->OpenStep(200).status();
  REQUIRE(absl::IsNotFound(unknown));
  REQUIRE(Checked(RootIn(scratch)).all == std::vector<Moment>{{100, 1}});
}

TEST_CASE("The step that a live trainer builds on is not dropped by a tool, and is once the trainer has gone", "[engine][retention]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 1);
  RequireOk(All(job.Save({100, 1})));
  RequireOk(All(job.Save({200, 1})));
  Tool tool(RootIn(scratch));
  const absl::Status refused = tool.collector.Collect({.step = 200}).status();
  INFO(refused);
  REQUIRE(absl::IsFailedPrecondition(refused));
  REQUIRE(absl::IsNotFound(tool.collector.Collect({.step = 300}).status()));
  REQUIRE(tool.collector.Collect({.step = 100})->dropped.size() == 1);
  RequireOk(tool.collector.Pin(200, true));
  RequireOk(All(job.Save({300, 1})));
  REQUIRE(tool.collector.Collect({.policy = {.keep = 1}})->dropped.empty());
  RequireOk(All(job.End()));
  REQUIRE(absl::IsFailedPrecondition(tool.collector.Collect({.step = 200}).status()));
  RequireOk(tool.collector.Pin(200, false));
  REQUIRE(tool.collector.Collect({.step = 300})->dropped.size() == 1);
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{200, 1}});
}

TEST_CASE("A step that a trainer rolls back to while a tool is about to drop it is not dropped", "[engine][retention]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 1);
  RequireOk(All(job.Save({100, 1})));
  RequireOk(All(job.Save({200, 1})));
  Tool tool(RootIn(scratch));
  BusyTier tier(*tool.env, RootIn(scratch), tool.queue);
  tier.before_record = [&job] { RequireOk(All(job.Restore(100))); };
  engine::Collector collector(*tool.env, tier);
  const absl::Status refused = collector.Collect({.step = 100}).status();
  INFO(refused);
  REQUIRE(absl::IsFailedPrecondition(refused));
  RequireOk(All(job.Save({300, 1})));
  RequireOk(All(job.End()));
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{300, 1}, {100, 1}});
}

TEST_CASE("A trainer whose parent was dropped all the same fails one save and follows what is left", "[engine][retention]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 2);
  RequireOk(All(job.Save({100, 1})));
  RequireOk(All(job.Save({200, 1})));
  Tool tool(RootIn(scratch));
  tier::Log log(*tool.env, tool.tier);
  RequireOk(log.Drop({log.Newest()->head}, "by hand"));
  REQUIRE(absl::IsFailedPrecondition(All(job.Save({300, 1}))));
  RequireOk(All(job.Save({400, 1})));
  RequireOk(All(job.End()));
  REQUIRE(Checked(RootIn(scratch)).line == std::vector<Moment>{{400, 1}, {100, 1}});
}

TEST_CASE("Nothing is deleted through links, nor what Lamina did not make (FC-21)", "[engine][retention]") {
  namespace fs = std::filesystem;
  const ScratchDirectory scratch;
  const std::string root = RootIn(scratch);
  const std::string archive = scratch.path() + "/archive";
  const auto keep_one = [](Options& options) {
    options.keep = 1;
    options.gc_grace_s = 0;
  };
  ThreadJob job(root, 1);
  for (int64_t step = 1; step <= 3; ++step) RequireOk(All(job.Save({step, 1})));
  RequireOk(All(job.End()));
  fs::create_directory(archive);
  fs::rename(root + "/steps/000000000001", archive + "/one");
  fs::create_directory_symlink(archive + "/one", root + "/steps/000000000001");
  fs::rename(root + "/steps/000000000002/1-1", archive + "/two");  // an attempt's directory alone
  fs::create_directory_symlink(archive + "/two", root + "/steps/000000000002/1-1");
  fs::create_directory(root + "/steps/notes");
  std::ofstream(root + "/steps/notes/packs") << "mine";
  std::ofstream(root + "/steps/step_9") << "mine";
  ThreadJob next(root, 1, keep_one);
  RequireOk(All(next.Restore(std::nullopt)));
  for (int64_t step = 4; step <= 6; ++step) RequireOk(All(next.Save({step, 2})));
  std::ofstream(root + "/steps/000000000006/best.txt") << "mine";
  RequireOk(All(next.Save({7, 2})));
  RequireOk(All(next.End()));
  REQUIRE(Tool(root).collector.Collect({.reader_grace_ns = 0}).ok());  // what the job's end has left
  REQUIRE(Checked(root).all == std::vector<Moment>{{7, 2}});
  for (const char* const name : {"/one/1-0/catalog", "/one/1-0/packs", "/one/1-0/00000.pack", "/two/catalog", "/two/00000.pack"}) {
    REQUIRE(fs::exists(archive + name));
  }
  for (const char* const name :
       {"/steps/000000000001", "/steps/000000000002/1-1", "/steps/notes/packs", "/steps/step_9", "/steps/000000000006/best.txt"}) {
    REQUIRE(fs::exists(root + name));
  }
}

}  // namespace lamina
