// What every FileSystem must do. Run by each implementation's test, in a directory that is there and empty.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "env/env.h"

namespace lamina::testing {

// Creates `path` with `text` in it and syncs it.
inline absl::Status WriteText(env::FileSystem& files, const std::string& path, std::string_view text) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<env::File> file, files.CreateNew(path));
  LAMINA_RETURN_IF_ERROR(file->WriteAt(0, base::AsBytes(text)));
  return file->Sync();
}

// All that is in the file.
inline absl::StatusOr<std::string> ReadText(env::FileSystem& files, const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<env::File> file, files.OpenForRead(path));
  LAMINA_ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
  std::string text(static_cast<size_t>(bytes), '\0');
  LAMINA_ASSIGN_OR_RETURN(const int64_t count, file->ReadAt(0, std::as_writable_bytes(std::span<char>(text))));
  text.resize(static_cast<size_t>(count));
  return text;
}

// The file's text, or the status in angle brackets: for comparisons that show what went wrong.
inline std::string TextIn(env::FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadText(files, path);
  return text.ok() ? *text : "<" + text.status().ToString() + ">";
}

inline std::vector<std::string> NamesIn(env::FileSystem& files, const std::string& path) {
  const auto entries = files.List(path);
  REQUIRE(entries.ok());
  std::vector<std::string> names;
  for (const env::DirectoryEntry& entry : *entries) names.push_back(entry.name);
  return names;
}

inline void CheckFileContents(env::FileSystem& files, const std::string& path) {
  auto created = files.CreateNew(path);
  REQUIRE(created.ok());
  env::File& file = **created;
  SECTION("What was written at an offset is read back, and what lies before it is zero") {
    REQUIRE(file.WriteAt(3, base::AsBytes("abc")).ok());
    REQUIRE(file.Sync().ok());
    REQUIRE(file.Size().value() == 6);
    REQUIRE(TextIn(files, path) == std::string("\0\0\0abc", 6));
  }
  SECTION("Writes out of order make one file") {
    REQUIRE(file.WriteAt(3, base::AsBytes("def")).ok());
    REQUIRE(file.WriteAt(0, base::AsBytes("abc")).ok());
    REQUIRE(TextIn(files, path) == "abcdef");
  }
  SECTION("A read at the end is short, and one behind it empty") {
    REQUIRE(file.WriteAt(0, base::AsBytes("abcdef")).ok());
    auto reader = files.OpenForRead(path);
    REQUIRE(reader.ok());
    std::string text(5, '-');
    REQUIRE((*reader)->ReadAt(4, std::as_writable_bytes(std::span<char>(text))).value() == 2);
    REQUIRE(text == "ef---");
    REQUIRE((*reader)->ReadAt(7, std::as_writable_bytes(std::span<char>(text))).value() == 0);
    REQUIRE((*reader)->ReadAt(0, {}).value() == 0);
  }
  SECTION("Truncation cuts, and lengthening adds zeros") {
    REQUIRE(file.WriteAt(0, base::AsBytes("abcdef")).ok());
    REQUIRE(file.Truncate(2).ok());
    REQUIRE(file.Truncate(4).ok());
    REQUIRE(TextIn(files, path) == std::string("ab\0\0", 4));
  }
  SECTION("A write of nothing changes nothing") {
    REQUIRE(file.WriteAt(100, {}).ok());
    REQUIRE(file.Size().value() == 0);
  }
  SECTION("A negative offset is refused") {
    REQUIRE(base::ErrnoOf(file.WriteAt(-1, base::AsBytes("a"))) == EINVAL);
    REQUIRE(base::ErrnoOf(file.Truncate(-1)) == EINVAL);
  }
  SECTION("A file that was unlinked is read on by who has it open") {
    REQUIRE(file.WriteAt(0, base::AsBytes("abc")).ok());
    auto reader = files.OpenForRead(path);
    REQUIRE(reader.ok());
    REQUIRE(files.Unlink(path).ok());
    std::string text(3, '-');
    REQUIRE((*reader)->ReadAt(0, std::as_writable_bytes(std::span<char>(text))).value() == 3);
    REQUIRE(text == "abc");
  }
}

