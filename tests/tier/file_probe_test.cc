#include "tier/file_probe.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "env/fault_env.h"
#include "env/posix_env.h"
#include "env/posix_file_system.h"
#include "testing/scratch_directory.h"

namespace lamina::tier {
namespace {

namespace fs = std::filesystem;
using env::FaultCall;

// A file system on which the last one to publish or create a name wins.
class ReplacingFileSystem : public env::FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<env::File>> CreateNew(const std::string& path) override {
    files_->Unlink(path).IgnoreError();
    return files_->CreateNew(path);
  }
  absl::Status Link(const std::string& path, const std::string& link_path) override {
    files_->Unlink(link_path).IgnoreError();
    const absl::Status linked = files_->Link(path, link_path);
    return says_it_refuses_ ? base::ErrnoStatus(EEXIST, "link", link_path) : linked;
  }
  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override {
    fs::rename(from, to);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<env::File>> OpenForRead(const std::string& path) override { return files_->OpenForRead(path); }
  absl::Status Unlink(const std::string& path) override { return files_->Unlink(path); }
  absl::Status MakeDirectory(const std::string& path) override { return files_->MakeDirectory(path); }
  absl::Status RemoveDirectory(const std::string& path) override { return files_->RemoveDirectory(path); }
  absl::Status SyncDirectory(const std::string& path) override { return files_->SyncDirectory(path); }
  absl::StatusOr<std::vector<env::DirectoryEntry>> List(const std::string& path) override { return files_->List(path); }
  absl::StatusOr<env::FileInfo> Stat(const std::string& path) override { return files_->Stat(path); }
  absl::Status Touch(const std::string& path) override { return files_->Touch(path); }
  absl::StatusOr<env::FileSystemInfo> Capacity(const std::string& path) override { return files_->Capacity(path); }
  void SayItRefuses() { says_it_refuses_ = true; }

 private:
  const std::unique_ptr<env::FileSystem> files_ = env::NewPosixFileSystem();
  bool says_it_refuses_ = false;
};

class ReplacingEnv : public env::FaultEnv {
 public:
  using FaultEnv::FaultEnv;
  ReplacingFileSystem& files() override { return files_; }

 private:
  ReplacingFileSystem files_;
};

struct Place {
  testing::ScratchDirectory scratch;
  std::unique_ptr<env::Env> posix = env::NewPosixEnv();
  env::FaultEnv env{*posix};
  std::string root = scratch.path() + "/root";

