// What the simulated file server keeps and loses.
#include "env/sim_disk.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "env/sim_env.h"
#include "testing/file_system_suite.h"

namespace lamina::env {
namespace {

using testing::WriteText;

TEST_CASE("The simulated file system does what every one must", "[sim]") {
  SimWorld world({});
  testing::CheckFileSystem(world.NewProcess("p"), "/ckpt");
}

TEST_CASE("The simulated file system does so within tasks, slowly and in small writes", "[sim]") {
  SimWorld world({.latency_ns_max = 1'000'000, .short_writes = true});
  REQUIRE(world.Run(world.NewProcess("p"), [](Env& env) { testing::CheckFileSystem(env, "/ckpt"); }) == absl::OkStatus());
}

TEST_CASE("A power cut loses what was not synced and never what was", "[sim]") {
  SimWorld world({.lose_all_unsynced = true});
  FileSystem& files = world.NewProcess("p").files();
  REQUIRE(WriteText(files, "/ckpt/synced", "bytes").ok());
  REQUIRE(files.SyncDirectory("/ckpt").ok());
  REQUIRE(WriteText(files, "/ckpt/nameless", "bytes").ok());
  auto file = files.CreateNew("/ckpt/empty");
  REQUIRE(files.SyncDirectory("/ckpt").ok());
  REQUIRE((*file)->WriteAt(0, base::AsBytes("lost")).ok());
  REQUIRE(files.Link("/ckpt/synced", "/ckpt/link").ok());
  REQUIRE(files.Unlink("/ckpt/nameless").ok());
  REQUIRE(files.RenameNoReplace("/ckpt/synced", "/ckpt/renamed").ok());
  REQUIRE(files.MakeDirectory("/ckpt/directory").ok());
  REQUIRE(WriteText(files, "/ckpt/directory/file", "bytes").ok());
  REQUIRE(files.SyncDirectory("/ckpt/directory").ok());
  world.Reboot();
  REQUIRE(world.Files() == std::map<std::string, std::string>{{"/ckpt/empty", ""}, {"/ckpt/nameless", "bytes"}, {"/ckpt/synced", "bytes"}});
}

TEST_CASE("Without a sync of the directory each change of a name may survive or not", "[sim]") {
  std::set<std::string> outcomes;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SimWorld world({.seed = seed});
    FileSystem& files = world.NewProcess("p").files();
    REQUIRE(WriteText(files, "/ckpt/a", "a").ok());
    REQUIRE(files.SyncDirectory("/ckpt").ok());
    REQUIRE(files.Link("/ckpt/a", "/ckpt/b").ok());
    REQUIRE(files.Unlink("/ckpt/a").ok());
    world.Reboot();
    std::string names;
    for (const auto& [path, text] : world.Files()) {
      REQUIRE(text == "a");
      names += path;
    }
    outcomes.insert(names);
  }
  // Reordered too: the unlink without the link before it.
  REQUIRE(outcomes == std::set<std::string>{"", "/ckpt/a", "/ckpt/a/ckpt/b", "/ckpt/b"});
}

TEST_CASE("A rename within a directory survives whole or not at all", "[sim]") {
  std::set<std::string> outcomes;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SimWorld world({.seed = seed});
    FileSystem& files = world.NewProcess("p").files();
    REQUIRE(WriteText(files, "/ckpt/a", "a").ok());
    REQUIRE(files.SyncDirectory("/ckpt").ok());
    REQUIRE(files.RenameNoReplace("/ckpt/a", "/ckpt/b").ok());
    world.Reboot();
    REQUIRE(world.Files().size() == 1);
    outcomes.insert(world.Files().begin()->first);
  }
  REQUIRE(outcomes == std::set<std::string>{"/ckpt/a", "/ckpt/b"});
}

