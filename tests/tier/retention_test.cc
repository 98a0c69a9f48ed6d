// What is dropped, how long its files stay, and what a sweep takes: with simulated time, since most of it is waiting.
#include <catch2/catch.hpp>
#include <memory>

#include "env/sim_env.h"
#include "testing/direct_queue.h"
#include "testing/tier_suite.h"
#include "testing/tiny_save.h"
#include "tier/file_tier.h"
#include "tier/log.h"
#include "tier/memory_tier.h"
#include "tier/reader_lease.h"

namespace lamina::tier {
namespace {

using format::AttemptId;
using format::LogRecord;
using format::StepState;
using testing::LineSteps;
using testing::SaveTiny;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kDayNs = 86'400 * kSecondNs;
constexpr char kRoot[] = "/ckpt/run";
const SweepOptions kAtOnce{.reader_grace_ns = 0};

class StubbornTier : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  std::string kept;       // is not deleted
  bool is_stale = false;  // and nothing is touched
  absl::Status Touch(std::string_view name) override { return is_stale ? absl::UnavailableError("ESTALE") : MemoryTier::Touch(name); }
  absl::Status Delete(std::string_view name) override {
    return name == kept ? absl::PermissionDeniedError("not this one") : MemoryTier::Delete(name);
  }
};

struct Place {
  env::SimWorld world{{}};
  env::SimProcess& env = world.NewProcess("process");
  StubbornTier tier{env};
  Log log{env, tier};
  format::StoreHeader store = log.CreateOrReadStore().value();
  uint64_t incarnation = log.Claim({.run_id = {}, .takeover = true}).value().number;
  uint64_t head = 0;
  uint32_t attempts = 0;

  uint64_t Save(int64_t step) { return head = SaveTiny(tier, log, store, {step, incarnation, attempts++}, head).value(); }
  void Save(std::initializer_list<int64_t> steps) {
    for (const int64_t step : steps) Save(step);
  }
  void Rewind(uint64_t commit) {
    REQUIRE(log.Rewind(incarnation, commit, "restored").ok());
    head = commit;
  }
  std::vector<int64_t> Line() { return LineSteps(log.Newest().value()); }
  std::vector<int64_t> Retain(const RetentionPolicy& policy) {
    std::vector<int64_t> steps;
    const std::vector<format::StepEntry> dropped = log.Retain(policy, "test", incarnation).value();
    for (const format::StepEntry& step : dropped) steps.push_back(step.attempt.step);
    return steps;
  }
  // By a process that has just begun.
  SweepReport Sweep(const SweepOptions& options = {}) { return Log(env, tier).Sweep(incarnation, options).value(); }
};

// The same on simulated files.
struct FilePlace {
  explicit FilePlace(env::SimWorld& world) : env(world.NewProcess("process")) {}

  env::SimProcess& env;
  testing::DirectQueue queue;
  FileTier tier{env, kRoot, queue};
  Log log{env, tier};
  format::StoreHeader store = log.CreateOrReadStore().value();
  uint64_t incarnation = log.Claim({.run_id = {}, .takeover = true}).value().number;

  void Save(std::initializer_list<int64_t> steps) {
    uint64_t head = 0;
    uint32_t attempts = 0;
    for (const int64_t step : steps) head = SaveTiny(tier, log, store, {step, incarnation, attempts++}, head).value();
  }
};

using Steps = std::vector<int64_t>;

}  // namespace

TEST_CASE("Retention keeps the newest steps of the line, and pinned ones besides", "[tier][retention]") {
  Place place;
  place.Save({100, 200, 300, 400, 500});
  REQUIRE(place.Retain({.keep = 0}).empty());
  REQUIRE(place.Retain({.keep = 5}).empty());
  REQUIRE(place.log.Pin(LineOf(place.log.Newest().value())[3].commit, true).ok());
  REQUIRE(place.Retain({.keep = 2}) == Steps{100, 300});
  REQUIRE(place.Line() == Steps{500, 400, 200});
  const uint64_t number = place.log.Newest()->number;
  REQUIRE(place.Retain({.keep = 2}).empty());
  REQUIRE(place.log.Newest()->number == number);
  REQUIRE(place.Retain({.keep = 1}) == Steps{400});
  REQUIRE(testing::CheckSteps(place.tier, place.log.Newest().value()).ok());
}

