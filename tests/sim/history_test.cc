// Random histories: that they replay, and that their checks notice what they are for. The many seeds are run by lamina_sim.
#include "sim/history.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "sim/log_audit.h"

namespace lamina::sim {
namespace {

HistoryOptions OptionsOf(uint64_t seed, std::string_view faults) {
  HistoryOptions options;
  options.seed = seed;
  options.faults = ParseFaultKinds(faults).value();
  return options;
}

}  // namespace

TEST_CASE("A history takes the same course each time, and another seed another one", "[sim][history]") {
  env::SimThreads threads;
  std::set<uint64_t> hashes;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const HistoryOutcome first = RunHistory(OptionsOf(seed, "all"), threads);
    const HistoryOutcome second = RunHistory(OptionsOf(seed, "all"), threads);
    INFO("seed " << seed << ": " << first.status);
    REQUIRE(first.status.ok());
    REQUIRE(first.trace_hash == second.trace_hash);
    REQUIRE(first.op_count == second.op_count);
    hashes.insert(first.trace_hash);
  }
  REQUIRE(hashes.size() == 40);
}

TEST_CASE("Histories without faults commit every save that they ask for, and drop, delete and read", "[sim][history]") {
  env::SimThreads threads;
  int64_t drops = 0;
  int64_t deletions = 0;
  int64_t reads = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const HistoryOutcome outcome = RunHistory(OptionsOf(seed, "none"), threads);
    INFO("seed " << seed << ": " << outcome.status);
    REQUIRE(outcome.status.ok());
    REQUIRE(outcome.commit_count > 0);
    REQUIRE(outcome.restore_count > 0);
    REQUIRE(outcome.faults.empty());
    drops += outcome.drop_count;
    deletions += outcome.deletion_count;
    reads += outcome.read_count;
  }
  REQUIRE(drops > 0);
  REQUIRE(deletions > 0);
  REQUIRE(reads > 0);
}

TEST_CASE("Every kind of fault is planned for, alone too", "[sim][history]") {
  env::SimThreads threads;
  for (const FaultKindInfo& info : FaultKinds()) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const HistoryOutcome outcome = RunHistory(OptionsOf(seed, info.name), threads);
      INFO(info.name << ", seed " << seed << ": " << outcome.status);
      REQUIRE(outcome.status.ok());
    }
  }
}

TEST_CASE("Fault kinds are read from text", "[sim][history]") {
  REQUIRE(ParseFaultKinds("none")->empty());
  REQUIRE(ParseFaultKinds("all")->size() == FaultKinds().size());
  REQUIRE(*ParseFaultKinds("eio,power-cut") == std::set<FaultKind>{FaultKind::kPowerCut, FaultKind::kIoError});
  const absl::Status wrong = ParseFaultKinds("eio,fire").status();
  REQUIRE(absl::IsInvalidArgument(wrong));
  REQUIRE(std::string(wrong.message()).find("'fire'") != std::string::npos);
  for (const FaultKindInfo& info : FaultKinds()) REQUIRE(NameOf(info.kind) == info.name);
}

