#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine.h"
#include "engine/agreement.h"
#include "engine/collect.h"
#include "engine/store.h"
#include "errors.h"
#include "gil.h"
#include "machine.h"
#include "tensor.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT: the literals are how keyword arguments are written

constexpr int32_t kReadThreads = 2;

class PyStore {
 public:
  explicit PyStore(const std::string& root) : machine_(root, kReadThreads, nullptr) {
    store_ = ValueOrRaise(WithoutGil([&] { return engine::Store::Open(machine_.env(), machine_.tier()); }));
  }

  std::string Id() const { return format::ToString(store_->header().store_id); }
  py::list Steps(bool all) {
    const auto steps = ValueOrRaise(WithoutGil([&] { return store_->Steps(all); }));
    py::list list;
    for (const engine::ListedStep& step : steps) {
      list.append(py::dict("step"_a = step.entry.attempt.step, "commit"_a = step.entry.commit, "parent"_a = step.entry.parent,
                           "path"_a = format::AttemptPath(step.entry.attempt), "committed_ns"_a = step.entry.committed_ns,
                           "state_bytes"_a = step.entry.state_bytes, "stored_bytes"_a = step.entry.stored_bytes, "is_head"_a = step.is_head,
                           "on_line"_a = step.on_line, "pinned"_a = step.entry.state == format::StepState::kPinned));
    }
    return list;
  }

  std::string PassedOver() {
    return ValueOrRaise(WithoutGil([&] { return store_->PassedOver(); }));
  }

  py::dict Catalog(std::optional<int64_t> step) {
    const std::shared_ptr<engine::StepReader> reader = Reader(step);
    const format::Catalog& catalog = reader->catalog();
    py::list tensors;
    for (const format::CatalogTensor& tensor : catalog.tensors) {
      tensors.append(py::make_tuple(TextToPython(tensor.name), std::string(DTypeName(tensor.dtype)), ShapeToPython(tensor.global_shape),
                                    TextToPython(tensor.alias_of)));
    }
    py::list packs;
    for (const format::CatalogWriter& writer : catalog.writers) {
      packs.append(py::dict("path"_a = format::PackPath(writer.attempt, writer.writer), "bytes"_a = writer.pack_bytes));
    }
    return py::dict("step"_a = catalog.attempt.step, "path"_a = format::AttemptPath(catalog.attempt), "rank_count"_a = catalog.rank_count,
                    "topology"_a = TopologyToPython(catalog.topology), "tensors"_a = tensors, "packs"_a = packs);
  }

  py::bytearray ReadTensor(int64_t step, const py::str& text) {
    const std::string name = TextFromPython(text);
    const std::shared_ptr<engine::StepReader> reader = Reader(step);
    const std::string bytes = ValueOrRaise(WithoutGil([&] { return store_->ReadTensor(*reader, name); }));
    return py::bytearray(bytes);
  }

  py::list ReadBlobs(int64_t step) {
    const std::shared_ptr<engine::StepReader> reader = Reader(step);
    py::list list;
    for (const format::CatalogBlob& blob : reader->catalog().blobs) {
      const std::string bytes = ValueOrRaise(WithoutGil([&] { return reader->ReadBlob(blob); }));
      list.append(py::make_tuple(TextToPython(blob.name), blob.rank, py::bytes(bytes)));
    }
    return list;
  }

  // Ends this reader's registration with the step that it holds open.
  void CloseStep() {
    WithoutGil([this] { reader_.reset(); });
  }

  py::dict Verify(std::optional<int64_t> step, bool full) {
    const engine::Verification found = ValueOrRaise(WithoutGil([&] { return store_->Verify(step, full); }));
    py::list problems;
    for (const engine::Problem& problem : found.problems) {
      problems.append(py::dict("file"_a = TextToPython(problem.file), "entry"_a = TextToPython(problem.entry),
                               "chunk"_a = problem.chunk < 0 ? py::object(py::none()) : py::object(py::int_(problem.chunk)),
                               "message"_a = TextToPython(problem.message)));
    }
    return py::dict("ok"_a = found.problems.empty(), "problems"_a = problems, "steps"_a = found.steps, "chunks"_a = found.chunks,
                    "bytes"_a = found.bytes);
  }

