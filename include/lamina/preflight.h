// What a machine and a root are fit for, tried before the first step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lamina/options.h"

namespace lamina {

enum class FindingLevel { kOk, kWarn, kFail };  // kWarn: works, but costs or endangers something; kFail: saves will fail

// What one check found.
struct Finding {
  std::string name;
  FindingLevel level = FindingLevel::kOk;
  std::string found;
  std::string expected;                           // empty when `found` speaks for itself
  std::string advice;                             // what to do about it; empty when nothing is to be done
  double badness = 0;                             // between ranks that found different figures, the larger one counts
  absl::StatusCode code = absl::StatusCode::kOk;  // of kFail: what a save would fail with
};

// Bytes of the state; 0: not known.
struct StateSize {
  int64_t job_bytes = 0;   // of all ranks, what several of them hold once: what a save writes
  int64_t rank_bytes = 0;  // of them, what this rank writes
};

// Tries root and machine for saves with these options: a second or two, some tens of megabytes written and removed. Creates no root. What
// it cannot try, because something before it failed, it leaves out.
std::vector<Finding> Preflight(const Options& options, const StateSize& size);

}  // namespace lamina
