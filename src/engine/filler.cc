#include "engine/filler.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/memory.h"
#include "base/status.h"
#include "engine/scatter.h"
#include "env/sync.h"
#include "shard/box.h"

namespace lamina::engine {
namespace {

// Memory that one task uses for chunk after chunk: it stays in the cache, and no page is mapped twice.
class Scratch {
 public:
  std::span<std::byte> OfSize(size_t bytes) {
    if (bytes > bytes_) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      bytes_ = bytes;
    }
    return {memory_.get(), bytes};
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  size_t bytes_ = 0;
};

// Runs `work` on each of `count` items with `task_count` tasks; the first failure by order of items.
absl::Status ForEachInParallel(env::Env& env, int32_t task_count, size_t count, const std::function<absl::Status(size_t, Scratch&)>& work) {
  env::Mutex mutex(env);
  size_t next = 0;
  size_t failed_item = count;
  absl::Status failure;
  const auto run = [&] {
    Scratch scratch;
    while (true) {
      size_t item = 0;
      {
        env::MutexLock lock(mutex);
        if (next >= count || !failure.ok()) return;
        item = next++;
      }
      absl::Status status = base::WithinMemory([&] { return work(item, scratch); });
      env::MutexLock lock(mutex);
      if (!status.ok() && item < failed_item) {
        failed_item = item;
        failure = std::move(status);
      }
    }
  };
  {
    std::vector<std::unique_ptr<env::Task>> tasks;
    for (int32_t i = 1; i < task_count && static_cast<size_t>(i) < count; ++i) tasks.push_back(env.Start("lamina-read", run));
    run();  // all of it, where the system grants no further thread
    for (const std::unique_ptr<env::Task>& task : tasks) {
      if (task != nullptr) task->Join();
    }
  }
  return failure;
}

}  // namespace

Filler::Filler(env::Env& env, std::shared_ptr<StepReader> reader, std::span<const TensorView> targets, int32_t task_count)
    : env_(env), reader_(std::move(reader)), targets_(targets.begin(), targets.end()), task_count_(task_count), mutex_(env), copied_(env) {}

absl::Status Filler::Plan() {
  for (const TensorView& target : targets_) {
    for (const BoxView& box : target.boxes) {
      if (!IsWritable(box)) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", target.name, "' is an expanded tensor: several of its elements share memory, so it cannot be filled"));
      }
    }
  }
  LAMINA_ASSIGN_OR_RETURN(const plan::RankDescription description, plan::Describe(targets_, {}));
  LAMINA_ASSIGN_OR_RETURN(reads_, plan::PlanRestore(reader_->catalog(), description.entries));
  tables_.reserve(reads_.size());
  for (size_t i = 0; i < reads_.size(); ++i) LAMINA_RETURN_IF_ERROR(AddChunks(i));
  return absl::OkStatus();
}

absl::Status Filler::Check() {
  return ForEachInParallel(env_, task_count_, tasks_.size(), [this](size_t i, Scratch& scratch) -> absl::Status {
    return Read(tasks_[i], scratch.OfSize(RecordOf(tasks_[i]).raw_bytes));
  });
}

absl::Status Filler::Fill() {
  return ForEachInParallel(env_, task_count_, tasks_.size(), [this](size_t i, Scratch& scratch) -> absl::Status {
    const std::span<std::byte> bytes = scratch.OfSize(RecordOf(tasks_[i]).raw_bytes);
    LAMINA_RETURN_IF_ERROR(Read(tasks_[i], bytes));
    if (!BeginCopy()) return absl::CancelledError("the restore was given up");
    const absl::Cleanup end = [this] { EndCopy(); };
    Copy(tasks_[i], bytes);
    return absl::OkStatus();
  });
}

bool Filler::BeginCopy() {
  env::MutexLock lock(mutex_);
  if (!left_) ++copying_;
  return !left_;
}

void Filler::EndCopy() {
  env::MutexLock lock(mutex_);
  --copying_;
  if (left_) copied_.NotifyAll();
}

void Filler::LeaveTargets() {
  env::MutexLock lock(mutex_);
  left_ = true;
  while (copying_ > 0) copied_.Wait(mutex_);  // from memory to memory: that ends
}

int64_t Filler::bytes() const {
  int64_t bytes = 0;
  for (const ChunkTask& task : tasks_) bytes += RecordOf(task).raw_bytes;
  return bytes;
}

const format::CatalogTensor& Filler::TensorOf(const plan::BoxRead& read) const {
  return reader_->catalog().tensors[static_cast<size_t>(read.tensor)];
}

format::StoredBox Filler::StoredOf(const plan::BoxRead& read) const { return TensorOf(read).boxes[static_cast<size_t>(read.stored_box)]; }

absl::Status Filler::AddChunks(size_t ordinal) {
  const plan::BoxRead& read = reads_[ordinal];
  const format::StoredBox stored = StoredOf(read);
  const int64_t element_bytes = DTypeBytes(TensorOf(read).dtype);
  LAMINA_ASSIGN_OR_RETURN(
      const std::vector<format::ChunkRecord> chunks,
      reader_->Table(stored.writer, stored.table, shard::ElementCount(stored.box.extent) * element_bytes, element_bytes));
  const auto wanted = [&](const format::ChunkRecord& chunk) {
    return std::any_of(read.parts.begin(), read.parts.end(), [&](const plan::TargetPart& part) {
      return plan::ChunkTouches(stored.box, static_cast<int64_t>(chunk.element_begin), chunk.raw_bytes / element_bytes, part.common);
    });
  };
  const auto begin = std::find_if(chunks.begin(), chunks.end(), wanted);
  const auto end = std::find_if(chunks.rbegin(), std::make_reverse_iterator(begin), wanted).base();
  for (auto chunk = begin; chunk != end; ++chunk) {
    if (wanted(*chunk)) tasks_.push_back({static_cast<uint32_t>(ordinal), static_cast<uint32_t>(chunk - begin)});
  }
  tables_.push_back({static_cast<size_t>(begin - chunks.begin()), {begin, end}});
  return absl::OkStatus();
}

absl::Status Filler::Read(const ChunkTask& task, std::span<std::byte> raw) {
  const plan::BoxRead& read = reads_[task.read];
  return reader_->ReadChunk(StoredOf(read).writer, RecordOf(task), TensorOf(read).name, tables_[task.read].first + task.chunk, raw);
}

void Filler::Copy(const ChunkTask& task, std::span<const std::byte> raw) {
  const plan::BoxRead& read = reads_[task.read];
  const format::StoredBox stored = StoredOf(read);
  const int64_t element_bytes = DTypeBytes(TensorOf(read).dtype);
  for (const plan::TargetPart& part : read.parts) {
    const BoxView& target = targets_[static_cast<size_t>(part.entry)].boxes[static_cast<size_t>(part.box)];
    plan::ForEachRunOfChunk(
        stored.box, static_cast<int64_t>(RecordOf(task).element_begin), static_cast<int64_t>(raw.size()) / element_bytes, part.common,
        target.box, [&](int64_t chunk_element, int64_t target_element, int64_t count) {
          Scatter(target, element_bytes, target_element,
                  raw.subspan(static_cast<size_t>(chunk_element * element_bytes), static_cast<size_t>(count * element_bytes)));
        });
  }
}

}  // namespace lamina::engine