inline void CheckNames(env::FileSystem& files, const std::string& one, const std::string& two) {
  REQUIRE(WriteText(files, one, "one").ok());
  SECTION("A name that is taken is not created again") {
    REQUIRE(absl::IsAlreadyExists(files.CreateNew(one).status()));
    REQUIRE(TextIn(files, one) == "one");
  }
  SECTION("A file that is not there is NotFound, with the errno and the path") {
    const absl::Status status = files.OpenForRead(two).status();
    REQUIRE(absl::IsNotFound(status));
    REQUIRE(base::ErrnoOf(status) == ENOENT);
    REQUIRE_THAT(std::string(status.message()), Catch::Contains(two));
    REQUIRE(absl::IsNotFound(files.Unlink(two)));
    REQUIRE(absl::IsNotFound(files.Stat(two).status()));
    REQUIRE(absl::IsNotFound(files.Link(two, two + "x")));
    REQUIRE(absl::IsNotFound(files.RenameNoReplace(two, two + "x")));
  }
  SECTION("A link is a second name, and outlives the first") {
    REQUIRE(files.Link(one, two).ok());
    REQUIRE(files.Unlink(one).ok());
    REQUIRE(TextIn(files, two) == "one");
    REQUIRE(absl::IsNotFound(files.OpenForRead(one).status()));
  }
  SECTION("A link never replaces") {
    REQUIRE(WriteText(files, two, "two").ok());
    REQUIRE(absl::IsAlreadyExists(files.Link(one, two)));
    REQUIRE(absl::IsAlreadyExists(files.Link(one, one)));
    REQUIRE(TextIn(files, two) == "two");
  }
  SECTION("A rename moves the name") {
    REQUIRE(files.RenameNoReplace(one, two).ok());
    REQUIRE(TextIn(files, two) == "one");
    REQUIRE(absl::IsNotFound(files.Stat(one).status()));
  }
  SECTION("A rename never replaces") {
    REQUIRE(WriteText(files, two, "two").ok());
    REQUIRE(absl::IsAlreadyExists(files.RenameNoReplace(one, two)));
    REQUIRE(TextIn(files, one) == "one");
    REQUIRE(TextIn(files, two) == "two");
  }
  SECTION("A name that was unlinked is free again") {
    REQUIRE(files.Unlink(one).ok());
    REQUIRE(WriteText(files, one, "new").ok());
    REQUIRE(TextIn(files, one) == "new");
  }
  SECTION("A file is no directory") {
    REQUIRE(base::ErrnoOf(files.CreateNew(one + "/below").status()) == ENOTDIR);
    REQUIRE(base::ErrnoOf(files.List(one).status()) == ENOTDIR);
    REQUIRE(base::ErrnoOf(files.SyncDirectory(one)) == ENOTDIR);
    REQUIRE(base::ErrnoOf(files.RemoveDirectory(one)) == ENOTDIR);
    REQUIRE(absl::IsAlreadyExists(files.MakeDirectory(one)));
  }
}

