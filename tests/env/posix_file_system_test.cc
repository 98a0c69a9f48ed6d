#include "env/posix_file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "env/posix_env.h"
#include "testing/file_system_suite.h"
#include "testing/scratch_directory.h"

namespace lamina::env {
namespace {

TEST_CASE("The operating system's file system does what every FileSystem must", "[env]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<Env> env = NewPosixEnv();
  testing::CheckFileSystem(*env, scratch.path());
}

TEST_CASE("A symbolic link is never followed by what acts on names", "[env]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const std::string target = scratch.path() + "/target";
  const std::string link = scratch.path() + "/link";
  REQUIRE(testing::WriteText(*files, target, "abc").ok());
  REQUIRE(symlink(target.c_str(), link.c_str()) == 0);
  SECTION("Stat and List tell of the link") {
    REQUIRE(files->Stat(link)->kind == FileKind::kLink);
    REQUIRE(files->List(scratch.path())->front().kind == FileKind::kLink);
  }
  SECTION("Unlink removes the link") {
    REQUIRE(files->Unlink(link).ok());
    REQUIRE(testing::TextIn(*files, target) == "abc");
  }
  SECTION("Touch refuses it") { REQUIRE(base::ErrnoOf(files->Touch(link)) == ELOOP); }
  SECTION("Link and rename act on it") {
    REQUIRE(files->Link(link, link + "2").ok());
    REQUIRE(files->RenameNoReplace(link, link + "3").ok());
    REQUIRE(files->Stat(link + "2")->kind == FileKind::kLink);
    REQUIRE(files->Stat(link + "3")->kind == FileKind::kLink);
  }
  SECTION("A dangling one keeps its name from being created") {
    REQUIRE(files->Unlink(target).ok());
    REQUIRE(absl::IsAlreadyExists(files->CreateNew(link).status()));
    REQUIRE(absl::IsNotFound(files->OpenForRead(link).status()));
  }
}

TEST_CASE("A pipe in the place of a file is refused and not waited for", "[env]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const std::string path = scratch.path() + "/pipe";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  REQUIRE(base::ErrnoOf(files->OpenForRead(path).status()) == EINVAL);
  REQUIRE(files->Stat(path)->kind == FileKind::kOther);
}

TEST_CASE("New files and directories have the modes that the umask leaves", "[env]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const mode_t before = umask(027);
  const bool made = testing::WriteText(*files, scratch.path() + "/file", "").ok() && files->MakeDirectory(scratch.path() + "/dir").ok();
  umask(before);
  REQUIRE(made);
  struct stat info {};
  REQUIRE(stat((scratch.path() + "/file").c_str(), &info) == 0);
  REQUIRE((info.st_mode & 0777) == 0640);
  REQUIRE(stat((scratch.path() + "/dir").c_str(), &info) == 0);
  REQUIRE((info.st_mode & 0777) == 0750);
}

TEST_CASE("A file opened to read refuses writes, and a new one refuses reads", "[env]") {
  const testing::ScratchDirectory scratch;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const std::string path = scratch.path() + "/file";
  const auto writer = files->CreateNew(path);
  const auto reader = files->OpenForRead(path);
  REQUIRE(writer.ok());
  REQUIRE(reader.ok());
  std::byte byte{};
  REQUIRE(base::ErrnoOf((*reader)->WriteAt(0, {&byte, 1})) == EBADF);
  REQUIRE(base::ErrnoOf((*writer)->ReadAt(0, {&byte, 1}).status()) == EBADF);
}

}  // namespace
}  // namespace lamina::env
