#include "sim/fault_kinds.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lamina::sim {
namespace {

constexpr FaultKindInfo kFaultKinds[] = {
    {FaultKind::kDeath, "death", "a rank's process dies; the others run on"},
    {FaultKind::kNodeDeath, "node-death", "all processes of a host die, and what they wrote unsynced may be lost"},
    {FaultKind::kPowerCut, "power-cut", "everything dies; what was not synced is kept, lost, torn or reordered"},
    {FaultKind::kPause, "pause", "a rank sleeps, and wakes when the others are done, or in a later launch"},
    {FaultKind::kPauseLeader, "pause-leader", "rank 0 does"},
    {FaultKind::kPauseJob, "pause-job", "the whole job does, while it is launched anew"},
    {FaultKind::kPauseReader, "pause-reader", "who reads beside the job does"},
    {FaultKind::kPauseGc, "pause-gc", "gc does, while it drops and deletes"},
    {FaultKind::kDeadPeer, "dead-peer", "a rank never comes"},
    {FaultKind::kLatePeer, "late-peer", "a rank comes seconds late to each of its calls"},
    {FaultKind::kSlowPeer, "slow-peer", "a rank's file operations take long"},
    {FaultKind::kRival, "rival", "the job is launched twice at the same time"},
    {FaultKind::kStoreGone, "store-gone", "the coordinator stops answering, for a while or for good"},
    {FaultKind::kStoreSlow, "store-slow", "each of its answers takes long"},
    {FaultKind::kShortWrites, "short-writes", "writes go to the disk in two parts"},
    {FaultKind::kLatency, "latency", "file operations take milliseconds, ranks drift apart"},
    {FaultKind::kHang, "hang", "a file operation hangs for seconds or for longer than a save may take"},
    {FaultKind::kIoError, "eio", "file operations fail with EIO, once or for long"},
    {FaultKind::kNoSpace, "enospc", "they fail with ENOSPC"},
    {FaultKind::kQuota, "edquot", "they fail with EDQUOT"},
    {FaultKind::kStaleHandle, "estale", "they fail with ESTALE"},
    {FaultKind::kFailedSync, "failed-sync", "syncs of files or directories fail, and the pages are clean afterwards"},
    {FaultKind::kFullDisk, "full-disk", "the disk is full, for a while or for good"},
    {FaultKind::kLostAnswer, "lost-answer",
     "an operation takes effect and fails all the same: EEXIST of its own link, EIO, ENOENT of its own unlink"},
    {FaultKind::kStaleNames, "stale-names", "other processes do not find a new name for seconds (NFS)"},
    {FaultKind::kStaleLists, "stale-lists", "other processes list old names and not new ones for seconds (NFS)"},
    {FaultKind::kBitRot, "bit-rot", "a byte of a file changes on disk"},
    {FaultKind::kMisdirected, "misdirected", "a write lands elsewhere in its file or in another one"},
    {FaultKind::kLateCopies, "late-copies", "the device finishes its copies late and out of order, over poison"},
};

}  // namespace

std::span<const FaultKindInfo> FaultKinds() { return kFaultKinds; }

std::string_view NameOf(FaultKind kind) { return kFaultKinds[static_cast<size_t>(kind)].name; }

absl::StatusOr<std::set<FaultKind>> ParseFaultKinds(std::string_view text) {
  std::set<FaultKind> kinds;
  if (text == "none") return kinds;
  for (const absl::string_view word : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    size_t found = 0;
    for (const FaultKindInfo& info : kFaultKinds) {
      if (word != "all" && word != absl::string_view(info.name.data(), info.name.size())) continue;
      kinds.insert(info.kind);
      ++found;
    }
    if (found > 0) continue;
    std::vector<std::string> names;
    for (const FaultKindInfo& info : kFaultKinds) names.emplace_back(info.name);
    return absl::InvalidArgumentError(
        absl::StrCat("there is no fault kind '", word, "'; there are: all, none, ", absl::StrJoin(names, ", ")));
  }
  return kinds;
}

}  // namespace lamina::sim