TEST_CASE("Unsynced writes survive, vanish, or are torn at sectors and reordered", "[sim]") {
  const std::string first(1024, 'x');
  const std::string second(1024, 'y');
  bool all = false, none = false, only_second = false, torn = false;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SimWorld world({.seed = seed});
    FileSystem& files = world.NewProcess("p").files();
    auto file = files.CreateNew("/ckpt/a");
    REQUIRE(files.SyncDirectory("/ckpt").ok());
    REQUIRE((*file)->WriteAt(0, base::AsBytes(first)).ok());
    REQUIRE((*file)->WriteAt(1024, base::AsBytes(second)).ok());
    world.Reboot();
    const std::string found = world.Files().at("/ckpt/a");
    all = all || found == first + second;
    none = none || found.empty();
    only_second = only_second || found == std::string(1024, '\0') + second;
    torn = torn || found == std::string(512, 'x') + std::string(512, '\0') + second;
    for (size_t sector = 0; sector + 512 <= found.size(); sector += 512) {
      REQUIRE(found.substr(sector, 512).find_first_not_of(found[sector]) == std::string::npos);
    }
  }
  REQUIRE(all);
  REQUIRE(none);
  REQUIRE(only_second);
  REQUIRE(torn);
}

TEST_CASE("A synced file with a synced name outlives a power cut at any operation", "[sim]") {
  SimThreads threads;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    int64_t op_count = 1;
    for (int64_t cut = 0; cut <= op_count; ++cut) {
      SimWorld world({.seed = seed, .power_cut_at_op = cut, .threads = &threads});
      int acknowledged = 0;
      REQUIRE(world.Run(world.NewProcess("p"), [&](Env& env) {
        for (int i = 0; i < 3; ++i) {
          const std::string temporary = "/ckpt/tmp" + std::to_string(i);
          const bool ok = WriteText(env.files(), temporary, "bytes").ok() &&
                          env.files().Link(temporary, "/ckpt/" + std::to_string(i)).ok() && env.files().SyncDirectory("/ckpt").ok();
          REQUIRE(ok);
          acknowledged = i + 1;
          const absl::Status unlinked = env.files().Unlink(temporary);
          REQUIRE(unlinked == absl::OkStatus());
        }
      }) == absl::OkStatus());
      REQUIRE(world.power_was_cut() == (world.op_count() > cut));
      op_count = std::max(op_count, world.op_count());
      world.Reboot();
      for (int i = 0; i < acknowledged; ++i) REQUIRE(world.Files().at("/ckpt/" + std::to_string(i)) == "bytes");
    }
    REQUIRE(op_count == 18);
  }
}

TEST_CASE("After a failed sync a later one promises nothing", "[sim]") {
  SimWorld world({.lose_all_unsynced = true});
  world.AddFault({.what = "sync", .error_number = EIO});
  REQUIRE(world.Run(world.NewProcess("p"), [](Env& env) {
    auto file = env.files().CreateNew("/ckpt/a");
    CHECK(env.files().SyncDirectory("/ckpt").ok());
    CHECK((*file)->WriteAt(0, base::AsBytes("lost")).ok());
    CHECK(base::ErrnoOf((*file)->Sync()) == EIO);
    CHECK((*file)->Sync().ok());
  }) == absl::OkStatus());
  REQUIRE(world.Files().at("/ckpt/a") == "lost");
  world.Reboot();
  REQUIRE(world.Files().at("/ckpt/a").empty());
}

TEST_CASE("A sync that death interrupts leaves the file to be synced by another", "[sim]") {
  SimWorld world({.lose_all_unsynced = true});
  SimProcess& victim = world.NewProcess("victim");
  world.KillAtOp(victim, 3);
  REQUIRE(world.Run(victim, [](Env& env) {
    auto file = env.files().CreateNew("/ckpt/a");
    env.files().SyncDirectory("/ckpt").IgnoreError();
    (*file)->WriteAt(0, base::AsBytes("kept")).IgnoreError();
    (*file)->Sync().IgnoreError();
    FAIL("the dead go on");
  }) == absl::OkStatus());
  auto file = world.NewProcess("other").files().OpenForRead("/ckpt/a");
  REQUIRE((*file)->Sync().ok());
  world.Reboot();
  REQUIRE(world.Files().at("/ckpt/a") == "kept");
}

