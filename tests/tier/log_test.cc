#include "tier/log.h"

#include <catch2/catch.hpp>
#include <functional>

#include "env/posix_env.h"
#include "testing/tier_suite.h"
#include "testing/tiny_save.h"
#include "tier/memory_tier.h"

namespace lamina::tier {
namespace {

using format::AttemptId;
using format::LogRecord;
using format::StepState;
using testing::CheckSteps;
using testing::LineSteps;
using testing::SaveTiny;
using testing::WriteAttempt;

const SweepOptions kAtOnce{.reader_lease_ns = 120'000'000'000, .reader_grace_ns = 0};

// A memory tier whose puts can be made to go wrong, and whose objects can be damaged.
class UnreliableTier : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  // Called before each put; a status that is not OK is the answer instead.
  std::function<absl::Status(const std::string& name, std::string_view bytes)> before_put;

  absl::Status PutIfAbsent(std::string_view name, std::string_view bytes) override {
    if (before_put) {
      const auto hook = std::exchange(before_put, nullptr);
      LAMINA_RETURN_IF_ERROR(hook(std::string(name), bytes));
    }
    return MemoryTier::PutIfAbsent(name, bytes);
  }
  std::string hidden;  // for so many opens, as a network file system remembers absence
  int hidden_opens = 0;
  absl::StatusOr<std::unique_ptr<ObjectReader>> OpenObject(std::string_view name) override {
    if (name == hidden && hidden_opens > 0) {
      --hidden_opens;
      return absl::NotFoundError("not yet");
    }
    return MemoryTier::OpenObject(name);
  }
  void Replace(const std::string& name, std::string_view bytes) {
    REQUIRE(Delete(name).ok());
    REQUIRE(MemoryTier::PutIfAbsent(name, bytes).ok());
  }
};

struct Place {
  std::unique_ptr<env::Env> env = env::NewPosixEnv();
  UnreliableTier tier{*env};
  Log log{*env, tier};
  format::StoreHeader store = log.CreateOrReadStore().value();