inline void CheckDirectories(env::FileSystem& files, const std::string& directory) {
  const std::string below = directory + "/below";
  REQUIRE(files.MakeDirectory(below).ok());
  SECTION("A directory is made once, and below one that is there") {
    REQUIRE(absl::IsAlreadyExists(files.MakeDirectory(below)));
    REQUIRE(absl::IsNotFound(files.MakeDirectory(directory + "/missing/below")));
    REQUIRE(absl::IsNotFound(files.CreateNew(directory + "/missing/file").status()));
  }
  SECTION("Names are listed sorted by bytes, hidden ones too, with their kinds") {
    for (const char* name : {"b", "B", "a", ".hidden", "a0"}) REQUIRE(WriteText(files, below + "/" + name, "").ok());
    REQUIRE(files.MakeDirectory(below + "/c").ok());
    REQUIRE(NamesIn(files, below) == std::vector<std::string>{".hidden", "B", "a", "a0", "b", "c"});
    const auto entries = files.List(below);
    REQUIRE(entries->front().kind == env::FileKind::kFile);
    REQUIRE(entries->back().kind == env::FileKind::kDirectory);
  }
  SECTION("An absent directory is NotFound") {
    REQUIRE(absl::IsNotFound(files.List(directory + "/missing").status()));
    REQUIRE(absl::IsNotFound(files.SyncDirectory(directory + "/missing")));
    REQUIRE(absl::IsNotFound(files.RemoveDirectory(directory + "/missing")));
  }
  SECTION("Only an empty directory is removed") {
    REQUIRE(WriteText(files, below + "/file", "").ok());
    REQUIRE(base::ErrnoOf(files.RemoveDirectory(below)) == ENOTEMPTY);
    REQUIRE(files.Unlink(below + "/file").ok());
    REQUIRE(files.RemoveDirectory(below).ok());
    REQUIRE(NamesIn(files, directory).empty());
  }
  SECTION("A directory is neither unlinked nor opened as a file") {
    REQUIRE_FALSE(files.Unlink(below).ok());
    REQUIRE(base::ErrnoOf(files.OpenForRead(below).status()) == EISDIR);
    REQUIRE(files.Stat(below)->kind == env::FileKind::kDirectory);
  }
  SECTION("The names of a directory are made durable") {
    REQUIRE(WriteText(files, below + "/file", "text").ok());
    REQUIRE(files.SyncDirectory(below).ok());
    REQUIRE(files.SyncDirectory(directory).ok());
    REQUIRE(TextIn(files, below + "/file") == "text");
  }
}

inline void CheckTimesAndSizes(env::Env& env, const std::string& directory) {
  env::FileSystem& files = env.files();
  const std::string path = directory + "/file";
  SECTION("Stat tells kind and length") {
    REQUIRE(WriteText(files, path, "abc").ok());
    REQUIRE(files.Stat(path)->kind == env::FileKind::kFile);
    REQUIRE(files.Stat(path)->bytes == 3);
  }
  SECTION("A touch creates an empty file") {
    REQUIRE(files.Touch(path).ok());
    REQUIRE(TextIn(files, path).empty());
  }
  SECTION("A touch moves the time forward and leaves the bytes") {
    REQUIRE(WriteText(files, path, "abc").ok());
    const int64_t before = files.Stat(path)->modified_ns;
    while (files.Stat(path)->modified_ns == before) {  // clocks of file systems tick every few milliseconds
      env.SleepNs(1'000'000);
      REQUIRE(files.Touch(path).ok());
    }
    REQUIRE(files.Stat(path)->modified_ns > before);
    REQUIRE(TextIn(files, path) == "abc");
  }
  SECTION("A touch needs its directory") { REQUIRE(absl::IsNotFound(files.Touch(directory + "/missing/file"))); }
  SECTION("The capacity is told, and not more is free than there is") {
    const auto capacity = files.Capacity(directory);
    REQUIRE(capacity.ok());
    REQUIRE(capacity->bytes_available > 0);
    REQUIRE(capacity->bytes_available <= capacity->bytes_total);
    REQUIRE(absl::IsNotFound(files.Capacity(directory + "/missing").status()));
  }
}

inline void CheckFileSystem(env::Env& env, const std::string& directory) {
  SECTION("Contents") { CheckFileContents(env.files(), directory + "/file"); }
  SECTION("Names") { CheckNames(env.files(), directory + "/one", directory + "/two"); }
  SECTION("Directories") { CheckDirectories(env.files(), directory); }
  SECTION("Times and sizes") { CheckTimesAndSizes(env, directory); }
}

}  // namespace lamina::testing
