// Processes beside the jobs of a simulated history: readers, and gc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "env/sim_env.h"
#include "sim/history_job.h"

namespace lamina::sim {

// Reads every step that is listed, twice.
struct ReaderPlan {
  int64_t delay_ns = 0;
  int64_t linger_ns = 0;  // between opening a step and reading it
  bool may_write = true;  // without it nobody knows that it reads
};

// What a reader was told of one step.
struct StepRead {
  absl::Status status = {};
  Seen seen = {};
};

struct Reading {
  ReaderPlan plan;
  env::SimProcess* process = nullptr;
  absl::Status status = absl::UnknownError("did not end");
  std::vector<StepRead> steps = {};
};

struct GcPlan {
  enum class Kind { kRetire, kDropStep, kPin, kLetGo };
  Kind kind = Kind::kRetire;
  int64_t delay_ns = 0;
  int64_t rounds = 1;  // the later ones sweep only
  int64_t between_ns = 0;
  int32_t keep = 0;
  double gc_grace_s = 600;
  double abandoned_grace_s = 604800;
  uint64_t pick = 0;      // which of the steps
  int64_t pin_count = 1;  // by turns with letting go, a record each
  bool dry_run = false;
};

struct Collecting {
  GcPlan plan;
  env::SimProcess* process = nullptr;
  absl::Status status = absl::UnknownError("did not end");
  uint64_t incarnation = 0;  // that held the root when it began; 0: none did
};

// `look` is asked each time that the reader is told something.
std::shared_ptr<Reading> StartReader(env::SimWorld& world, const std::string& name, const ReaderPlan& plan, Look look);
std::shared_ptr<Collecting> StartGc(env::SimWorld& world, const std::string& name, const GcPlan& plan);

}  // namespace lamina::sim
