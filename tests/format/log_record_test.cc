#include "format/log_record.h"

#include <catch2/catch.hpp>
#include <functional>

#include "damage.h"
#include "examples.h"

using namespace lamina;
using namespace lamina::format;

namespace {

absl::StatusOr<LogRecord> Decode(const std::string& bytes, uint64_t number = 2) { return DecodeLogRecord(base::AsBytes(bytes), number); }

// Both copies changed alike, so that no sound one is left.
std::string InBoth(const std::string& bytes, const std::function<std::string(std::string)>& change) {
  const std::string copy = change(bytes.substr(0, bytes.size() / 2));
  return copy + copy;
}

LogRecord Changed(const std::function<void(LogRecord&)>& change) {
  LogRecord record = example::Commit();
  change(record);
  return record;
}

}  // namespace

TEST_CASE("A log record reads back as written", "[format]") {
  LogRecord record = example::Commit();
  record.number = 77;
  record.kind = RecordKind::kAbort;
  record.reason = std::string("skipped: no \0 room", 18);
  record.opens = {1, 5, 9};
  record.incarnation = 9;
  record.floor = 3;
  record.damaged = 8;
  record.unswept = {{.step = 4, .incarnation = 5, .attempt = 6}};
  for (uint64_t commit = 10; commit < 60; ++commit) {
    StepEntry step = record.steps[0];
    step.commit = commit;
    step.parent = commit - 1;
    step.attempt.attempt = static_cast<uint32_t>(commit);
    step.state = static_cast<StepState>(commit % 4 + 1);
    record.steps.push_back(step);
  }
  const std::string bytes = EncodeLogRecord(record);
  CHECK(bytes.size() % (2 * kLogCopyAlignment) == 0);
  const auto decoded = Decode(bytes, 77);
  REQUIRE(decoded.ok());
  CHECK(*decoded == record);
}

TEST_CASE("An open without steps reads back as written", "[format]") {
  LogRecord record;
  record.number = record.incarnation = 1;
  record.opens = {1};
  const auto decoded = Decode(EncodeLogRecord(record), 1);
  REQUIRE(decoded.ok());
  CHECK(*decoded == record);
}

TEST_CASE("One sound copy of a log record is enough", "[format]") {
  const std::string bytes = EncodeLogRecord(example::Commit());
  for (const size_t begin : {size_t{0}, bytes.size() / 2}) {
    std::string damaged = bytes;
    damaged.replace(begin, bytes.size() / 2, std::string(bytes.size() / 2, '\xff'));
    const auto decoded = Decode(damaged);
    REQUIRE(decoded.ok());
    CHECK(*decoded == example::Commit());
  }
}

TEST_CASE("A bit flipped anywhere in a log record's file changes nothing", "[format]") {
  std::string bytes = EncodeLogRecord(example::Commit());
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 7) {
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    const auto decoded = Decode(bytes);
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    if (!decoded.ok() || !(*decoded == example::Commit())) FAIL("bit " << bit << ": " << decoded.status().ToString());
  }
}

TEST_CASE("A log record whose copies are both damaged is refused", "[format]") {
  const std::string bytes = EncodeLogRecord(example::Commit());
  const auto framed_bytes = kFrameBytes + *base::ReadAt<uint64_t>(base::AsBytes(bytes), 32);
  for (size_t bit = 0; bit < framed_bytes * 8; ++bit) {
    const auto decoded = Decode(InBoth(bytes, [&](std::string copy) {
      copy[bit / 8] ^= static_cast<char>(1 << (bit % 8));
      return copy;
    }));
    if (!absl::IsDataLoss(decoded.status())) FAIL("bit " << bit);
  }
}

TEST_CASE("No copy of a log record reaches beyond its half of the file", "[format]") {
  LogRecord record = example::Commit();
  record.reason = std::string(kLogCopyAlignment, 'r');
  const std::string bytes = EncodeLogRecord(record);
  REQUIRE(bytes.size() == 4 * kLogCopyAlignment);
  REQUIRE(DecodeLogRecordCopy(base::AsBytes(bytes), 2).ok());
  CHECK(absl::IsDataLoss(Decode(bytes.substr(0, bytes.size() / 2)).status()));
}

TEST_CASE("A log record cut short is damage or whole, never half read", "[format]") {
  const std::string bytes = EncodeLogRecord(example::Commit());
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto decoded = Decode(std::string(bytes, 0, length));
    if (decoded.ok() ? !(*decoded == example::Commit()) : !absl::IsDataLoss(decoded.status())) FAIL("cut to " << length);
  }
}

TEST_CASE("A log record under another number is refused", "[format]") {
  const auto decoded = Decode(EncodeLogRecord(example::Commit()), 3);
  CHECK(absl::IsDataLoss(decoded.status()));
  CHECK_THAT(std::string(decoded.status().message()), Catch::Contains("number is 2, expected 3"));
}

