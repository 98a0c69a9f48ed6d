// A place for steps: objects with names, put-if-absent, no rename, append, truncate or directory above it: what POSIX, NFS, Lustre and S3
// share. Names are relative, '/'-separated, made by format/paths.h; InvalidArgument for one that could lead out of the root. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/file_system.h"
#include "tier/file_probe.h"

namespace lamina::tier {

struct ObjectInfo {
  std::string name;  // whole name, prefix included
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // by the store's clock
};

// A new object, written in order. Destroyed without Finish, it is given up and removed as Abort does, if that is possible.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;
  // Appends. Borrows `part` until Finish or Abort returns; may write it in the background. A failure of an earlier part may show here.
  virtual absl::Status Append(std::span<const std::byte> part) = 0;
  virtual int64_t bytes_appended() const = 0;
  virtual int64_t bytes_written() const = 0;  // handed to the store so far: progress
  // All parts and the name are durable when it is OK. After a failure the object counts as given up.
  virtual absl::Status Finish() = 0;
  // Removes what was written. The object never existed.
  virtual absl::Status Abort() = 0;
};

class ObjectReader {
 public:
  virtual ~ObjectReader() = default;
  virtual int64_t bytes() const = 0;
  // Fills `target` wholly from `offset`, or DataLoss naming object, offset and lengths when the object is too short. Thread-safe.
  virtual absl::Status ReadRange(int64_t offset, std::span<std::byte> target) = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;
  virtual std::string Describe() const = 0;  // for messages: the root's path or address
  // Tries what the log stands on, before there is a root as well; nullopt for a store that is known to keep it.
  virtual std::optional<FileProbe> Probe() { return std::nullopt; }
  // The room of the store; nullopt when it does not tell.
  virtual absl::StatusOr<std::optional<env::FileSystemInfo>> Capacity() { return std::nullopt; }
  // Makes ready what objects directly under `prefix` need (directories and their durable names). Idempotent.
  virtual absl::Status Prepare(std::string_view prefix) = 0;
  // AlreadyExists when the name is taken. Not visible as a whole object, or not at all, until Finish.
  virtual absl::StatusOr<std::unique_ptr<ObjectWriter>> CreateObject(std::string_view name) = 0;
  // NotFound when it is not there.
  virtual absl::StatusOr<std::unique_ptr<ObjectReader>> OpenObject(std::string_view name) = 0;
  // Objects and, with a trailing '/' and no size, sub-prefixes directly under `prefix`, sorted by name. Hidden names (a leading dot) are
  // left out. An absent prefix is an empty list.
  virtual absl::StatusOr<std::vector<ObjectInfo>> List(std::string_view prefix) = 0;
  // The last components of the same names, sub-prefixes with their '/': cheaper where size and time cost a call each. Links that someone
  // put in place of an object or prefix are in neither list, so that whoever deletes what it lists never follows one.
  virtual absl::StatusOr<std::vector<std::string>> ListNames(std::string_view prefix) = 0;
  // Creates the object with these bytes, durable when OK. AlreadyExists when the name is taken, possibly by this very call (a retry on a
  // network file system): the caller compares nonces. Any other failure leaves it unknown whether the object exists.
  virtual absl::Status PutIfAbsent(std::string_view name, std::string_view bytes) = 0;
  // Creates an empty object or renews its time.
  virtual absl::Status Touch(std::string_view name) = 0;
  virtual absl::StatusOr<ObjectInfo> Stat(std::string_view name) = 0;  // NotFound when it is not there
  virtual absl::Status Delete(std::string_view name) = 0;              // fine when it is not there; never follows a link
  // Makes the names under `prefix` that a reader can see durable, before it acts on them.
  virtual absl::Status SettleNames(std::string_view prefix) = 0;
  // Removes what interrupted PutIfAbsent calls left hidden directly under `prefix`, untouched for `age_ns` by the store's clock. Returns
  // how many.
  virtual absl::StatusOr<int64_t> RemoveLeftovers(std::string_view prefix, int64_t age_ns) = 0;
  // Removes the empty prefix itself, as far as the store has such things. Fine when it is not empty or not there.
  virtual absl::Status RemovePrefix(std::string_view prefix) = 0;
};

// OK when `name` is one or more components without "", "." or ".." and without a zero byte; a prefix may also be empty.
absl::Status CheckName(std::string_view name);
absl::Status CheckPrefix(std::string_view prefix);
std::string JoinName(std::string_view prefix, std::string_view name);

// The whole object, at most `bytes_max` (else DataLoss).
absl::StatusOr<std::string> ReadWhole(Tier& tier, std::string_view name, int64_t bytes_max);

}  // namespace lamina::tier
