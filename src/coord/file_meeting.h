// How the processes of one launch of a job find each other in a directory, whoever used it before them.
//
// Rank 0 calls with a fresh nonce, every rank answers with one of its own, and rank 0 lists them: a rank that finds its nonce in the list
// knows that list and call are of this launch, and rank 0 knows the same of the answers. What a dead launch left behind is so told apart,
// under the same job name too. From then on the launch has a directory of its own, named by the call's nonce:
//
//   DIRECTORY/<job>+call~…               the newest call
//   DIRECTORY/<job>+<nonce>+here+3~…     rank 3's answer to a call; <job>+<nonce>+go~… rank 0's list
//   DIRECTORY/launch-<nonce>/            the keys of that launch
//
// The last rank to leave removes it all. What killed launches leave goes after a week, when another launch meets there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coord/file_coordinator.h"
#include "env/env.h"

namespace lamina::coord {

struct FileMeetingOptions {
  std::string directory;  // made when only its last component is missing
  std::string job;        // tells jobs apart that use the directory at the same time; may be empty
  int32_t rank = 0;
  int32_t rank_count = 1;
  double timeout_s = 60;
};

class FileMeeting {
 public:
  // Every rank of the launch calls it; returns when all have. DeadlineExceeded names the ranks that did not come, or says that rank 0 did
  // not; InvalidArgument when ranks disagree on how many they are, NotFound without the directory's parent.
  static absl::StatusOr<std::unique_ptr<FileMeeting>> Join(env::Env& env, const FileMeetingOptions& options);

  Coordinator& coordinator() { return launch_; }
  const std::string& nonce() const { return nonce_; }  // of this launch, the same on all ranks
  // This rank asks and says nothing more. The last one removes what the launch left; where that fails a later launch does.
  absl::Status Leave();

 private:
  FileMeeting(env::Env& env, const FileMeetingOptions& options, std::string nonce);
  absl::Status RemoveIfLast();

  env::Env& env_;
  const FileMeetingOptions options_;
  const std::string nonce_;
  FileCoordinator launch_;
};

}  // namespace lamina::coord
