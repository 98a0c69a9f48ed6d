// The checkpoint engine of one rank. All ranks of a job have one each, make the same calls in the same order, and reach the same outcomes.
//
// Nothing here throws: what can fail returns a status. docs/cpp.md lists the codes, and shows whole trainers. Shapes, offsets and strides
// are in elements, times in seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lamina/hooks.h"
#include "lamina/options.h"
#include "lamina/save_handle.h"
#include "lamina/tensor_view.h"

namespace lamina {

using Topology = std::vector<std::pair<std::string, int64_t>>;  // named mesh dimensions in order, such as ("dp", 2), ("tp", 2)

// Borrowed until Save returns.
struct SaveRequest {
  int64_t step = 0;  // at least the restored one, and rising
  std::span<const TensorView> tensors;
  std::span<const BlobView> blobs;
  Topology topology;  // the same on all ranks; may be empty
  // Not OK: this rank could not make views of its state, and why. The save fails on all ranks by that, at once.
  absl::Status refused = {};
};

struct StoredTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> global_shape;
  std::string alias_of;  // the entry that it shares memory with; empty: none
};

struct StoredBlob {
  std::string name;
  int32_t rank = 0;  // that handed it over
  std::string bytes;
};

// A step that a restore did not take, and why.
struct PassedOver {
  int64_t step = -1;  // -1: the log's newest record is damaged, so that it is not known what it committed
  std::string reason;
};

// What a restore found.
struct RestoreInfo {
  std::optional<int64_t> step;  // nullopt: the root holds no commit, and nothing was touched
  int64_t next_step = 0;        // where training goes on
  int32_t rank_count = 0;       // of the job that saved
  Topology topology;            // of the job that saved
  std::vector<int64_t> line;    // steps of the line, newest first
  std::vector<StoredBlob> blobs;
  std::vector<PassedOver> passed_over;  // in the order tried; the same on all ranks
};

// A restore under way. Used from one thread. Ends when End or Fail was called, or Fill returned a status.
class RestoreSession {
 public:
  virtual ~RestoreSession() = default;
  virtual bool found() const = 0;  // false: the root holds no commit; nothing more to do
  virtual int64_t step() const = 0;
  virtual int32_t rank_count() const = 0;  // of the job that saved
  virtual const Topology& topology() const = 0;
  virtual const std::vector<int64_t>& line() const = 0;            // steps of the line, newest first
  virtual const std::vector<PassedOver>& passed_over() const = 0;  // so far, in the order tried; the same on all ranks
  virtual const std::vector<StoredTensor>& tensors() const = 0;
  virtual const std::vector<StoredBlob>& blobs() const = 0;
  // Whether the step has as many bytes of this tensor as its shape claims: ask before memory is taken because of that shape. Reads its
  // chunk tables, once for each call. false: they are damaged, and Fill, whatever its targets, is about to find so. NotFound for another
  // name.
  virtual absl::StatusOr<bool> Holds(std::string_view name) = 0;

  enum class Progress { kFilled, kOlder };
  // Collective. Checks names, shapes and dtypes, reads and checks all bytes, and only then writes into the targets' memory. kOlder: some
  // rank found the step damaged and the session stands at the next older one (look at tensors() and blobs() again); nothing was written. A
  // status is that of the first rank that failed, the same on all ranks; targets are untouched unless the message says that they are
  // filled, or partly filled.
  virtual absl::StatusOr<Progress> Fill(std::span<const TensorView> targets) = 0;
  // Collective, once Fill has returned kFilled and what the tensors do not hold is put back too: the job goes on from this step, and the
  // log rolls back to it where it is not the newest. A status is the same on all ranks; the job goes on from no step then.
  virtual absl::Status End() = 0;
  // Collective in place of Fill or End: tells the other ranks that this one cannot go on, and why. Returns what they see.
  virtual absl::Status Fail(const absl::Status& why) = 0;
};

// Used from one thread, the training thread; Abandon alone may be called from any. In a forked child an engine, its handles
// and its sessions are inert: every call is FailedPrecondition, and destroying them does nothing.
class Engine {
 public:
  // The engine of this rank on this machine's files and memory. Tells of what happens to `hooks`, in order, on one thread.
  //
  // Collective when rank_count is more than 1: the ranks find each other in `coordination_dir`, and it returns when all have come.
  // DeadlineExceeded when they have not after begin_timeout_s; names those that are missing. InvalidArgument for bad options, or ranks that
  // disagree on rank_count. Touches the root no sooner than the first Restore or Save.
  //
  // Destruction waits for saves in flight, for exit_grace_s at most, and gives up what is left. Handles may outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Open(const Options& options, std::vector<std::shared_ptr<Hook>> hooks = {},
                                                      std::vector<std::shared_ptr<VerdictHook>> verdict_hooks = {});

  virtual ~Engine() = default;

  // Copies what this rank writes and returns; the rest happens in the background. Held while more than saves_in_flight_max saves are under
  // way. A status: this save was not begun, on any rank: bad order of steps, a closed engine, a rank that never came to the first one, a
  // root that holds steps already, a restore before it that failed with its targets filled. All else, a newer incarnation included, is the
  // handle's.
  virtual absl::StatusOr<std::shared_ptr<SaveHandle>> Save(const SaveRequest& request) = 0;
  // Collective. Settles the saves in flight, then stands at `step`, or at the newest step of the line that proves whole. NotFound for an
  // unknown step.
  virtual absl::StatusOr<std::unique_ptr<RestoreSession>> BeginRestore(std::optional<int64_t> step) = 0;
  // Collective. BeginRestore and Fill for those who know by name what they want: fills `targets`, of any sharding, from `step`, or from the
  // newest step of the line that proves whole. Strict: InvalidArgument, the same on all ranks, names every target that the step lacks or
  // holds with another dtype or shape, and every entry of the step that is no rank's target; an alias counts with the entry whose memory it
  // shares. Nothing is touched then. The rest is as BeginRestore and Fill say.
  virtual absl::StatusOr<RestoreInfo> Restore(std::span<const TensorView> targets, std::optional<int64_t> step = std::nullopt) = 0;
  // Returns when the memory of tensors that were handed to Save may be changed. Save has copied them by the time it returns, so this
  // returns at once. FailedPrecondition when the engine is closed.
  virtual absl::Status Fence() = 0;
  // Not collective. Waits until this rank's saves have an outcome and have left storage, at most `grace_s` (negative: as long as it
  // takes): then DeadlineExceeded, and it may be called again. No save or restore begins after the first call. Unavailable when all saves
  // have an outcome and storage does not answer for seconds after that: what hangs there is left behind.
  virtual absl::Status Close(double grace_s) = 0;
  // Closes, and gives up the saves that have not voted yet: they fail as Cancelled. For a program that has to end.
  virtual void Abandon() = 0;
};

}  // namespace lamina