  AttemptId Attempt(int64_t step, uint64_t incarnation, uint32_t attempt = 0) { return {step, incarnation, attempt}; }
  uint64_t Claim() { return log.Claim({.run_id = {}, .takeover = true}).value().number; }
  uint64_t Save(const AttemptId& attempt, uint64_t parent, const std::vector<AttemptId>& bases = {}) {
    return SaveTiny(tier, log, store, attempt, parent, bases).value();
  }
  LogRecord Newest() { return log.Newest().value(); }
  std::vector<std::string> Attempts() {
    std::vector<std::string> found;
    for (const std::string& step : testing::NamesIn(tier, "steps")) {
      const std::string prefix = "steps/" + step.substr(0, step.size() - 1);
      for (const std::string& name : testing::NamesIn(tier, prefix)) found.push_back(prefix + "/" + name.substr(0, name.size() - 1));
    }
    return found;
  }
  void Damage(uint64_t number) {
    std::string bytes = testing::TextOf(tier, format::LogPath(number));
    bytes[200] = static_cast<char>(bytes[200] ^ 1);
    bytes[bytes.size() / 2 + 200] = static_cast<char>(bytes[bytes.size() / 2 + 200] ^ 1);
    tier.Replace(format::LogPath(number), bytes);
  }
};

StepState StateOf(const LogRecord& record, uint64_t commit) {
  for (const format::StepEntry& step : record.steps) {
    if (step.commit == commit) return step.state;
  }
  FAIL("commit " << commit << " is not in the table");
  return StepState::kDropped;
}

}  // namespace

TEST_CASE("A store is created once, whoever tries, and read ever after", "[tier][log]") {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  UnreliableTier tier(*env);
  Log one(*env, tier);
  Log two(*env, tier);
  REQUIRE(absl::IsNotFound(one.ReadStore().status()));
  REQUIRE(absl::IsNotFound(one.Newest().status()));
  format::StoreHeader other;
  tier.before_put = [&](const std::string&, std::string_view) {
    other = two.CreateOrReadStore().value();
    return absl::OkStatus();
  };
  REQUIRE(one.CreateOrReadStore().value() == other);
  REQUIRE(one.ReadStore().value() == other);
  REQUIRE(one.Newest()->number == 0);
  REQUIRE(one.Newest()->steps.empty());
}

TEST_CASE("A record that is listed and does not show is asked for again", "[tier][log]") {
  Place place;
  const uint64_t number = place.Claim();
  place.tier.hidden = format::LogPath(number);
  place.tier.hidden_opens = 3;
  Log other(*place.env, place.tier);
  const absl::StatusOr<LogRecord> newest = other.Newest();
  INFO(newest.status());
  REQUIRE(newest.ok());
  REQUIRE(newest->number == number);
}

TEST_CASE("A log whose file LAMINA is gone is not made into another store", "[tier][log]") {
  Place place;
  place.Claim();
  REQUIRE(place.tier.Delete("LAMINA").ok());
  Log log(*place.env, place.tier);
  REQUIRE(absl::IsDataLoss(log.CreateOrReadStore().status()));
}

TEST_CASE("Commits follow one another on a line", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  REQUIRE(incarnation == 1);
  const uint64_t first = place.Save(place.Attempt(100, incarnation), 0);
  const uint64_t second = place.Save(place.Attempt(200, incarnation), first);
  const LogRecord newest = place.Newest();
  REQUIRE(newest.head == second);
  REQUIRE(newest.kind == format::RecordKind::kCommit);
  REQUIRE(newest.subject == place.Attempt(200, incarnation));
  REQUIRE(LineSteps(newest) == std::vector<int64_t>{200, 100});
  REQUIRE(newest.trainer.pid == place.env->Self().pid);
  REQUIRE(CheckSteps(place.tier, newest).ok());
  REQUIRE(place.log.VerdictOf(place.Attempt(200, incarnation)).value() == Verdict::kCommitted);
  REQUIRE(place.log.VerdictOf(place.Attempt(300, incarnation)).value() == Verdict::kUnsettled);
  // Asked once more, a commit says where it is and an abort that it came too late.
  CommitRequest again;
  again.attempt = place.Attempt(100, incarnation);
  REQUIRE(place.log.Commit(again).value() == first);
  REQUIRE(place.log.Abort(place.Attempt(100, incarnation), "late").value() == Verdict::kCommitted);
  REQUIRE(place.Newest().number == second);
}

TEST_CASE("An aborted attempt never commits", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const AttemptId attempt = place.Attempt(100, incarnation);
  const CommitRequest request = WriteAttempt(place.tier, place.store, attempt, 0).value();
  REQUIRE(place.log.Abort(attempt, "rank 3: disk full").value() == Verdict::kAborted);
  REQUIRE(place.Newest().reason == "rank 3: disk full");
  REQUIRE(place.log.Abort(attempt, "again").value() == Verdict::kAborted);
  REQUIRE(place.Newest().number == 2);
  REQUIRE(absl::IsFailedPrecondition(place.log.Commit(request).status()));
  REQUIRE(place.log.VerdictOf(attempt).value() == Verdict::kAborted);
  REQUIRE(place.log.Sweep(incarnation)->removed.size() == 3);
  REQUIRE(place.Attempts().empty());
  REQUIRE(place.log.VerdictOf(attempt).value() == Verdict::kAborted);
  place.Save(place.Attempt(100, incarnation, 1), 0);
  REQUIRE(absl::IsFailedPrecondition(place.log.Commit(request).status()));
}

TEST_CASE("A newer incarnation fences the older one", "[tier][log]") {
  Place place;
  const uint64_t old_one = place.Claim();
  const uint64_t kept = place.Save(place.Attempt(100, old_one), 0);
  const CommitRequest late = WriteAttempt(place.tier, place.store, place.Attempt(200, old_one), kept).value();
  Log other(*place.env, place.tier);
  const LogRecord open = other.Claim({.run_id = {}, .takeover = true}).value();
  REQUIRE(open.head == kept);
  REQUIRE(absl::IsAborted(place.log.Commit(late).status()));
  REQUIRE(place.log.VerdictOf(late.attempt).value() == Verdict::kAborted);
  REQUIRE(absl::IsAborted(place.log.Abort(late.attempt, "x").status()));
  REQUIRE(absl::IsAborted(place.log.CheckIsNewest(old_one)));
  REQUIRE(place.log.CheckIsNewest(open.number).ok());
  REQUIRE(absl::IsAborted(place.log.Rewind(old_one, kept, "x")));
  REQUIRE(absl::IsAborted(place.log.Drop({kept}, "x", old_one)));
  REQUIRE(absl::IsAborted(place.log.Sweep(old_one).status()));
  REQUIRE(absl::IsAborted(place.log.CheckNotFenced(old_one)));
  REQUIRE(place.log.CheckNotFenced(open.number) == absl::OkStatus());
  REQUIRE(other.Newest()->number == open.number);
  // What it had committed stays its own.
  REQUIRE(place.log.VerdictOf(place.Attempt(100, old_one)).value() == Verdict::kCommitted);
  REQUIRE(place.log.Abort(place.Attempt(100, old_one), "x").value() == Verdict::kCommitted);
  REQUIRE(absl::IsDataLoss(place.log.Rewind(99, kept, "x")));
}

TEST_CASE("A commit that a claim has seen is committed, and the next one fenced", "[tier][log]") {
  Place place;
  const uint64_t old_one = place.Claim();
  const CommitRequest request = WriteAttempt(place.tier, place.store, place.Attempt(100, old_one), 0).value();
  Log other(*place.env, place.tier);
  SECTION("the claim came first") {
    place.tier.before_put = [&](const std::string&, std::string_view) { return other.Claim({.run_id = {}, .takeover = true}).status(); };
    REQUIRE(absl::IsAborted(place.log.Commit(request).status()));
    REQUIRE(place.Newest().head == 0);
  }
  SECTION("the commit came first, and its answer was lost") {
    place.tier.before_put = [&](const std::string& name, std::string_view bytes) {
      REQUIRE(place.tier.PutIfAbsent(name, bytes).ok());
      REQUIRE(other.Claim({.run_id = {}, .takeover = true})->head == 2);
      return absl::AlreadyExistsError("retried");
    };
    REQUIRE(place.log.Commit(request).value() == 2);
    REQUIRE(place.Newest().head == 2);
    REQUIRE(absl::IsAborted(place.log.Rewind(old_one, 2, "x")));
  }
}

TEST_CASE("A doubtful answer is settled by reading the record", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const CommitRequest request = WriteAttempt(place.tier, place.store, place.Attempt(100, incarnation), 0).value();
  Log other(*place.env, place.tier);
  SECTION("it was published") {
    place.tier.before_put = [&](const std::string& name, std::string_view bytes) {
      REQUIRE(place.tier.PutIfAbsent(name, bytes).ok());
      return absl::UnavailableError("EIO");
    };
  }
  SECTION("it was not, and is put again") {
    place.tier.before_put = [](const std::string&, std::string_view) { return absl::UnavailableError("EIO"); };
  }
  SECTION("another's record is there") {
    place.tier.before_put = [&](const std::string&, std::string_view) {
      REQUIRE(other.Abort(place.Attempt(50, incarnation), "x").ok());
      return absl::UnavailableError("EIO");
    };
  }
  const uint64_t commit = place.log.Commit(request).value();
  const LogRecord newest = place.Newest();
  REQUIRE(newest.head == commit);
  REQUIRE(newest.steps.size() == 1);
  REQUIRE(newest.number == commit);
}

TEST_CASE("A commit whose attempt another rank aborts meanwhile is not published", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const CommitRequest request = WriteAttempt(place.tier, place.store, place.Attempt(100, incarnation), 0).value();
  Log other(*place.env, place.tier);
  place.tier.before_put = [&](const std::string&, std::string_view) { return other.Abort(request.attempt, "no beat of rank 0").status(); };
  REQUIRE(absl::IsFailedPrecondition(place.log.Commit(request).status()));
  REQUIRE(place.Newest().steps.empty());
}

TEST_CASE("A commit whose parent is dropped meanwhile is not published", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const uint64_t parent = place.Save(place.Attempt(100, incarnation), 0);
  const CommitRequest request = WriteAttempt(place.tier, place.store, place.Attempt(200, incarnation), parent).value();
  Log tool(*place.env, place.tier);
  place.tier.before_put = [&](const std::string&, std::string_view) { return tool.Drop({parent}, "gc"); };
  REQUIRE(absl::IsFailedPrecondition(place.log.Commit(request).status()));
  REQUIRE(place.Newest().head == 0);
  REQUIRE(absl::IsNotFound(place.log.Rewind(incarnation, parent, "x")));
}

TEST_CASE("A step is above the one it follows", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const uint64_t parent = place.Save(place.Attempt(100, incarnation), 0);
  REQUIRE(absl::IsInvalidArgument(SaveTiny(place.tier, place.log, place.store, place.Attempt(100, incarnation, 1), parent).status()));
  REQUIRE(absl::IsInvalidArgument(SaveTiny(place.tier, place.log, place.store, place.Attempt(99, incarnation, 2), parent).status()));
  REQUIRE(place.Newest().head == parent);
}

TEST_CASE("A roll-back moves the head, and the old line is abandoned until one goes back to it", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const uint64_t first = place.Save(place.Attempt(100, incarnation), 0);
  const uint64_t second = place.Save(place.Attempt(200, incarnation), first);
  REQUIRE(place.log.Rewind(incarnation, first, "restored step 100").ok());
  const uint64_t rewind = place.Newest().number;
  REQUIRE(place.log.Rewind(incarnation, first, "restored step 100").ok());
  REQUIRE(place.Newest().number == rewind);
  REQUIRE(LineSteps(place.Newest()) == std::vector<int64_t>{100});
  REQUIRE(StateOf(place.Newest(), second) == StepState::kAbandoned);
  const uint64_t third = place.Save(place.Attempt(150, incarnation), first);
  REQUIRE(LineSteps(place.Newest()) == std::vector<int64_t>{150, 100});
  REQUIRE(place.log.Rewind(incarnation, second, "back").ok());
  REQUIRE(StateOf(place.Newest(), second) == StepState::kLive);
  REQUIRE(StateOf(place.Newest(), third) == StepState::kAbandoned);
  REQUIRE(place.log.Sweep(incarnation, kAtOnce)->removed.empty());
  REQUIRE(CheckSteps(place.tier, place.Newest()).ok());
}

TEST_CASE("The restored step saved again takes the old one's place", "[tier][log]") {
  Place place;
  const uint64_t old_one = place.Claim();
  const uint64_t first = place.Save(place.Attempt(100, old_one), 0);
  const uint64_t second = place.Save(place.Attempt(200, old_one), first);
  const uint64_t incarnation = place.Claim();
  CommitRequest request = WriteAttempt(place.tier, place.store, place.Attempt(200, incarnation), first).value();
  request.supersedes_parent_step = true;
  const uint64_t third = place.log.Commit(request).value();
  REQUIRE(LineSteps(place.Newest()) == std::vector<int64_t>{200, 100});
  REQUIRE(place.Newest().head == third);
  REQUIRE(LineOf(place.Newest())[0].parent == first);
  REQUIRE(StateOf(place.Newest(), second) == StepState::kDropped);
  REQUIRE(place.log.VerdictOf(place.Attempt(200, old_one)).value() == Verdict::kCommitted);
  REQUIRE(place.log.Sweep(incarnation, kAtOnce)->removed.size() == 4);  // three objects and the older lease
  REQUIRE(place.Attempts() == std::vector<std::string>{"steps/000000000100/1-0", "steps/000000000200/4-0"});
  request.attempt = place.Attempt(300, incarnation);
  REQUIRE(absl::IsFailedPrecondition(place.log.Commit(request).status()));
}

TEST_CASE("Dropped steps leave the line, and their packs go when no step needs them", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const AttemptId one = place.Attempt(100, incarnation);
  const AttemptId two = place.Attempt(200, incarnation);
  const uint64_t first = place.Save(one, 0);
  const uint64_t second = place.Save(two, first, {one});
  const uint64_t third = place.Save(place.Attempt(300, incarnation), second);
  REQUIRE(absl::IsNotFound(place.log.Drop({first, 77}, "x")));
  REQUIRE(place.Newest().number == third);
  REQUIRE(place.log.Drop({first}, "retention", incarnation).ok());
  REQUIRE(LineSteps(place.Newest()) == std::vector<int64_t>{300, 200});
  REQUIRE(place.log.Sweep(incarnation, kAtOnce)->removed.size() == 2);  // its catalog and its list; the pack is step 200's too
  REQUIRE(CheckSteps(place.tier, place.Newest()).ok());
  REQUIRE(place.log.Drop({third}, "gc ROOT@300").ok());
  REQUIRE(place.Newest().head == second);
  REQUIRE(place.log.Drop({second}, "gc ROOT@200").ok());
  REQUIRE(place.Newest().head == 0);
  REQUIRE(place.log.Sweep(incarnation, kAtOnce)->removed.size() == 7);
  REQUIRE(place.Attempts().empty());
}

TEST_CASE("Swept steps leave the table when nobody can ask about them, and their children keep the line", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const uint64_t first = place.Save(place.Attempt(100, incarnation), 0);
  const uint64_t second = place.Save(place.Attempt(200, incarnation), first);
  const uint64_t third = place.Save(place.Attempt(300, incarnation), second);
  REQUIRE(place.log.Drop({second}, "retention", incarnation).ok());
  REQUIRE(place.log.Sweep(incarnation, kAtOnce)->removed.size() == 3);
  for (int i = 0; i < 120; ++i) REQUIRE(place.log.Abort(place.Attempt(400, incarnation, static_cast<uint32_t>(i)), "x").ok());
  REQUIRE(place.Newest().steps.size() == 2);
  REQUIRE(place.Newest().head == third);
  REQUIRE(LineOf(place.Newest())[0].parent == first);
  REQUIRE(place.Newest().unswept.size() == 120);
  REQUIRE(place.log.Sweep(incarnation).ok());
  const uint64_t next = place.Claim();
  REQUIRE(place.Newest().unswept.empty());
  REQUIRE(place.log.VerdictOf(place.Attempt(400, incarnation, 7)).value() == Verdict::kAborted);
  REQUIRE(place.log.VerdictOf(place.Attempt(300, incarnation)).value() == Verdict::kCommitted);
  REQUIRE(place.log.VerdictOf(place.Attempt(300, next)).value() == Verdict::kUnsettled);
}

TEST_CASE("Readers that registered before a drop hold the sweep up, later ones do not", "[tier][log]") {
  Place place;
  const uint64_t incarnation = place.Claim();
  const uint64_t first = place.Save(place.Attempt(100, incarnation), 0);
  place.Save(place.Attempt(200, incarnation), first);
  REQUIRE(place.tier.Touch(format::ReaderLeasePath("000000000000000e")).ok());
  REQUIRE(place.log.Drop({first}, "retention").ok());
  REQUIRE(place.log.Sweep(incarnation, kAtOnce)->removed.empty());
  REQUIRE(place.tier.Touch(format::ReaderLeasePath("000000000000001a")).ok());
  REQUIRE(place.log.Sweep(incarnation, kAtOnce)->removed.empty());
  REQUIRE(place.tier.Delete(format::ReaderLeasePath("000000000000000e")).ok());
  REQUIRE(place.log.Sweep(incarnation)->removed.empty());  // readers without a file have their time of grace
  REQUIRE(place.log.Sweep(incarnation, kAtOnce)->removed.size() == 3);
}

TEST_CASE("A claim's sweep removes what dead trainers left, and only what is Lamina's", "[tier][log]") {
  Place place;
  const uint64_t old_one = place.Claim();
  const uint64_t first = place.Save(place.Attempt(100, old_one), 0);
  REQUIRE(WriteAttempt(place.tier, place.store, place.Attempt(200, old_one), first).ok());
  REQUIRE(place.tier.PutIfAbsent("steps/000000000200/1-0/notes.txt", "mine").ok());
  REQUIRE(place.tier.PutIfAbsent("steps/best/model", "mine").ok());
  REQUIRE(place.tier.PutIfAbsent("steps/000000000300/1-00/catalog", "mine").ok());
  const uint64_t incarnation = place.Claim();
  REQUIRE(WriteAttempt(place.tier, place.store, place.Attempt(200, incarnation), first).ok());
  REQUIRE(WriteAttempt(place.tier, place.store, place.Attempt(200, incarnation + 5), first).ok());
  REQUIRE(place.log.Sweep(incarnation)->removed.size() == 4);  // three objects and the older lease
  REQUIRE(place.Attempts() == std::vector<std::string>{"steps/000000000100/1-0", "steps/000000000200/1-0", "steps/000000000200/3-0",
                                                       "steps/000000000200/8-0", "steps/000000000300/1-00", "steps/best/mode"});
  REQUIRE(testing::TextOf(place.tier, "steps/000000000200/1-0/notes.txt") == "mine");
  REQUIRE(place.log.Sweep(incarnation)->removed.empty());
}

TEST_CASE("Nothing is swept while a step's list of packs cannot be read", "[tier][log]") {
  Place place;
  const uint64_t old_one = place.Claim();
  place.Save(place.Attempt(100, old_one), 0);
  REQUIRE(WriteAttempt(place.tier, place.store, place.Attempt(200, old_one), 0).ok());
  place.tier.Replace("steps/000000000100/1-0/packs", "damaged");
  const uint64_t incarnation = place.Claim();
  REQUIRE(absl::IsDataLoss(place.log.Sweep(incarnation).status()));
  REQUIRE(place.tier.Delete("steps/000000000100/1-0/packs").ok());
  REQUIRE_FALSE(place.log.Sweep(incarnation).ok());
  REQUIRE(place.Attempts().size() == 2);
}

TEST_CASE("Only a claim passes over a damaged record, and then nothing is dropped or swept", "[tier][log]") {
  Place place;
  const uint64_t old_one = place.Claim();
  const uint64_t first = place.Save(place.Attempt(100, old_one), 0);
  const uint64_t second = place.Save(place.Attempt(200, old_one), first);
  place.Damage(second);
  REQUIRE(absl::IsDataLoss(place.log.Newest().status()));
  REQUIRE(place.log.Newest(/*damage_ok=*/true)->damaged == second);
  REQUIRE(place.log.Newest(/*damage_ok=*/true)->head == first);
  REQUIRE(absl::IsDataLoss(SaveTiny(place.tier, place.log, place.store, place.Attempt(300, old_one), first).status()));
  REQUIRE(absl::IsDataLoss(place.log.Abort(place.Attempt(300, old_one), "x").status()));
  const uint64_t incarnation = place.Claim();
  REQUIRE(incarnation == second + 1);
  REQUIRE(place.Newest().damaged == second);
  place.Save(place.Attempt(300, incarnation), first);
  REQUIRE(place.Newest().damaged == second);
  REQUIRE(absl::IsDataLoss(place.log.Drop({first}, "x")));
  REQUIRE(absl::IsDataLoss(place.log.Sweep(incarnation).status()));
  REQUIRE(LineSteps(place.Newest()) == std::vector<int64_t>{300, 100});
}

TEST_CASE("A record damaged in one copy, or of another store, is told apart", "[tier][log]") {
  Place place;
  place.Claim();
  std::string bytes = testing::TextOf(place.tier, format::LogPath(1));
  bytes[200] = static_cast<char>(bytes[200] ^ 1);
  place.tier.Replace(format::LogPath(1), bytes);
  REQUIRE(place.Newest().number == 1);
  LogRecord foreign = place.Newest();
  foreign.store_id.low ^= 1;
  place.tier.Replace(format::LogPath(1), format::EncodeLogRecord(foreign));
  REQUIRE(absl::IsDataLoss(place.log.Newest().status()));
}

TEST_CASE("Old records go within one incarnation too, but for each open", "[tier][log]") {
  Place place;
  place.Claim();
  const uint64_t incarnation = place.Claim();
  Log log(*place.env, place.tier, nullptr, /*records_kept=*/5);
  const auto kept = [&] {
    std::vector<uint64_t> numbers;
    for (const std::string& name : testing::NamesIn(place.tier, "log")) numbers.push_back(format::ParseLogName(name).value());
    return numbers;
  };
  REQUIRE(log.Sweep(incarnation).ok());
  uint64_t commit = 0;
  for (int64_t step = 1; step <= 4; ++step)
    commit = SaveTiny(place.tier, log, place.store, place.Attempt(step, incarnation), commit).value();
  REQUIRE(log.Newest()->floor == 2);
  for (int64_t step = 5; step <= 9; ++step)
    commit = SaveTiny(place.tier, log, place.store, place.Attempt(step, incarnation), commit).value();
  REQUIRE(log.Sweep(incarnation).ok());
  REQUIRE(kept() == std::vector<uint64_t>{1, 2, 7, 8, 9, 10, 11});
  SECTION("what the log says is the same") {
    REQUIRE(LineSteps(place.Newest()) == std::vector<int64_t>{9, 8, 7, 6, 5, 4, 3, 2, 1});
    REQUIRE(place.log.VerdictOf(place.Attempt(1, incarnation)).value() == Verdict::kCommitted);
  }
  SECTION("a dry run removes none") {
    REQUIRE(log.Abort(place.Attempt(10, incarnation), "x").ok());
    REQUIRE(log.Sweep(incarnation, {.dry_run = true}).ok());
    REQUIRE(kept().size() == 8);
    REQUIRE(log.Sweep(incarnation).ok());
    REQUIRE(kept() == std::vector<uint64_t>{1, 2, 8, 9, 10, 11, 12});
  }
  SECTION("none goes while a damaged one was passed over") {
    place.Damage(11);
    const uint64_t next = log.Claim({.run_id = {}, .takeover = true}).value().number;
    SaveTiny(place.tier, log, place.store, place.Attempt(20, next), 10).value();
    REQUIRE(absl::IsDataLoss(log.Sweep(next).status()));
    REQUIRE(log.Newest()->floor == 6);
  }
  SECTION("a sleeper's put below the floor is void") {
    Log sleeper(*place.env, place.tier, nullptr, 5);
    const CommitRequest asleep = WriteAttempt(place.tier, place.store, place.Attempt(300, incarnation, 1), commit).value();
    place.tier.before_put = [&](const std::string& name, std::string_view) {
      REQUIRE(name == format::LogPath(12));
      for (uint32_t i = 2; i < 12; ++i) REQUIRE(log.Abort(place.Attempt(300, incarnation, i), "x").ok());
      REQUIRE(log.Sweep(incarnation).ok());
      return absl::OkStatus();
    };
    REQUIRE(sleeper.Commit(asleep).value() == 22);  // on the newest record
    REQUIRE(kept() == std::vector<uint64_t>{1, 2, 12, 17, 18, 19, 20, 21, 22});
    REQUIRE(log.Sweep(incarnation).ok());
    REQUIRE(kept() == std::vector<uint64_t>{1, 2, 18, 19, 20, 21, 22});
  }
}

TEST_CASE("Old records go at a claim, and a sleeper's put below the floor is void", "[tier][log]") {
  Place place;
  const uint64_t old_one = place.Claim();
  const uint64_t kept = place.Save(place.Attempt(100, old_one), 0);
  const CommitRequest asleep = WriteAttempt(place.tier, place.store, place.Attempt(200, old_one), kept).value();
  Log sleeper(*place.env, place.tier);
  place.tier.before_put = [&](const std::string& name, std::string_view) {
    REQUIRE(name == format::LogPath(3));
    for (uint32_t i = 0; i < 1100; ++i) REQUIRE(place.log.Abort(place.Attempt(300, old_one, i), "x").ok());
    const uint64_t incarnation = place.Claim();
    REQUIRE(place.log.Sweep(incarnation).ok());
    return absl::OkStatus();
  };
  REQUIRE(absl::IsAborted(sleeper.Commit(asleep).status()));
  REQUIRE(sleeper.VerdictOf(asleep.attempt).value() == Verdict::kAborted);
  const LogRecord newest = place.Newest();
  REQUIRE(newest.floor == newest.number - 999);
  REQUIRE(testing::NamesIn(place.tier, "log").size() == 1000 + 2);  // and the first `open`, and the void record
  REQUIRE(place.log.VerdictOf(place.Attempt(300, old_one, 3)).value() == Verdict::kAborted);
  const uint64_t incarnation = place.Claim();
  REQUIRE(place.Newest().head == kept);
  REQUIRE(place.log.Sweep(incarnation).ok());
  REQUIRE(testing::NamesIn(place.tier, "log").size() == 1000 + 1);
}

TEST_CASE("Names in the log that are no records are left alone", "[tier][log]") {
  Place place;
  place.Claim();
  for (const std::string_view name : {"log/2", "log/0000000000002", "log/000000000002x", "log/README"})
    REQUIRE(place.tier.PutIfAbsent(name, "x").ok());
  REQUIRE(place.Newest().number == 1);
  REQUIRE(place.Claim() == 2);
  REQUIRE(place.log.Sweep(2)->removed.size() == 1);
  REQUIRE(testing::NamesIn(place.tier, "log").size() == 6);
}

}  // namespace lamina::tier