  void Fail(FaultCall call, int error_number) {
    env.plan().AddRule({.call = call, .path_part = {}, .error_number = error_number, .first = 1, .count = env::kFaultsForEver});
  }
};

}  // namespace

TEST_CASE("A local file system may hold a root, which the probe leaves as it was", "[tier]") {
  Place place;
  const bool exists = GENERATE(false, true);
  if (exists) fs::create_directory(place.root);
  const FileProbe probe = ProbeFiles(place.env, place.root);
  CHECK(PutsIfAbsent(probe).ok());
  for (const absl::Status* status : {&probe.writable, &probe.exclusive_create, &probe.link, &probe.rename, &probe.durable_names}) {
    CHECK(status->ok());
  }
  CHECK(probe.directory == (exists ? place.root : place.scratch.path()));
  CHECK(std::abs(probe.clock_ahead_ns) < int64_t{60} * 1'000'000'000);
  CHECK(fs::exists(place.root) == exists);
  CHECK(fs::is_empty(probe.directory));
}

TEST_CASE("What a probe that was killed left beside the root goes with one a day later, and nothing else does", "[tier]") {
  Place place;
  if (GENERATE(false, true)) fs::create_directory(place.root);
  const std::string& parent = place.scratch.path();
  const auto make = [&](const std::string& name, int hours) {
    std::ofstream(parent + "/" + name) << "bytes";
    fs::last_write_time(parent + "/" + name, fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  make(".lamina-0123456789abcdef", 25);
  make(".lamina-0123456789abcdee", 23);  // another job's, perhaps under way
  make(".tmp-0123456789abcdef", 25);     // whose, nobody knows
  make(".lamina-notes", 25);
  fs::create_directory(parent + "/.lamina-00000000000000aa");
  fs::create_symlink(parent + "/.lamina-notes", parent + "/.lamina-00000000000000bb");
  fs::last_write_time(parent + "/.lamina-00000000000000aa", fs::file_time_type::clock::now() - std::chrono::hours(25));
  CHECK(PutsIfAbsent(ProbeFiles(place.env, place.root)).ok());
  CHECK_FALSE(fs::exists(parent + "/.lamina-0123456789abcdef"));
  for (const char* name : {".lamina-0123456789abcdee", ".tmp-0123456789abcdef", ".lamina-notes", ".lamina-00000000000000aa"}) {
    CAPTURE(name);
    CHECK(fs::exists(parent + "/" + name));
  }
  CHECK(fs::is_symlink(parent + "/.lamina-00000000000000bb"));
}

TEST_CASE("One of links and renaming without replacing is enough for a root", "[tier]") {
  Place place;
  SECTION("No hard links") { place.Fail(FaultCall::kLink, EPERM); }
  SECTION("No renaming") { place.Fail(FaultCall::kRename, EOPNOTSUPP); }
  const FileProbe probe = ProbeFiles(place.env, place.root);
  CHECK(PutsIfAbsent(probe).ok());
  CHECK(probe.link.ok() != probe.rename.ok());
}

TEST_CASE("What a root cannot do without is told, and nothing is left of the trial", "[tier]") {
  Place place;
  absl::StatusCode code = absl::StatusCode::kUnimplemented;
  std::string part;
  SECTION("Neither links nor renaming") {
    place.Fail(FaultCall::kLink, EPERM);
    place.Fail(FaultCall::kRename, EOPNOTSUPP);
    code = absl::StatusCode::kPermissionDenied;
    part = "nothing publishes a name without replacing one";
  }
  SECTION("A directory that cannot be synced") {
    place.Fail(FaultCall::kSyncDirectory, EIO);
    code = absl::StatusCode::kUnavailable;
    part = "fsync directory";
  }
  SECTION("A full disk") {
    place.Fail(FaultCall::kWrite, ENOSPC);
    code = absl::StatusCode::kResourceExhausted;
    part = "[ENOSPC]";
  }
  SECTION("Read only") {
    place.Fail(FaultCall::kCreate, EROFS);
    code = absl::StatusCode::kPermissionDenied;
    part = "[EROFS]";
  }
  SECTION("No parent") {
    place.root += "/sub/root";
    code = absl::StatusCode::kNotFound;
    part = "does not exist; '" + place.scratch.path() + "' does";
  }
  const FileProbe probe = ProbeFiles(place.env, place.root);
  const absl::Status status = !probe.writable.ok() ? probe.writable : !PutsIfAbsent(probe).ok() ? PutsIfAbsent(probe) : probe.durable_names;
  CHECK(status.code() == code);
  CHECK_THAT(std::string(status.message()), Catch::Contains(part));
  CHECK(fs::is_empty(place.scratch.path()));
}

TEST_CASE("A file system that replaces names is found out, whatever it says", "[tier]") {
  Place place;
  ReplacingEnv env(*place.posix);
  FileProbe probe = ProbeFiles(env, place.root);
  CHECK(absl::IsUnimplemented(PutsIfAbsent(probe)));
  CHECK_THAT(std::string(probe.exclusive_create.message()), Catch::Contains("is not refused"));
  CHECK_THAT(std::string(probe.link.message()), Catch::Contains("is not refused"));
  CHECK_THAT(std::string(probe.rename.message()), Catch::Contains("is not refused"));
  env.files().SayItRefuses();
  CHECK_THAT(std::string(ProbeFiles(env, place.root).link.message()), Catch::Contains("changes the file all the same"));
  CHECK(fs::is_empty(place.scratch.path()));
}

}  // namespace lamina::tier