namespace {

using format::LogRecord;
using format::RecordKind;
using format::StepEntry;
using format::StepState;

// A log of two incarnations: the first commits steps 10 and 20, the second rolls back to 10 and commits 15.
std::vector<LogRecord> SomeLog() {
  const auto step = [](uint64_t commit, uint64_t parent, int64_t number, uint64_t incarnation, uint32_t attempt, StepState state) {
    return StepEntry{.commit = commit,
                     .parent = parent,
                     .attempt = {number, incarnation, attempt},
                     .catalog_digest = {1, 1},
                     .packs_digest = {2, 2},
                     .state = state};
  };
  const StepEntry ten = step(2, 0, 10, 1, 0, StepState::kLive);
  std::vector<LogRecord> log(6);
  for (size_t i = 0; i < log.size(); ++i) {
    log[i].store_id = {7, 7};
    log[i].nonce = {i + 1, 9};
    log[i].number = i + 1;
    log[i].incarnation = i < 3 ? 1 : 4;
    log[i].opens = i < 3 ? std::vector<uint64_t>{1} : std::vector<uint64_t>{1, 4};
    log[i].trainer.pid = i < 3 ? 1 : 2;
  }
  log[1].kind = log[2].kind = log[5].kind = RecordKind::kCommit;
  log[4].kind = RecordKind::kRewind;
  log[1].subject = {10, 1, 0};
  log[1].head = 2;
  log[1].steps = {ten};
  log[2].subject = {20, 1, 1};
  log[2].head = 3;
  log[2].steps = {ten, step(3, 2, 20, 1, 1, StepState::kLive)};
  log[3].head = 3;
  log[3].steps = log[2].steps;
  log[4].head = 2;
  log[4].subject = {10, 1, 0};
  log[4].steps = {ten, step(3, 2, 20, 1, 1, StepState::kAbandoned)};
  log[5].subject = {15, 4, 0};
  log[5].head = 6;
  log[5].steps = {ten, step(3, 2, 20, 1, 1, StepState::kAbandoned), step(6, 2, 15, 4, 0, StepState::kLive)};
  return log;
}

absl::Status AuditOf(const std::vector<LogRecord>& log, const AuditOptions& options = {}) {
  std::map<std::string, std::string> files;
  for (const LogRecord& record : log) files[format::LogPath(record.number)] = format::EncodeLogRecord(record);
  const absl::StatusOr<LogAudit> audit = LogAudit::Of(files, options);
  if (audit.ok()) REQUIRE(audit->newest_number() == log.size());
  return audit.status();
}

}  // namespace