TEST_CASE("A pinned step is dropped by nobody until it is let go", "[tier][retention]") {
  Place place;
  const uint64_t first = place.Save(100);
  place.Save(200);
  REQUIRE(place.log.Pin(first, true).ok());
  REQUIRE(place.log.Pin(first, true).ok());
  REQUIRE(absl::IsFailedPrecondition(place.log.Drop({first}, "gc")));
  place.Rewind(first);
  REQUIRE(place.log.Newest()->steps[0].state == StepState::kPinned);
  REQUIRE(place.log.Newest()->steps[1].state == StepState::kAbandoned);
  REQUIRE(place.log.Pin(first, false).ok());
  REQUIRE(place.log.Newest()->steps[0].state == StepState::kLive);
  REQUIRE(place.log.Pin(place.log.Newest()->steps[1].commit, true).ok());
  REQUIRE(place.log.Pin(place.log.Newest()->steps[1].commit, false).ok());
  REQUIRE(place.log.Newest()->steps[1].state == StepState::kAbandoned);
  REQUIRE(absl::IsNotFound(place.log.Pin(77, true)));
  REQUIRE(place.log.Drop({first}, "gc").ok());
  REQUIRE(absl::IsNotFound(place.log.Pin(first, true)));
}

TEST_CASE("A fenced trainer neither drops nor deletes", "[tier][retention]") {
  Place place;
  place.Save({100, 200});
  REQUIRE(place.Retain({.keep = 1}) == Steps{100});
  Log newer(place.env, place.tier);
  REQUIRE(newer.Claim({.run_id = {}, .takeover = true}).ok());
  REQUIRE(absl::IsAborted(place.log.Retain({.keep = 1}, "test", place.incarnation).status()));
  REQUIRE(absl::IsAborted(place.log.Sweep(place.incarnation, kAtOnce).status()));
  REQUIRE(place.log.Sweep(std::nullopt, kAtOnce)->removed.size() == 4);  // a tool may: three files of a step, and the older lease
}

TEST_CASE("The time of grace counts from the drop, whoever sweeps and however often it is started", "[tier][retention]") {
  Place place;
  place.Save({100, 200});
  REQUIRE(place.Retain({.keep = 1}) == Steps{100});
  place.env.SleepNs(200 * kSecondNs);
  SweepReport report = place.Sweep({.count_bytes = true});
  REQUIRE(report.removed.empty());
  REQUIRE(report.waiting.size() == 1);
  REQUIRE(report.waiting[0].attempt.step == 100);
  REQUIRE(report.waiting[0].readers.empty());
  REQUIRE(report.waiting[0].bytes > 0);
  REQUIRE(report.waiting[0].grace_left_ns <= 400 * kSecondNs);
  REQUIRE(report.waiting[0].grace_left_ns > 390 * kSecondNs);
  place.env.SleepNs(401 * kSecondNs);
  report = place.Sweep({.count_bytes = true});
  REQUIRE(report.removed.size() == 3);
  REQUIRE(report.waiting.empty());
  REQUIRE(report.removed[0].bytes > 0);
}

TEST_CASE("Abandoned steps go after their time off the line, not after their age", "[tier][retention]") {
  Place place;
  const uint64_t first = place.Save(100);
  const uint64_t second = place.Save(200);
  const RetentionPolicy policy{.keep = 0, .abandoned_ns = 7 * kDayNs};
  place.env.SleepNs(30 * kDayNs);
  place.Rewind(first);
  place.Save(150);
  REQUIRE(place.Retain(policy).empty());
  place.env.SleepNs(6 * kDayNs);
  REQUIRE(place.Retain(policy).empty());
  SECTION("a stay on the line begins the time anew") {
    place.Rewind(second);
    place.env.SleepNs(2 * kDayNs);
    REQUIRE(place.Retain(policy).empty());
    place.Rewind(first);
    place.env.SleepNs(6 * kDayNs);
    REQUIRE(place.Retain(policy) == Steps{150});
    place.env.SleepNs(2 * kDayNs);
    REQUIRE(place.Retain(policy) == Steps{200});
  }
  SECTION("records that have gone are made up for by the opens") {
    for (uint32_t i = 0; i < 1100; ++i) REQUIRE(place.log.Abort({300, place.incarnation, 1000 + i}, "x").ok());
    place.incarnation = place.log.Claim({.run_id = {}, .takeover = true}).value().number;
    place.Sweep();
    place.env.SleepNs(2 * kDayNs);
    REQUIRE(place.Retain(policy).empty());  // what was before the oldest record kept is not known, so it counts from there
    place.env.SleepNs(6 * kDayNs);
    REQUIRE(place.Retain(policy) == Steps{200});
  }
}

