// Fills a caller's tensors from one committed step: plans what to read, reads and checks it, copies it. Touches the targets in Fill alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/step_reader.h"
#include "env/env.h"
#include "env/sync.h"
#include "lamina/tensor_view.h"
#include "plan/restore_plan.h"

namespace lamina::engine {

class Filler {
 public:
  // `env` and the memory of the targets are borrowed. `task_count` threads read at once.
  Filler(env::Env& env, std::shared_ptr<StepReader> reader, std::span<const TensorView> targets, int32_t task_count);

  // What PlanRestore finds wrong with the targets, or the step's chunk tables.
  absl::Status Plan();
  // Reads and checks every chunk that is needed; keeps none.
  absl::Status Check();
  // Reads and checks them once more, now from the page cache, and copies them into the targets. After a failure the targets are partly
  // filled.
  absl::Status Fill();
  // From any thread: from its return on no target is touched any more, whatever still reads. Fill fails then.
  void LeaveTargets();
  int64_t bytes() const;  // of the chunks that are read

 private:
  // The chunks of a table from the first that is wanted to the last.
  struct TablePart {
    size_t first = 0;
    std::vector<format::ChunkRecord> chunks;
  };
  // A chunk that is read. As small as may be: there may be many millions of them.
  struct ChunkTask {
    uint32_t read = 0;   // what it is for
    uint32_t chunk = 0;  // of that one's part of its table
  };

  const format::CatalogTensor& TensorOf(const plan::BoxRead& read) const;
  format::StoredBox StoredOf(const plan::BoxRead& read) const;
  absl::Status AddChunks(size_t ordinal);
  const format::ChunkRecord& RecordOf(const ChunkTask& task) const { return tables_[task.read].chunks[task.chunk]; }
  absl::Status Read(const ChunkTask& task, std::span<std::byte> raw);
  void Copy(const ChunkTask& task, std::span<const std::byte> raw);

  env::Env& env_;
  const std::shared_ptr<StepReader> reader_;
  const std::vector<TensorView> targets_;
  const int32_t task_count_;
  std::vector<plan::BoxRead> reads_;
  std::vector<TablePart> tables_;  // of each read
  std::vector<ChunkTask> tasks_;

  bool BeginCopy();
  void EndCopy();

  env::Mutex mutex_;
  env::CondVar copied_;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  int32_t copying_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lamina::engine
