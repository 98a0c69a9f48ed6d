// What can go wrong in a simulated history, by name.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lamina::sim {

enum class FaultKind {
  kDeath,
  kNodeDeath,
  kPowerCut,
  kPause,
  kPauseLeader,
  kPauseJob,
  kPauseReader,
  kPauseGc,
  kDeadPeer,
  kLatePeer,
  kSlowPeer,
  kRival,
  kStoreGone,
  kStoreSlow,
  kShortWrites,
  kLatency,
  kHang,
  kIoError,
  kNoSpace,
  kQuota,
  kStaleHandle,
  kFailedSync,
  kFullDisk,
  kLostAnswer,
  kStaleNames,
  kStaleLists,
  kBitRot,
  kMisdirected,
  kLateCopies,
};

struct FaultKindInfo {
  FaultKind kind;
  std::string_view name;
  std::string_view text;
};

// All of them, in the order above; docs/simulation.md lists the same.
std::span<const FaultKindInfo> FaultKinds();
std::string_view NameOf(FaultKind kind);

// "all", "none", or names with commas between them. InvalidArgument names the word and what there is.
absl::StatusOr<std::set<FaultKind>> ParseFaultKinds(std::string_view text);

}  // namespace lamina::sim
