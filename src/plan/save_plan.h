// Who writes which box. Pure, and the same on every rank that has the same descriptions, so that ranks agree without talking.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "format/catalog.h"
#include "plan/description.h"

namespace lamina::plan {

// A box of this rank: entry and box ordinals of its own description.
struct BoxReference {
  int32_t entry = 0;
  int32_t box = 0;
  bool operator==(const BoxReference&) const = default;
};

// A box that several ranks hold. The owner writes it, all of them hash it.
struct ReplicaBox {
  BoxReference box;   // this rank's
  int32_t group = 0;  // ordinal in SavePlan::replica_groups
  bool operator==(const ReplicaBox&) const = default;
};

struct RankPlan {
  std::vector<BoxReference> writes;  // in the order of the pack; the n-th is chunk table n of this writer's index
  std::vector<ReplicaBox> replicas;  // boxes to hash: those it writes and those it only holds
  int64_t written_bytes = 0;
};

struct ReplicaGroup {
  std::string name;  // of the entry
  Box box;
  std::vector<int32_t> ranks;  // ascending; all hold the box
  int32_t owner = 0;
  bool may_differ = false;  // then differing is told, and no error
};

struct SavePlan {
  std::vector<RankPlan> ranks;
  std::vector<ReplicaGroup> replica_groups;
  std::vector<format::CatalogTensor> tensors;  // sorted by name; StoredBox::writer is the rank
  int64_t state_bytes = 0;                     // of the job, each box once, aliases once
  format::Digest digest;                       // of the whole plan
};

// Every tensor's boxes must cover its shape exactly, equal boxes of several ranks being replicas. Replicas are owned so that bytes are even
// over the ranks (replicas_may_differ, said by any of them: by the lowest rank). Boxes without elements are written by nobody.
// InvalidArgument names the entry and: ranks whose dtype, shape or alias differ; a hole; two ranks whose boxes overlap without being equal.
// Near linear in the number of boxes. `copied_all[r]` false: rank r has copied only what `previous` made it write, so it can own nothing
// else; a box that no such rank can write is FailedPrecondition. Empty: all have copied all.
absl::StatusOr<SavePlan> PlanSave(std::span<const RankDescription> descriptions, const std::vector<bool>& copied_all = {},
                                  const SavePlan* previous = nullptr, std::span<const RankDescription> previous_descriptions = {});

}  // namespace lamina::plan