TEST_CASE("A reader that is at work holds the files up, one that is gone or came later does not", "[tier][retention]") {
  Place place;
  place.Save({100, 200});
  auto reader = std::make_unique<ReaderLease>(place.env, place.tier);
  REQUIRE(reader->status().ok());
  REQUIRE(place.tier.Touch(format::ReaderLeasePath("0123456789abcdef")).ok());  // of one that was killed
  REQUIRE(place.Retain({.keep = 1}) == Steps{100});
  SweepReport report = place.log.Sweep(place.incarnation, kAtOnce).value();
  REQUIRE(report.removed.empty());
  REQUIRE(report.waiting[0].readers.size() == 2);
  place.env.SleepNs(1000 * kSecondNs);
  report = place.log.Sweep(place.incarnation, kAtOnce).value();
  REQUIRE(report.removed.empty());
  REQUIRE(report.waiting[0].readers.size() == 1);
  const ReaderLease later(place.env, place.tier);
  reader.reset();
  REQUIRE(place.log.Sweep(place.incarnation, kAtOnce)->removed.size() == 3);
  REQUIRE(testing::NamesIn(place.tier, "readers").size() == 2);  // the dead one's and the later one's
}

TEST_CASE("A reader whose file cannot be touched tells so once until it can again", "[tier][retention]") {
  Place place;
  std::vector<absl::Status> told;
  const ReaderLease lease(place.env, place.tier, [&](const absl::Status& why) { told.push_back(why); });
  REQUIRE(lease.status().ok());
  const auto pass = [&](bool stale, int64_t seconds) {
    place.tier.is_stale = stale;
    place.env.SleepNs(seconds * kSecondNs);
  };
  pass(true, 100);
  REQUIRE(told.size() == 1);
  REQUIRE(absl::IsUnavailable(told[0]));
  pass(false, 100);
  REQUIRE(told.size() == 1);
  pass(true, 1000);
  REQUIRE(told.size() == 2);
  pass(false, 0);
}

TEST_CASE("A reader whose file a network file system does not show yet holds the files up once the time of grace is over",
          "[tier][retention]") {
  env::SimWorld world({.stale_ns = 3 * kSecondNs});
  FilePlace place(world);
  place.Save({100, 200});
  place.env.SleepNs(5 * kSecondNs);
  env::SimProcess& other = world.NewProcess("other");
  testing::DirectQueue queue;
  FileTier tier(other, kRoot, queue);
  auto reader = std::make_unique<ReaderLease>(other, tier);
  REQUIRE(reader->status().ok());
  REQUIRE(place.log.Retain({.keep = 1}, "test", place.incarnation)->size() == 1);
  const SweepOptions options{.reader_grace_ns = 10 * kSecondNs};
  SweepReport report = place.log.Sweep(place.incarnation, options).value();
  REQUIRE(report.waiting.size() == 1);
  REQUIRE(report.waiting[0].readers.empty());
  place.env.SleepNs(11 * kSecondNs);
  report = place.log.Sweep(place.incarnation, options).value();
  REQUIRE(report.removed.empty());
  REQUIRE(report.waiting[0].readers.size() == 1);
  const ReaderLease later(other, tier);
  reader.reset();
  place.env.SleepNs(5 * kSecondNs);
  REQUIRE(place.log.Sweep(place.incarnation, options)->removed.size() == 3);
}

TEST_CASE("What a process that died left of a probe goes after a day", "[tier][retention]") {
  env::SimWorld world({});
  FilePlace place(world);
  const std::string leftover = std::string(kRoot) + "/probe/.tmp-0123456789abcdef";
  REQUIRE(place.env.files().CreateNew(leftover).ok());
  REQUIRE(Log(place.env, place.tier).Sweep(place.incarnation).ok());
  REQUIRE(world.Files().contains(leftover));
  place.env.SleepNs(kDayNs);
  REQUIRE(Log(place.env, place.tier).Sweep(place.incarnation).ok());
  REQUIRE(!world.Files().contains(leftover));
}

