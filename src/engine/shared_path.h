// Whether all ranks of a job see one and the same root. Found before the claim and before the first byte of a save: ranks that write to
// disks of their own would only find out at their next start.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/agreement.h"
#include "engine/runtime.h"
#include "format/store_header.h"
#include "tier/log.h"

namespace lamina::engine {

// Collective, on the callers' threads. In train mode the leader makes the root and a probe file in it, all ranks read that, and the first
// rank of each machine writes one that the leader reads: both ways, since an overlay may show what lies below and keep what is written to
// itself. In read mode nothing is written: all ranks read the file LAMINA. What is not seen is asked for again, as on a network file
// system. Unimplemented naming ranks and hosts where the path is not shared; the first rank's `mine` that is not OK; else what hindered a
// rank.
absl::Status CheckSharedPath(const Options& options, const Runtime& runtime, Agreement& agreement, const std::string& key,
                             const std::string& what, const absl::Status& mine);

// The store that the root holds; a trainer makes one where there is none, unless one is expected. NotFound where there is none,
// FailedPrecondition where there is another than is expected.
absl::StatusOr<format::StoreHeader> OpenRoot(const Options& options, tier::Log& log);

}  // namespace lamina::engine