TEST_CASE("The audit of a log accepts what obeys the rules and finds each rule broken", "[sim][history]") {
  std::vector<LogRecord> log = SomeLog();
  const absl::Status sound = AuditOf(log);
  INFO(sound);
  REQUIRE(sound.ok());
  const auto broken = [&](const std::string& text) {
    const absl::Status status = AuditOf(log);
    INFO("expected '" << text << "', found " << status);
    REQUIRE(absl::IsInternal(status));
    REQUIRE(std::string(status.message()).find(text) != std::string::npos);
  };
  SECTION("a commit by the fenced incarnation") {
    log[5].subject.incarnation = log[5].steps[2].attempt.incarnation = 1;
    log[5].subject.attempt = log[5].steps[2].attempt.attempt = 2;
    broken("a fenced incarnation commits");
  }
  SECTION("a commit that does not follow the head") {
    log[5].steps[2].parent = 3;
    broken("expected steps/000000000015/4-0");
  }
  SECTION("a step of the line that is called abandoned") {
    log[5].steps[0].state = StepState::kAbandoned;
    broken("expected steps/000000000010/1-0");
  }
  SECTION("a step lost from the table") {
    log[4].steps.pop_back();
    log.resize(5);
    broken("lost from the table");
  }
  SECTION("a rewind undone") {
    log[5] = log[4];
    log[5].number = 6;
    log[5].kind = RecordKind::kAbort;
    log[5].subject = {30, 4, 0};
    log[5].unswept = {{30, 4, 0}};
    log[5].head = 3;
    log[5].steps = log[3].steps;
    broken("its head is 3");
  }
  SECTION("an attempt that is committed after its abort") {
    for (size_t i = 2; i < log.size(); ++i) log[i].unswept = {{20, 1, 1}};
    log[2].kind = RecordKind::kAbort;
    log[2].head = 2;
    log[2].steps = {log[1].steps[0]};
    log[3] = log[2];
    log[3].number = 4;
    log[3].kind = RecordKind::kCommit;
    log[3].head = 4;
    log[3].steps.push_back(log[4].steps[1]);
    log[3].steps[1].commit = 4;
    log.resize(4);
    broken("an aborted attempt is committed");
  }
  SECTION("an abort of what is committed") {
    log[3] = log[2];
    log[3].number = 4;
    log[3].kind = RecordKind::kAbort;
    log[3].unswept = {{20, 1, 1}};
    log.resize(4);
    broken("a committed attempt is aborted");
  }
  SECTION("drops") {
    LogRecord drop = log[5];
    drop.number = 7;
    drop.kind = RecordKind::kDrop;
    drop.subject = {};
    drop.written_ns = 1000;
    log[4].written_ns = 500;
    log[5].written_ns = 700;
    drop.reason = GENERATE("keep=1", "gc", "gc of step 10", "abandoned", "keep=2");
    const bool of_line = GENERATE(true, false);
    drop.steps[of_line ? 0 : 1].state = StepState::kDropped;
    log.push_back(drop);
    const std::string reason = drop.reason;
    const bool sound_drop = of_line ? reason != "abandoned" && reason != "keep=2" : reason == "gc" || reason == "abandoned";
    INFO(reason << (of_line ? ", of the line" : ", off the line"));
    REQUIRE(AuditOf(log).ok() == sound_drop);
    if (!sound_drop || of_line) return;
    REQUIRE(AuditOf(log, {.abandoned_ns = 500}).ok());
    REQUIRE(absl::IsInternal(AuditOf(log, {.abandoned_ns = 501})));
  }
  SECTION("a drop of the head by retention") {
    log.push_back(log[5]);
    log[6].number = 7;
    log[6].kind = RecordKind::kDrop;
    log[6].subject = {};
    log[6].reason = "gc";
    log[6].head = 2;
    log[6].steps[2].state = StepState::kDropped;
    broken("retention drops the head");
    log[6].reason = "gc of step 15";
    REQUIRE(AuditOf(log).ok());
  }
  SECTION("pins") {
    log.push_back(log[5]);
    log[6].number = 7;
    log[6].kind = RecordKind::kRewrite;
    log[6].subject = {};
    broken("it pins or lets go 0 steps");
    log[6].steps[1].state = StepState::kPinned;
    REQUIRE(AuditOf(log).ok());
    log.push_back(log[6]);
    log[7].number = 8;
    log[7].kind = RecordKind::kDrop;
    log[7].reason = "gc of step 20";
    log[7].steps[1].state = StepState::kDropped;
    broken("a pinned step is dropped");
  }
  SECTION("a record that was lost") {
    const AuditOptions lost{.lost = log[5]};
    REQUIRE(AuditOf(log, lost).ok());
    log.push_back(log[4]);  // a claim goes on from the record before
    log[6].number = log[6].incarnation = 7;
    log[6].kind = RecordKind::kOpen;
    log[6].subject = {};
    log[6].opens = {1, 4, 7};
    REQUIRE(absl::IsInternal(AuditOf(log, lost)));  // it says nothing of the damage
    log[6].damaged = 6;
    REQUIRE(AuditOf(log, lost).ok());
    REQUIRE(absl::IsInternal(AuditOf(log)));
    log.push_back(log[6]);
    log[7].number = 8;
    log[7].kind = RecordKind::kDrop;
    log[7].reason = "gc of step 20";
    log[7].steps[1].state = StepState::kDropped;
    REQUIRE(absl::IsInternal(AuditOf(log, lost)));
    log[7] = log[6];
    log[7].number = 8;
    log[7].kind = RecordKind::kAbort;
    log[7].subject = {30, 7, 0};
    log[7].unswept = {{30, 7, 0}};
    REQUIRE(AuditOf(log, lost).ok());
    log[7].damaged = 0;
    REQUIRE(absl::IsInternal(AuditOf(log, lost)));
  }
  SECTION("a gap") {
    log.erase(log.begin() + 2);
    std::map<std::string, std::string> files;
    for (const LogRecord& record : log) files[format::LogPath(record.number)] = format::EncodeLogRecord(record);
    REQUIRE(absl::IsInternal(LogAudit::Of(files).status()));
  }
}

}  // namespace lamina::sim