TEST_CASE("A full disk takes what fits, and an unlink makes room", "[sim]") {
  SimWorld world({.capacity_bytes = 10});
  FileSystem& files = world.NewProcess("p").files();
  REQUIRE(WriteText(files, "/ckpt/a", "12345678").ok());
  REQUIRE(files.Link("/ckpt/a", "/ckpt/again").ok());
  REQUIRE(files.Capacity("/ckpt")->bytes_available == 2);
  auto file = files.CreateNew("/ckpt/b");
  REQUIRE(base::ErrnoOf((*file)->WriteAt(0, base::AsBytes("abcd"))) == ENOSPC);
  REQUIRE(world.Files().at("/ckpt/b") == "ab");
  REQUIRE(files.Unlink("/ckpt/a").ok());
  REQUIRE(files.Unlink("/ckpt/again").ok());
  REQUIRE((*file)->WriteAt(0, base::AsBytes("abcd")).ok());
}

TEST_CASE("New names stay hidden from other processes for a while, and taken all the same", "[sim]") {
  SimWorld world({.stale_ns = 1'000'000});
  SimProcess& maker = world.NewProcess("maker");
  SimProcess& other = world.NewProcess("other");
  REQUIRE(WriteText(maker.files(), "/ckpt/a", "a").ok());
  REQUIRE(maker.files().Stat("/ckpt/a").ok());
  REQUIRE(absl::IsNotFound(other.files().Stat("/ckpt/a").status()));
  REQUIRE(other.files().List("/ckpt")->empty());
  REQUIRE(absl::IsAlreadyExists(other.files().CreateNew("/ckpt/a").status()));
  other.SleepNs(1'000'000);
  REQUIRE(other.files().Stat("/ckpt/a").ok());
  REQUIRE(other.files().List("/ckpt")->size() == 1);
}

TEST_CASE("A listing may be old for other processes, and show names that are gone", "[sim]") {
  SimWorld world({.stale_list_ns = 1'000'000});
  SimProcess& maker = world.NewProcess("maker");
  SimProcess& other = world.NewProcess("other");
  REQUIRE(WriteText(maker.files(), "/ckpt/old", "a").ok());
  other.SleepNs(1'000'000);
  REQUIRE(WriteText(maker.files(), "/ckpt/new", "abc").ok());
  REQUIRE(maker.files().Unlink("/ckpt/old").ok());
  REQUIRE(maker.files().List("/ckpt")->front().name == "new");
  REQUIRE(absl::IsNotFound(maker.files().Stat("/ckpt/old").status()));
  REQUIRE(other.files().List("/ckpt")->size() == 1);
  REQUIRE(other.files().List("/ckpt")->front().name == "old");
  REQUIRE(other.files().Stat("/ckpt/old")->bytes == 1);
  REQUIRE(absl::IsNotFound(other.files().OpenForRead("/ckpt/old").status()));
  REQUIRE(other.files().Stat("/ckpt/new")->bytes == 3);
  REQUIRE(WriteText(other.files(), "/ckpt/old", "ab").ok());
  REQUIRE(other.files().Stat("/ckpt/old")->bytes == 2);
  other.SleepNs(1'000'000);
  REQUIRE(other.files().List("/ckpt")->size() == 2);
}

