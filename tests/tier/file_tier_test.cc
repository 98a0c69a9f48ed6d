#include "tier/file_tier.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "env/fault_env.h"
#include "env/posix_env.h"
#include "io/thread_queue.h"
#include "testing/direct_queue.h"
#include "testing/scratch_directory.h"
#include "testing/tier_suite.h"

namespace lamina::tier {
namespace {

namespace fs = std::filesystem;
using env::FaultCall;

struct Place {
  testing::ScratchDirectory scratch;
  std::unique_ptr<env::Env> posix = env::NewPosixEnv();
  env::FaultEnv env{*posix};
  testing::DirectQueue queue;
  std::string root = scratch.path() + "/root";
  FileTier tier{env, root + "/", queue};
};

int FileCount(const std::string& directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(directory)) ++count;
  return count;
}

void Fail(Place& place, FaultCall call, int error_number, std::string path = {}, int64_t count = 1) {
  place.env.plan().AddRule({.call = call, .path_part = std::move(path), .error_number = error_number, .first = 1, .count = count});
}

}  // namespace

TEST_CASE("FileTier keeps what every tier promises, with a queue of threads", "[tier]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  io::ThreadQueue queue(*env, 2, 4);
  FileTier tier(*env, scratch.path() + "/root", queue);
  testing::CheckTier(*env, tier);
}

TEST_CASE("FileTier keeps what every tier promises where hard links are refused", "[tier]") {
  for (const int error_number : {EPERM, EOPNOTSUPP, EMLINK}) {
    Place place;
    Fail(place, FaultCall::kLink, error_number, {}, env::kFaultsForEver);
    testing::CheckTier(place.env, place.tier);
  }
}

TEST_CASE("A root without put-if-absent is unsupported", "[tier]") {
  Place place;
  REQUIRE(place.tier.Prepare("").ok());
  Fail(place, FaultCall::kLink, EOPNOTSUPP, {}, env::kFaultsForEver);
  Fail(place, FaultCall::kRename, EOPNOTSUPP, {}, env::kFaultsForEver);
  REQUIRE(absl::IsUnimplemented(place.tier.PutIfAbsent("name", "bytes")));
  REQUIRE(FileCount(place.root) == 0);
}

TEST_CASE("A root is made with its last component only, and the error names what exists", "[tier]") {
  Place place;
  FileTier tier(place.env, place.scratch.path() + "/not/mounted/root", place.queue);
  const absl::Status status = tier.Prepare("log");
  REQUIRE(absl::IsNotFound(status));
  REQUIRE(status.message().find("'" + place.scratch.path() + "' does") != absl::string_view::npos);
  REQUIRE(FileCount(place.scratch.path()) == 0);
}

TEST_CASE("A put leaves no temporary, and a failed sync fails it", "[tier]") {
  Place place;
  REQUIRE(place.tier.Prepare("log").ok());
  REQUIRE(place.tier.PutIfAbsent("log/1", "bytes").ok());
  REQUIRE(absl::IsAlreadyExists(place.tier.PutIfAbsent("log/1", "other")));
  REQUIRE(FileCount(place.root + "/log") == 1);
  Fail(place, FaultCall::kSync, EIO);
  REQUIRE(absl::IsUnavailable(place.tier.PutIfAbsent("log/2", "bytes")));
  REQUIRE(FileCount(place.root + "/log") == 1);
  Fail(place, FaultCall::kSyncDirectory, EIO, "/log");
  REQUIRE(absl::IsUnavailable(place.tier.PutIfAbsent("log/3", "bytes")));
  Fail(place, FaultCall::kWrite, ENOSPC);
  REQUIRE(absl::IsResourceExhausted(place.tier.PutIfAbsent("log/4", "bytes")));
  REQUIRE(absl::IsNotFound(place.tier.Stat("log/4").status()));
}

TEST_CASE("A put whose temporary is gone writes it anew", "[tier]") {
  Place place;
  REQUIRE(place.tier.Prepare("log").ok());
  Fail(place, FaultCall::kLink, ENOENT);
  REQUIRE(place.tier.PutIfAbsent("log/1", "bytes").ok());
  REQUIRE(testing::TextOf(place.tier, "log/1") == "bytes");
}

TEST_CASE("An object whose sync failed, of its bytes or of its name, is not finished", "[tier]") {
  for (const FaultCall call : {FaultCall::kWrite, FaultCall::kSync, FaultCall::kSyncDirectory}) {
    Place place;
    REQUIRE(place.tier.Prepare("steps").ok());
    const std::unique_ptr<ObjectWriter> writer = place.tier.CreateObject("steps/pack").value();
    Fail(place, call, EIO);
    writer->Append(base::AsBytes("bytes")).IgnoreError();  // may fail already
    REQUIRE(absl::IsUnavailable(writer->Finish()));
    REQUIRE_FALSE(writer->Finish().ok());
    REQUIRE(writer->Abort().ok());
    REQUIRE(absl::IsNotFound(place.tier.Stat("steps/pack").status()));
  }
}

