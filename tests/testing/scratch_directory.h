// A directory of the operating system for one test, removed with all that is in it. With LAMINA_TEST_KEEP in the environment it stays, so
// that the independent reader can look at the roots that were written; not so where `is_damaged`, since the test damages what it wrote.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace lamina::testing {

class ScratchDirectory {
 public:
  explicit ScratchDirectory(bool is_damaged = false)
      : path_((std::filesystem::temp_directory_path() / "lamina-test-XXXXXX").string()),
        stays_(!is_damaged && std::getenv("LAMINA_TEST_KEEP") != nullptr) {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    if (stays_) return;
    std::error_code ignored;  // what a test made unremovable stays in the temporary directory
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const bool stays_;
};

}  // namespace lamina::testing
