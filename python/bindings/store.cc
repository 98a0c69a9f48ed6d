#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine.h"
#include "engine/agreement.h"
#include "engine/collect.h"
#include "engine/store.h"
#include "errors.h"
#include "gil.h"
#include "machine.h"
#include "of_this_process.h"
#include "tensor.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT: the literals are how keyword arguments are written

constexpr int32_t kReadThreads = 2;

class PyStore {
 public:
  explicit PyStore(const std::string& root) : parts_(std::make_shared<Parts>(root)) {
    Parts& parts = *parts_.Here();
    parts.store = ValueOrRaise(WithoutGil([&] { return engine::Store::Open(parts.machine.env(), parts.machine.tier()); }));
  }

  std::string Id() const { return format::ToString(parts_.Here()->store->header().store_id); }
  py::list Steps(bool all) {
    const auto steps = Read([all](engine::Store& store) { return store.Steps(all); });
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
    return Read([](engine::Store& store) { return store.PassedOver(); });
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
    return py::bytearray(Read([reader, name](engine::Store& store) { return store.ReadTensor(*reader, name); }));
  }

  py::list ReadBlobs(int64_t step) {
    const std::shared_ptr<engine::StepReader> reader = Reader(step);
    py::list list;
    for (const format::CatalogBlob& blob : reader->catalog().blobs) {
      const std::string bytes = Read([reader, &blob](engine::Store&) { return reader->ReadBlob(blob); });
      list.append(py::make_tuple(TextToPython(blob.name), blob.rank, py::bytes(bytes)));
    }
    return list;
  }

  // Why the step that is held open may be deleted while it is read; empty: it is not. A root that may only be read is not written to.
  std::string Unprotected() const {
    const std::shared_ptr<engine::StepReader> reader = parts_.Here()->reader;
    const absl::Status status = reader == nullptr ? absl::OkStatus() : reader->registration();
    return absl::IsPermissionDenied(status) ? "" : std::string(status.message());
  }

  // Ends this reader's registration with the step that it holds open.
  void CloseStep() {
    if (!parts_.IsForked()) Replace(nullptr);
  }

  py::dict Verify(std::optional<std::vector<int64_t>> steps, bool full) {
    const engine::Verification found = Read([steps = std::move(steps), full](engine::Store& store) { return store.Verify(steps, full); });
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
  // `reader` is the last one: freed behind it, since that may end a registration with the root.
  struct Parts {
    explicit Parts(const std::string& root) : machine(root, kReadThreads, nullptr) {}
    Machine machine;
    std::unique_ptr<engine::Store> store;
    std::shared_ptr<engine::StepReader> reader;  // touched with the lock held
  };

  // What `read` finds; a signal's handler that raises leaves it behind, so it owns what it reads with.
  template <typename Reading>
  typename std::invoke_result_t<Reading, engine::Store&>::value_type Read(Reading read) const {
    return ValueOrRaise(WithSignals(OnSignal::kLeave, [parts = parts_.Here(), read = std::move(read)] { return read(*parts->store); }));
  }

  // The last step that was looked at stays open, so that tensor after tensor reads its catalog once.
  std::shared_ptr<engine::StepReader> Reader(std::optional<int64_t> step) {
    const std::shared_ptr<engine::StepReader> last = parts_.Here()->reader;
    if (last != nullptr && step.has_value() && *step == last->catalog().attempt.step) return last;
    std::shared_ptr<engine::StepReader> opened =
        Read([step](engine::Store& store) -> absl::StatusOr<std::shared_ptr<engine::StepReader>> { return store.OpenStep(step); });
    Replace(opened);
    return opened;
  }

  void Replace(std::shared_ptr<engine::StepReader> reader) {
    std::swap(reader, parts_.Here()->reader);
    WithoutGil([&] { reader.reset(); });
  }

  const OfThisProcess<Parts> parts_;
};

class PyCollector {
 public:
  explicit PyCollector(const std::string& root) : parts_(std::make_shared<Parts>(root)) {}

  py::dict Collect(std::optional<int64_t> step, int64_t keep, std::optional<double> abandoned_grace_s, double gc_grace_s, bool dry_run) {
    engine::CollectRequest request;
    request.step = step;
    request.policy.keep = keep;
    if (abandoned_grace_s.has_value()) request.policy.abandoned_ns = engine::SecondsToNs(*abandoned_grace_s);
    request.reader_grace_ns = engine::SecondsToNs(gc_grace_s);
    request.dry_run = dry_run;
    const engine::Collected collected =
        ValueOrRaise(WithSignals(OnSignal::kLeave, [parts = parts_.Here(), request] { return parts->collector.Collect(request); }));
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
    RaiseIfError(WithSignals(OnSignal::kWait, [parts = parts_.Here(), step, pinned] { return parts->collector.Pin(step, pinned); }));
  }

 private:
  struct Parts {
    explicit Parts(const std::string& root) : machine(root, kReadThreads, nullptr), collector(machine.env(), machine.tier()) {}
    Machine machine;
    engine::Collector collector;
  };

  const OfThisProcess<Parts> parts_;
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
      .def("unprotected", &PyStore::Unprotected)
      .def("close_step", &PyStore::CloseStep)
      .def("verify", &PyStore::Verify, "steps"_a, "full"_a);
  py::class_<PyCollector>(module, "Collector")
      .def(py::init<const std::string&>(), "root"_a)
      .def("collect", &PyCollector::Collect, "step"_a, "keep"_a, "abandoned_grace_s"_a, "gc_grace_s"_a, "dry_run"_a)
      .def("pin", &PyCollector::Pin, "step"_a, "pinned"_a);
}

}  // namespace lamina::bindings
