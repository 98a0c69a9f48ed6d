// A Coordinator in a directory that all ranks of a job share: for jobs without another store, such as trainers in C++.
//
// A value is a file `<key, escaped>~<number>-<nonce>`, written hidden, synced, closed and only then given its name, which is never used
// again: who reads sees a whole value or none. The highest number counts; older ones are removed behind it, so that a key that is set
// anew is never missing in between. Each Get reads the directory, never a name that may be missing: clients of NFS remember for many
// seconds that a name was not there, while opening a directory asks the server whether it has changed. What such a client still does not
// see is not there yet, and polling finds it; ESTALE is tried again. Where several processes set one key at the same moment, one of them
// is the last.
//
// Cost: O(keys in the directory) for each call, which suits dozens of ranks; one sync of a small file for each Set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coord/coordinator.h"
#include "env/env.h"

namespace lamina::coord {

inline constexpr int kNonceDigits = 16;

// Whether a file of that name is a value, or one that is being written.
bool IsKeyFile(std::string_view name);

// Thread-safe. Unavailable when the directory is gone; InvalidArgument for a value above 1 MiB or a key that escaped has more than
// 200 bytes.
class FileCoordinator final : public Coordinator {
 public:
  // `directory` is there already, and everything in it is the job's own; `env` outlives this.
  FileCoordinator(env::Env& env, std::string directory) : env_(env), directory_(std::move(directory)) {}

  absl::Status Set(const std::string& key, std::string_view value) override;
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) override;
  absl::StatusOr<bool> Check(const std::string& key) override;
  absl::Status Delete(const std::string& key) override;
  // All values and what dead ranks left half written. Files of other kinds stay.
  absl::Status DeleteAll();

 private:
  absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& key);  // ascending; empty: not set
  absl::StatusOr<std::vector<std::string>> Names();                          // of all regular files
  absl::StatusOr<std::string> WriteHidden(std::string_view value);           // its path
  absl::Status Remove(const std::string& name);
  std::string PathOf(const std::string& name) const { return directory_ + "/" + name; }

  env::Env& env_;
  const std::string directory_;
};

}  // namespace lamina::coord