TEST_CASE("A log record of another store is damage, copy by copy", "[format]") {
  LogRecord other = example::Commit();
  other.store_id.low ^= 1;
  const std::string foreign = EncodeLogRecord(other);
  const std::string own = EncodeLogRecord(example::Commit());
  REQUIRE(foreign.size() == own.size());
  const auto decode = [](const std::string& bytes) { return DecodeLogRecord(base::AsBytes(bytes), 2, example::kStoreId); };
  CHECK(absl::IsDataLoss(decode(foreign).status()));
  CHECK(*decode(foreign.substr(0, own.size() / 2) + own.substr(own.size() / 2)) == example::Commit());
}

TEST_CASE("A log record of a newer version is refused by name", "[format]") {
  RequireVersionsAreKept(EncodeLogRecord(example::Commit()), [](auto bytes) { return DecodeLogRecord(bytes, 2).status(); });
}

TEST_CASE("A newer log record whose first copy is damaged is still known as newer", "[format]") {
  std::string bytes = InBoth(EncodeLogRecord(example::Commit()), [](std::string copy) { return WithFrameField<uint32_t>(copy, 8, 999); });
  bytes[0] ^= 1;
  CHECK(absl::IsUnimplemented(Decode(bytes).status()));
}

TEST_CASE("A log record that contradicts itself is refused before and after it is written", "[format]") {
  const std::vector<LogRecord> wrong = {
      Changed([](LogRecord& r) { r.number = 0; }),
      Changed([](LogRecord& r) { r.kind = static_cast<RecordKind>(0); }),
      Changed([](LogRecord& r) { r.kind = static_cast<RecordKind>(7); }),
      Changed([](LogRecord& r) { r.kind = RecordKind::kOpen; }),
      Changed([](LogRecord& r) { r.floor = 0; }),
      Changed([](LogRecord& r) { r.floor = 3; }),
      Changed([](LogRecord& r) { r.damaged = 2; }),
      Changed([](LogRecord& r) { r.head = 1; }),
      Changed([](LogRecord& r) { r.incarnation = 2; }),
      Changed([](LogRecord& r) { r.opens = {}; }),
      Changed([](LogRecord& r) {
        r.opens = {1, 1};
      }),
      Changed([](LogRecord& r) {
        r.opens = {0, 1};
      }),
      Changed([](LogRecord& r) {
        r.opens = {1, 3};
      }),
      Changed([](LogRecord& r) { r.subject.step = -1; }),
      Changed([](LogRecord& r) { r.unswept = {{.step = -1}}; }),
      Changed([](LogRecord& r) { r.steps[0].commit = 0; }),
      Changed([](LogRecord& r) { r.steps[0].commit = 3; }),
      Changed([](LogRecord& r) { r.steps[0].parent = 2; }),
      Changed([](LogRecord& r) { r.steps[0].state = static_cast<StepState>(5); }),
      Changed([](LogRecord& r) { r.steps[0].attempt.step = -1; }),
      Changed([](LogRecord& r) { r.steps[0].state_bytes = (uint64_t{1} << 62) + 1; }),
      Changed([](LogRecord& r) { r.steps[0].stored_bytes = uint64_t{1} << 63; }),
      Changed([](LogRecord& r) { r.steps.push_back(r.steps[0]); }),
      Changed([](LogRecord& r) { r.steps[0].attempt.incarnation = 0; }),
      Changed([](LogRecord& r) { r.unswept = {{.step = 1}}; }),
      Changed([](LogRecord& r) { r.subject = {}; }),
      Changed([](LogRecord& r) { r.subject.attempt = 1; }),
      Changed([](LogRecord& r) { r.kind = RecordKind::kDrop; }),
      Changed([](LogRecord& r) { r.kind = RecordKind::kRewrite; }),
      Changed([](LogRecord& r) { r.number = 3; }),  // commits what an earlier one did
      Changed([](LogRecord& r) {
        r.kind = RecordKind::kRewind;
        r.head = 0;
      }),
      Changed([](LogRecord& r) {
        r.kind = RecordKind::kAbort;
        r.subject = {};
      }),
      Changed([](LogRecord& r) {  // one attempt twice, once dropped
        r.number = 3;
        r.kind = RecordKind::kAbort;
        r.steps.push_back(r.steps[0]);
        r.steps[1].commit = 3;
        r.steps[0].state = StepState::kDropped;
      }),
  };
  CHECK(ValidateLogRecord(example::Commit()).ok());
  for (const LogRecord& record : wrong) {
    INFO(ValidateLogRecord(record).ToString());
    CHECK(absl::IsInvalidArgument(ValidateLogRecord(record)));
    CHECK(absl::IsDataLoss(Decode(EncodeLogRecord(record), record.number).status()));
  }
}