 private:
  // The last step that was looked at stays open, so that tensor after tensor reads its catalog once.
  std::shared_ptr<engine::StepReader> Reader(std::optional<int64_t> step) {
    if (reader_ == nullptr || !step.has_value() || step != step_) {
      reader_ = ValueOrRaise(WithoutGil([&]() -> absl::StatusOr<std::shared_ptr<engine::StepReader>> { return store_->OpenStep(step); }));
      step_ = reader_->catalog().attempt.step;
    }
    return reader_;
  }

  Machine machine_;
  std::unique_ptr<engine::Store> store_;
  std::optional<int64_t> step_;
  std::shared_ptr<engine::StepReader> reader_;
};

class PyCollector {
 public:
  explicit PyCollector(const std::string& root) : machine_(root, kReadThreads, nullptr), collector_(machine_.env(), machine_.tier()) {}

  py::dict Collect(std::optional<int64_t> step, int64_t keep, std::optional<double> abandoned_grace_s, double gc_grace_s, bool dry_run) {
    engine::CollectRequest request;
    request.step = step;
    request.policy.keep = keep;
    if (abandoned_grace_s.has_value()) request.policy.abandoned_ns = engine::SecondsToNs(*abandoned_grace_s);
    request.reader_grace_ns = engine::SecondsToNs(gc_grace_s);
    request.dry_run = dry_run;
    const engine::Collected collected = ValueOrRaise(WithoutGil([&] { return collector_.Collect(request); }));
    py::list dropped;
    for (const format::StepEntry& entry : collected.dropped) {
      dropped.append(py::dict("step"_a = entry.attempt.step, "path"_a = format::AttemptPath(entry.attempt)));
    }
    py::list removed;
    for (const tier::ObjectInfo& object : collected.sweep.removed) removed.append(py::make_tuple(TextToPython(object.name), object.bytes));
    py::list waiting;
    for (const tier::WaitingStep& each : collected.sweep.waiting) {
      py::list readers;
      for (const std::string& reader : each.readers) readers.append(TextToPython(reader));
      waiting.append(py::dict("step"_a = each.attempt.step, "path"_a = format::AttemptPath(each.attempt), "bytes"_a = each.bytes,
                              "grace_s"_a = engine::NsToSeconds(each.grace_left_ns), "readers"_a = readers));
    }
    return py::dict("dropped"_a = dropped, "removed"_a = removed, "waiting"_a = waiting, "disk_bytes"_a = collected.usage.disk_bytes,
                    "needed_bytes"_a = collected.usage.needed_bytes);
  }

  void Pin(int64_t step, bool pinned) {
    RaiseIfError(WithoutGil([&] { return collector_.Pin(step, pinned); }));
  }

 private:
  Machine machine_;
  engine::Collector collector_;
};

}  // namespace

void BindStore(py::module_& module) {
  py::class_<PyStore>(module, "Store")
      .def(py::init<const std::string&>(), "root"_a)
      .def("id", &PyStore::Id)
      .def("steps", &PyStore::Steps, "all"_a)
      .def("passed_over", &PyStore::PassedOver)
      .def("catalog", &PyStore::Catalog, "step"_a)
      .def("read_tensor", &PyStore::ReadTensor, "step"_a, "name"_a)
      .def("read_blobs", &PyStore::ReadBlobs, "step"_a)
      .def("close_step", &PyStore::CloseStep)
      .def("verify", &PyStore::Verify, "step"_a, "full"_a);
  py::class_<PyCollector>(module, "Collector")
      .def(py::init<const std::string&>(), "root"_a)
      .def("collect", &PyCollector::Collect, "step"_a, "keep"_a, "abandoned_grace_s"_a, "gc_grace_s"_a, "dry_run"_a)
      .def("pin", &PyCollector::Pin, "step"_a, "pinned"_a);
}

}  // namespace lamina::bindings
