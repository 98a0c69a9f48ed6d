// What ranks tell one another during a save, as bytes for the coordinator. A text that cannot be read is an Internal status.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "format/chunk.h"
#include "format/paths.h"
#include "lamina/save_handle.h"

namespace lamina::engine {

// Every rank to the leader: its snapshot is taken, or why not.
struct Ready {
  absl::Status status;
  format::Digest plan_digest;        // of the plan the snapshot was taken by
  bool description_changed = false;  // what it holds now is not what that plan knows; it has copied everything
};

// The leader to all: go on, or look at the outcome.
struct Go {
  bool proceed = false;
  bool plan_anew = false;
  format::AttemptId attempt;
};

struct VotedBlob {
  std::string name;
  uint32_t table = 0;
  uint64_t bytes = 0;
};

// Every rank to the leader: its pack is durable.
struct Vote {
  format::Digest plan_digest;
  format::Digest nonce;
  format::Digest index_digest;
  uint64_t pack_bytes = 0;
  uint64_t chunk_bytes = 0;
  format::Digest tree_digest;                   // of the plain values, which must be alike on all ranks
  std::vector<format::Digest> replica_digests;  // in the order of plan::RankPlan::replicas; zero: not known
  std::vector<VotedBlob> blobs;
  SaveTotals totals;
};

inline constexpr uint64_t kUnknownCommit = UINT64_MAX;  // committed by a record whose number could not be read, or perhaps committed

// The leader to all: how the save ended.
struct Ended {
  enum class Kind : uint8_t { kCommitted, kAborted, kSkipped };
  Kind kind = Kind::kAborted;
  absl::Status cause;  // of an abort
  std::string reason;  // of a skip
  uint64_t commit = 0;
  SaveTotals total;
  absl::Status fence;  // Aborted: whatever became of this save, a newer incarnation has the root, and the job saves no more

  // It can never commit, and no newer incarnation is there to remove its files.
  bool SettledAgainst() const { return kind != Kind::kCommitted && commit != kUnknownCommit && fence.ok(); }
};

std::string Encode(const Ready& ready);
std::string Encode(const Go& go);
std::string Encode(const Vote& vote);
std::string Encode(const Ended& ended);
absl::StatusOr<Ready> DecodeReady(std::string_view text);
absl::StatusOr<Go> DecodeGo(std::string_view text);
absl::StatusOr<Vote> DecodeVote(std::string_view text);
absl::StatusOr<Ended> DecodeEnded(std::string_view text);

}  // namespace lamina::engine
