// A random history of jobs on one root, from one seed: launches on varying numbers of ranks, saves, roll-backs, restarts, readers beside
// them, and whatever goes wrong meanwhile; with the invariants of docs/architecture.md checked after each launch and at the end.
// docs/simulation.md says how to use it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "env/sim_threads.h"
#include "sim/fault_kinds.h"

namespace lamina::sim {

struct HistoryOptions {
  uint64_t seed = 1;
  int32_t rank_count_max = 4;
  int32_t save_count = 6;  // of those asked for before the final launch
  std::set<FaultKind> faults;
  bool tell = false;  // fills HistoryOutcome::story
};

struct HistoryOutcome {
  absl::Status status;  // what broke
  uint64_t trace_hash = 0;
  int64_t op_count = 0;
  int64_t launch_count = 0;
  int64_t commit_count = 0;
  int64_t restore_count = 0;            // that a rank was told of, with a step in it
  int64_t drop_count = 0;               // steps that left the log by a drop
  int64_t deletion_count = 0;           // files of steps
  int64_t read_count = 0;               // steps that readers beside the jobs read whole
  int64_t late_read_count = 0;          // that were gone while they read
  std::map<FaultKind, int64_t> faults;  // launches that each was planned for
  double simulated_s = 0;
  std::string story;
};

// `threads` may be shared by histories that follow one another.
HistoryOutcome RunHistory(const HistoryOptions& options, env::SimThreads& threads);

}  // namespace lamina::sim