TEST_CASE("Prepare makes each level durable", "[tier]") {
  for (int64_t failing = 1; failing <= 3; ++failing) {
    Place place;
    place.env.plan().AddRule({.call = FaultCall::kSyncDirectory, .path_part = {}, .error_number = EIO, .first = failing, .count = 1});
    REQUIRE(absl::IsUnavailable(place.tier.Prepare("steps/1")));
    REQUIRE(place.tier.Prepare("steps/1").ok());
  }
  Place place;
  Fail(place, FaultCall::kMakeDirectory, ENOENT, "steps/1");
  REQUIRE(place.tier.Prepare("steps/1").ok());
}

TEST_CASE("A handle that the server has forgotten is opened anew", "[tier]") {
  Place place;
  REQUIRE(place.tier.Prepare("").ok());
  REQUIRE(place.tier.PutIfAbsent("name", "bytes").ok());
  const std::unique_ptr<ObjectReader> reader = place.tier.OpenObject("name").value();
  std::string text(5, '\0');
  Fail(place, FaultCall::kRead, ESTALE);
  REQUIRE(reader->ReadRange(0, std::as_writable_bytes(std::span(text.data(), text.size()))).ok());
  REQUIRE(text == "bytes");
  Fail(place, FaultCall::kRead, EIO);
  REQUIRE(absl::IsUnavailable(reader->ReadRange(0, std::as_writable_bytes(std::span(text.data(), text.size())))));
}

TEST_CASE("Links below a root are not followed, not listed, and deleted as links", "[tier]") {
  Place place;
  REQUIRE(place.tier.Prepare("steps").ok());
  const std::string elsewhere = place.scratch.path() + "/elsewhere";
  fs::create_directory(elsewhere);
  std::ofstream(elsewhere + "/pack") << "bytes";
  fs::create_directory_symlink(elsewhere, place.root + "/steps/1");
  fs::create_directory_symlink(elsewhere, place.root + "/readers");
  fs::create_symlink(elsewhere + "/pack", place.root + "/steps/pack");
  for (const std::string_view name : {"steps/1/pack", "steps/pack", "readers/pack"}) {
    const absl::Status opened = place.tier.OpenObject(name).status();
    INFO(name << ": " << opened.ToString());
    REQUIRE(absl::IsDataLoss(opened));
  }
  REQUIRE(absl::IsDataLoss(place.tier.ListNames("readers").status()));
  REQUIRE(absl::IsDataLoss(place.tier.Touch("readers/me")));
  REQUIRE(absl::IsDataLoss(place.tier.PutIfAbsent("readers/me", "bytes")));
  REQUIRE(absl::IsDataLoss(place.tier.CreateObject("readers/me").status()));
  REQUIRE(absl::IsDataLoss(place.tier.Delete("readers/pack")));
  REQUIRE(absl::IsDataLoss(place.tier.Prepare("readers")));
  REQUIRE(absl::IsDataLoss(place.tier.Stat("readers/pack").status()));
  REQUIRE(absl::IsDataLoss(place.tier.SettleNames("readers")));
  REQUIRE(absl::IsDataLoss(place.tier.RemoveLeftovers("readers", 0).status()));
  REQUIRE(absl::IsDataLoss(place.tier.RemovePrefix("readers/empty")));
  REQUIRE(testing::NamesIn(place.tier, "steps").empty());
  REQUIRE(place.tier.List("steps")->empty());
  REQUIRE(place.tier.Delete("steps/pack").ok());
  REQUIRE(FileCount(elsewhere) == 1);
  REQUIRE(absl::IsAlreadyExists(place.tier.PutIfAbsent("steps/1", "bytes")));
  REQUIRE_FALSE(place.tier.RemovePrefix("steps/1").ok());
}

TEST_CASE("A root that is a link is used as what it names", "[tier]") {
  Place place;
  REQUIRE(place.tier.Prepare("log").ok());
  REQUIRE(place.tier.PutIfAbsent("log/1", "bytes").ok());
  fs::create_directory_symlink(place.root, place.scratch.path() + "/link");
  FileTier through(place.env, place.scratch.path() + "/link", place.queue);
  REQUIRE(testing::TextOf(through, "log/1") == "bytes");
  REQUIRE(testing::NamesIn(through, "log") == std::vector<std::string>{"1"});
}

TEST_CASE("Leftovers of puts go when they are old, and nothing else does", "[tier]") {
  Place place;
  REQUIRE(place.tier.Prepare("log").ok());
  const std::string log = place.root + "/log/";
  for (const std::string_view name : {".tmp-0123456789abcdef", ".tmp-fedcba9876543210", ".tmp-mine", ".hidden", "1"}) {
    std::ofstream(log + std::string(name)) << "x";
  }
  const auto day_ago = fs::file_time_type::clock::now() - std::chrono::hours(25);
  for (const std::string_view name : {".tmp-0123456789abcdef", ".tmp-mine", ".hidden", "1"})
    fs::last_write_time(log + std::string(name), day_ago);
  REQUIRE(place.tier.RemoveLeftovers("log", int64_t{24} * 3600 * 1'000'000'000).value() == 1);
  REQUIRE_FALSE(fs::exists(log + ".tmp-0123456789abcdef"));
  REQUIRE(FileCount(log) == 4);
}

}  // namespace lamina::tier
