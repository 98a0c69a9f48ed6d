// What can be set. Each option: meaning, unit, default, range. docs/options.md lists the same.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lamina {

enum class Mode { kTrain, kRead };  // kRead never claims the root and never writes a step

struct Options {
  std::string root;  // path of the root directory; its parent must exist
  Mode mode = Mode::kTrain;
  int32_t rank = 0;  // 0 <= rank < rank_count
  int32_t rank_count = 1;
  int32_t local_rank_count = 1;  // ranks of the job on this machine, which share its memory; >= 1
  std::string run_id;            // names the job across relaunches; empty: not known
  std::string expect_store;      // the id that the root must have; empty: any, also a new one
  bool takeover = false;         // take the root from a trainer that still lives
  int32_t keep = 0;              // steps of the line that stay when a newer one is durable, pinned ones apart; 0: all
  // Window of this rank. 0: 1.1 times the bytes of the first state for each save that may be in flight, at most its part of 40 % of free
  // memory. Where it holds one copy alone, a save waits while another one is under way.
  int64_t memory_bytes = 0;
  int32_t failures_tolerated = 3;     // consecutive failed saves that training survives; >= 0
  double save_timeout_s = 0;          // 0: the larger of 600 and 10 times the last save
  double begin_timeout_s = 60;        // a rank that has not come to a save by then is named; > 0
  double exit_grace_s = 30;           // what an exit under an exception waits at most; >= 0
  double beat_s = 2;                  // a rank says this often that it lives while a save runs; > 0
  double beat_timeout_s = 20;         // no beat for this long fails the save; > beat_s
  double restore_retry_s = 30;        // how long missing or stale files are tried again; >= 0
  double gc_grace_s = 600;            // files of a dropped step stay so long for readers that cannot register; >= 0
  double abandoned_grace_s = 604800;  // with `keep`, steps stay so long after a roll-back took them off the line, a week; >= 0
  double restore_seconds_max = 3600;  // a restore that takes longer fails, also where storage hangs; > 0
  double verdict_timeout_s = 30;      // what a hook that is asked has to answer in; > 0
  int32_t saves_in_flight_max = 2;    // 1 or 2
  int32_t io_threads = 2;             // per rank; 1 to 64
  std::string coordination_dir;     // where the ranks of a C++ job find each other, a path that all of them see; Engine::Open alone uses it
  std::string coordination_prefix;  // starts every key: one nonce per job. For Engine::Open a name, which jobs that share a directory need

  // InvalidArgument names the option, its value and its range.
  absl::Status Validate() const;
  // Sets each option that has a LAMINA_<NAME> variable. InvalidArgument names a variable that does not parse. The only reader of the
  // environment.
  absl::Status FromEnvironment();
};

}  // namespace lamina