TEST_CASE("A file under readers/ that Lamina did not name keeps no dropped step", "[tier][retention]") {
  Place place;
  place.Save({100, 200});
  REQUIRE(place.Retain({.keep = 1}) == Steps{100});
  REQUIRE(place.tier.Touch("readers/notes").ok());
  const SweepReport report = place.Sweep(kAtOnce);
  REQUIRE(report.waiting.empty());
  REQUIRE(report.removed.size() == 3);
}

TEST_CASE("Files of dead readers and probes go after a day, names that Lamina did not make stay", "[tier][retention]") {
  Place place;
  for (const std::string_view name : {"readers/0123456789abcdef", "probe/0123456789abcdef", "readers/notes", "probe/0123456789ABCDEF"}) {
    REQUIRE(place.tier.Touch(name).ok());
  }
  place.env.SleepNs(kDayNs - 60 * kSecondNs);
  REQUIRE(place.Sweep().removed.empty());
  const ReaderLease alive(place.env, place.tier);
  place.env.SleepNs(120 * kSecondNs);
  REQUIRE(place.Sweep().removed.size() == 2);
  REQUIRE(testing::NamesIn(place.tier, "readers").size() == 2);
  REQUIRE(testing::NamesIn(place.tier, "probe") == std::vector<std::string>{"0123456789ABCDEF"});
}

TEST_CASE("A dry run says what a sweep would take, and writes nothing", "[tier][retention]") {
  Place place;
  place.Save({100, 200});
  REQUIRE(place.log.Abort({300, place.incarnation, 77}, "x").ok());
  REQUIRE(testing::WriteAttempt(place.tier, place.store, {300, place.incarnation, 77}, place.head).ok());
  REQUIRE(place.Retain({.keep = 1}) == Steps{100});
  const Usage before = place.log.MeasureUsage().value();
  REQUIRE(before.disk_bytes > 2 * before.needed_bytes);
  SweepOptions options = kAtOnce;
  options.dry_run = options.count_bytes = true;
  const SweepReport planned = place.Sweep(options);
  REQUIRE(planned.removed.size() == 6);
  const Usage after = place.log.MeasureUsage().value();
  REQUIRE(after.disk_bytes == before.disk_bytes);
  REQUIRE(testing::NamesIn(place.tier, "probe").empty());
  options.dry_run = false;
  const SweepReport done = place.Sweep(options);
  REQUIRE(done.removed.size() == 6);
  int64_t removed_bytes = 0;
  for (size_t i = 0; i < done.removed.size(); ++i) {
    REQUIRE(done.removed[i].name == planned.removed[i].name);
    REQUIRE(done.removed[i].bytes == planned.removed[i].bytes);
    removed_bytes += done.removed[i].bytes;
  }
  const Usage swept = place.log.MeasureUsage().value();
  REQUIRE(swept.disk_bytes == before.disk_bytes - removed_bytes);
  REQUIRE(swept.disk_bytes == swept.needed_bytes);
}

TEST_CASE("What cannot be removed is told, and keeps nothing else from going", "[tier][retention]") {
  Place place;
  place.Save({100, 200, 300});
  REQUIRE(place.Retain({.keep = 1}) == Steps{100, 200});
  place.tier.kept = "steps/000000000100/1-0/00000.pack";
  REQUIRE(absl::IsPermissionDenied(place.log.Sweep(place.incarnation, kAtOnce).status()));
  REQUIRE(testing::NamesIn(place.tier, "steps") == std::vector<std::string>{"000000000100/", "000000000300/"});
  place.tier.kept.clear();
  REQUIRE(place.log.Sweep(place.incarnation, kAtOnce).ok());
  REQUIRE(testing::NamesIn(place.tier, "steps") == std::vector<std::string>{"000000000300/"});
}

TEST_CASE("A sweep that is told to end leaves the rest to a later one", "[tier][retention]") {
  Place place;
  place.Save({100, 200});
  REQUIRE(place.Retain({.keep = 1}) == Steps{100});
  SweepOptions options = kAtOnce;
  int64_t left = 2;
  options.may_go_on = [&] { return left-- > 0; };
  REQUIRE(place.log.Sweep(place.incarnation, options)->removed.size() == 2);
  REQUIRE(place.log.Sweep(place.incarnation, kAtOnce)->removed.size() == 1);
}

}  // namespace lamina::tier
