#include "env/fault_env.h"

#include <catch2/catch.hpp>

#include "base/units.h"
#include "env/posix_env.h"
#include "testing/file_system_suite.h"
#include "testing/scratch_directory.h"

namespace lamina::env {
namespace {

struct FaultyDisk {
  testing::ScratchDirectory scratch;
  std::unique_ptr<Env> posix = NewPosixEnv();
  FaultEnv env{*posix};
  FileSystem& files = env.files();
  FaultPlan& plan = env.plan();
  std::string PathOf(const std::string& name) const { return scratch.path() + "/" + name; }
};

TEST_CASE("A FaultEnv without faults does what every FileSystem must", "[env]") {
  FaultyDisk disk;
  SECTION("as it is") { testing::CheckFileSystem(disk.env, disk.scratch.path()); }
  SECTION("with writes cut to one byte") {
    disk.plan.SetWriteBytesMax(1);
    testing::CheckFileSystem(disk.env, disk.scratch.path());
  }
  REQUIRE(disk.plan.fault_count() == 0);
}

TEST_CASE("Every kind of call fails with the errno of its rule, and is not done", "[env]") {
  FaultyDisk disk;
  FileSystem& files = disk.files;
  const std::string path = disk.PathOf("file");
  REQUIRE(testing::WriteText(files, path, "abc").ok());
  REQUIRE(files.MakeDirectory(disk.PathOf("dir")).ok());
  const auto writer = files.CreateNew(disk.PathOf("new"));
  const auto reader = files.OpenForRead(path);
  REQUIRE(writer.ok());
  REQUIRE(reader.ok());
  std::byte byte{};
  const std::vector<std::pair<FaultCall, std::function<absl::Status()>>> calls = {
      {FaultCall::kOpen, [&] { return files.OpenForRead(path).status(); }},
      {FaultCall::kCreate, [&] { return files.CreateNew(disk.PathOf("other")).status(); }},
      {FaultCall::kWrite,
       [&] {
         return (*writer)->WriteAt(0, {&byte, 1});
       }},
      {FaultCall::kRead,
       [&] {
         return (*reader)->ReadAt(0, {&byte, 1}).status();
       }},
      {FaultCall::kSync, [&] { return (*writer)->Sync(); }},
      {FaultCall::kTruncate, [&] { return (*writer)->Truncate(7); }},
      {FaultCall::kLink, [&] { return files.Link(path, disk.PathOf("other")); }},
      {FaultCall::kRename, [&] { return files.RenameNoReplace(path, disk.PathOf("other")); }},
      {FaultCall::kUnlink, [&] { return files.Unlink(path); }},
      {FaultCall::kMakeDirectory, [&] { return files.MakeDirectory(disk.PathOf("other")); }},
      {FaultCall::kRemoveDirectory, [&] { return files.RemoveDirectory(disk.PathOf("dir")); }},
      {FaultCall::kSyncDirectory, [&] { return files.SyncDirectory(disk.scratch.path()); }},
      {FaultCall::kList, [&] { return files.List(disk.scratch.path()).status(); }},
      {FaultCall::kStat, [&] { return files.Stat(path).status(); }},
      {FaultCall::kTouch, [&] { return files.Touch(disk.PathOf("other")); }},
      {FaultCall::kCapacity, [&] { return files.Capacity(path).status(); }}};
  for (const auto& [call, make] : calls) {
    INFO("call " << static_cast<int>(call));
    disk.plan.AddRule({.call = call, .path_part = "", .error_number = EDQUOT});
    REQUIRE(base::ErrnoOf(make()) == EDQUOT);
  }
  REQUIRE(disk.plan.fault_count() == static_cast<int64_t>(calls.size()));
  REQUIRE(testing::NamesIn(files, disk.scratch.path()) == std::vector<std::string>{"dir", "file", "new"});
  REQUIRE((*writer)->Size().value() == 0);
}

TEST_CASE("A rule fails the calls it counts to, on paths it names", "[env]") {
  FaultyDisk disk;
  const auto stat_errno = [&](const std::string& name) { return base::ErrnoOf(disk.files.Stat(disk.PathOf(name)).status()); };
  REQUIRE(testing::WriteText(disk.files, disk.PathOf("some.pack"), "").ok());
  REQUIRE(testing::WriteText(disk.files, disk.PathOf("catalog"), "").ok());
  SECTION("The second call and the third") {
    disk.plan.AddRule({.call = FaultCall::kStat, .path_part = ".pack", .error_number = EIO, .first = 2, .count = 2});
    REQUIRE_FALSE(stat_errno("some.pack").has_value());
    REQUIRE_FALSE(stat_errno("catalog").has_value());
    REQUIRE(stat_errno("some.pack") == EIO);
    REQUIRE(stat_errno("some.pack") == EIO);
    REQUIRE_FALSE(stat_errno("some.pack").has_value());
  }
  SECTION("From then on, until the rule is removed") {
    const int64_t number = disk.plan.AddRule({.call = {}, .path_part = "pack", .error_number = EIO, .count = kFaultsForEver});
    for (int i = 0; i < 3; ++i) REQUIRE(stat_errno("some.pack") == EIO);
    REQUIRE_FALSE(stat_errno("catalog").has_value());
    REQUIRE(disk.plan.RemoveRule(number));
    REQUIRE_FALSE(disk.plan.RemoveRule(number));
    REQUIRE_FALSE(stat_errno("some.pack").has_value());
  }
  SECTION("The second path of a link or rename counts too") {
    disk.plan.AddRule({.call = FaultCall::kLink, .path_part = "target", .error_number = EPERM});
    REQUIRE(base::ErrnoOf(disk.files.Link(disk.PathOf("catalog"), disk.PathOf("target"))) == EPERM);
  }
}

TEST_CASE("A cut write that fails later leaves its first parts", "[env]") {
  FaultyDisk disk;
  disk.plan.SetWriteBytesMax(2);
  disk.plan.AddRule({.call = FaultCall::kWrite, .path_part = "", .error_number = ENOSPC, .first = 3});
  REQUIRE(base::ErrnoOf(testing::WriteText(disk.files, disk.PathOf("file"), "abcdef")) == ENOSPC);
  REQUIRE(testing::TextIn(disk.files, disk.PathOf("file")) == "abcd");
}

TEST_CASE("A slow disk takes as long as its rate says", "[env]") {
  FaultyDisk disk;
  disk.plan.SetWriteBytesPerSecond(base::kGiB);
  const int64_t before = disk.env.MonotonicNs();
  REQUIRE(testing::WriteText(disk.files, disk.PathOf("file"), std::string(base::kMiB, 'x')).ok());
  REQUIRE(disk.env.MonotonicNs() - before >= base::kSecondNs / 1024 - 4);  // each part is rounded down to a nanosecond
  REQUIRE(disk.files.Stat(disk.PathOf("file"))->bytes == base::kMiB);
}

TEST_CASE("Writers share the rate of a slow disk", "[env]") {
  FaultPlan plan;
  plan.SetWriteBytesPerSecond(1000);
  REQUIRE(plan.ReserveWrite(500, 0) == base::kSecondNs / 2);
  REQUIRE(plan.ReserveWrite(500, 0) == base::kSecondNs);
  REQUIRE(plan.ReserveWrite(500, 10 * base::kSecondNs) == base::kSecondNs / 2);
}

TEST_CASE("A new name is hidden for a time", "[env]") {
  FaultyDisk disk;
  REQUIRE(testing::WriteText(disk.files, disk.PathOf("a"), "abc").ok());
  disk.plan.SetHiddenNs(3600 * base::kSecondNs);
  REQUIRE(disk.files.Link(disk.PathOf("a"), disk.PathOf("b")).ok());
  REQUIRE(disk.files.RenameNoReplace(disk.PathOf("a"), disk.PathOf("c")).ok());
  for (const char* name : {"b", "c"}) {
    REQUIRE(base::ErrnoOf(disk.files.OpenForRead(disk.PathOf(name)).status()) == ENOENT);
    REQUIRE(base::ErrnoOf(disk.files.Stat(disk.PathOf(name)).status()) == ENOENT);
  }
  REQUIRE(testing::NamesIn(disk.files, disk.scratch.path()).empty());
  REQUIRE(absl::IsAlreadyExists(disk.files.CreateNew(disk.PathOf("b")).status()));
  FaultPlan plan;
  plan.SetHiddenNs(10);
  plan.Hide("b", 100);
  REQUIRE(plan.IsHidden("b", 109));
  REQUIRE_FALSE(plan.IsHidden("b", 110));
}

TEST_CASE("A stale handle is met once in so many opens", "[env]") {
  FaultyDisk disk;
  REQUIRE(testing::WriteText(disk.files, disk.PathOf("a"), "abc").ok());
  disk.plan.SetStaleOpenEvery(2);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(disk.files.OpenForRead(disk.PathOf("a")).ok());
    REQUIRE(base::ErrnoOf(disk.files.OpenForRead(disk.PathOf("a")).status()) == ESTALE);
  }
}

}  // namespace
}  // namespace lamina::env