TEST_CASE("A misdirected write seems well and damages its file and perhaps one beside it", "[sim]") {
  bool own = false, beside = false, nothing = false;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SimWorld world({.seed = seed});
    world.AddFault({.what = "write", .path = "/hit", .first = 1, .misdirected = true});
    REQUIRE(world.Run(world.NewProcess("p"), [](Env& env) {
      auto file = env.files().CreateNew("/ckpt/hit");
      bool ok = WriteText(env.files(), "/ckpt/beside", std::string(2048, 'b')).ok();
      ok = ok && WriteText(env.files(), "/far", "far").ok();
      ok = ok && (*file)->WriteAt(0, base::AsBytes(std::string(512, 'x'))).ok();
      ok = ok && (*file)->WriteAt(512, base::AsBytes(std::string(512, 'y'))).ok() && (*file)->Sync().ok();
      CHECK(ok);
    }) == absl::OkStatus());
    world.MakeDurable();
    world.Reboot();
    const std::map<std::string, std::string> files = world.Files();
    REQUIRE(files.at("/ckpt/hit").substr(512) == std::string(512, '\0'));
    REQUIRE(files.at("/far") == "far");
    own = own || files.at("/ckpt/hit").front() == 'y';
    beside = beside || files.at("/ckpt/beside").find('y') != std::string::npos;
    nothing = nothing || (files.at("/ckpt/hit").front() == 'x' && files.at("/ckpt/beside") == std::string(2048, 'b'));
    REQUIRE(world.misdirected_files().contains("/ckpt/hit"));
    REQUIRE(world.misdirected_files().contains("/ckpt/beside") == (files.at("/ckpt/beside") != std::string(2048, 'b')));
  }
  REQUIRE(own);
  REQUIRE(beside);
  REQUIRE_FALSE(nothing);
}

TEST_CASE("A disk fills up and is emptied while it is in use", "[sim]") {
  SimWorld world({});
  FileSystem& files = world.NewProcess("p").files();
  REQUIRE(WriteText(files, "/ckpt/a", "12345678").ok());
  REQUIRE(world.UsedBytes() == 8);
  world.set_capacity_bytes(9);
  auto file = files.CreateNew("/ckpt/b");
  REQUIRE(world.open_file_count() == 1);
  REQUIRE(base::ErrnoOf((*file)->WriteAt(0, base::AsBytes("ab"))) == ENOSPC);
  world.set_capacity_bytes(kUnlimitedBytes);
  REQUIRE((*file)->WriteAt(0, base::AsBytes("ab")).ok());
  file->reset();
  REQUIRE(world.open_file_count() == 0);
}

TEST_CASE("Bit rot stays, whatever is synced afterwards", "[sim]") {
  SimWorld world({});
  FileSystem& files = world.NewProcess("p").files();
  auto file = files.CreateNew("/ckpt/a");
  REQUIRE((*file)->WriteAt(0, base::AsBytes("abc")).ok());
  REQUIRE(world.CorruptByte("/ckpt/a", 1).ok());
  REQUIRE((*file)->Sync().ok());
  REQUIRE(files.SyncDirectory("/ckpt").ok());
  world.Reboot();
  const std::string found = world.Files().at("/ckpt/a");
  REQUIRE(found.size() == 3);
  REQUIRE(found[0] == 'a');
  REQUIRE(found[1] != 'b');
  REQUIRE_FALSE(world.CorruptByte("/ckpt/a", 3).ok());
}

TEST_CASE("Links are followed by opening and never by unlinking", "[sim]") {
  SimWorld world({});
  FileSystem& files = world.NewProcess("p").files();
  REQUIRE(WriteText(files, "/ckpt/a", "a").ok());
  REQUIRE(world.MakeLink("/ckpt", "/elsewhere").ok());
  REQUIRE(testing::TextIn(files, "/elsewhere/a") == "a");
  REQUIRE(files.Stat("/elsewhere")->kind == FileKind::kLink);
  REQUIRE(files.Unlink("/elsewhere").ok());
  REQUIRE(files.Stat("/ckpt/a").ok());
  REQUIRE(world.MakeLink("/loop", "/loop").ok());
  REQUIRE(base::ErrnoOf(files.OpenForRead("/loop").status()) == ELOOP);
}

}  // namespace
}  // namespace lamina::env
