#include "engine.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coord/in_process.h"
#include "engine/runtime.h"
#include "errors.h"
#include "gil.h"
#include "hooks.h"
#include "hooks/dispatcher.h"
#include "hooks/verdicts.h"
#include "lamina/engine.h"
#include "machine.h"
#include "of_this_process.h"
#include "options.h"
#include "store_coordinator.h"
#include "tensor.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT: the literals are how keyword arguments are written

constexpr int64_t kEventCapacity = 4096;
constexpr double kSliceS = 0.2;

const absl::Status& StatusOf(const absl::Status& status) { return status; }
const absl::Status& StatusOf(const absl::StatusOr<SaveReport>& report) { return report.status(); }

py::dict TotalsToPython(const SaveTotals& totals) {
  return py::dict("state_bytes"_a = totals.state_bytes, "written_bytes"_a = totals.written_bytes, "chunks_new"_a = totals.chunks_new,
                  "chunks_shared"_a = totals.chunks_shared, "chunks_dependent"_a = totals.chunks_dependent);
}

py::dict ReportToPython(const SaveReport& report) {
  py::dict fields = TotalsToPython(report.rank);
  fields["step"] = report.step;
  fields["outcome"] = report.outcome == Outcome::kCommitted ? "committed" : "skipped";
  fields["reason"] = TextToPython(report.reason);
  fields["hold_s"] = report.hold_s;
  fields["durable_s"] = report.durable_s;
  fields["stage_s"] = py::dict("copy"_a = report.stage_s);
  fields["total"] = TotalsToPython(report.total);
  return fields;
}

// Waits with the lock released, in slices, so that a signal's Python handler runs soon (Ctrl-C, a preemption notice). `wait` says
// DeadlineExceeded when its slice is over; once `done`, its answer is the outcome, whatever that is.
template <typename Wait, typename Done>
auto InSlices(std::optional<double> timeout_s, const Wait& wait, const Done& done) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begun = Clock::now();
  while (true) {
    const double passed_s = std::chrono::duration<double>(Clock::now() - begun).count();
    const double slice_s = timeout_s.has_value() ? std::clamp(*timeout_s - passed_s, 0.0, kSliceS) : kSliceS;
    auto result = WithoutGil([&] { return wait(slice_s); });
    if (!absl::IsDeadlineExceeded(StatusOf(result))) return result;
    if (done()) return wait(0);
    if (timeout_s.has_value() && passed_s + slice_s >= *timeout_s) return result;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

class PyTicket {
 public:
  explicit PyTicket(std::shared_ptr<SaveHandle> handle) : handle_(std::move(handle)) {}

  py::dict Wait(std::optional<double> timeout_s) { return ReportToPython(ValueOrRaise(WaitInSlices(timeout_s))); }
  bool Done() { return handle_->Done(); }
  py::object Exception() {
    const absl::Status status = WaitInSlices(std::nullopt).status();
    return status.ok() ? py::object(py::none()) : MakeError(status);
  }

 private:
  absl::StatusOr<SaveReport> WaitInSlices(std::optional<double> timeout_s) {
    return InSlices(
        timeout_s, [this](double slice_s) { return handle_->Wait(slice_s); }, [this] { return handle_->Done(); });
  }

  const std::shared_ptr<SaveHandle> handle_;
};

class PySession {
 public:
  explicit PySession(std::unique_ptr<RestoreSession> session) : session_(std::move(session)) {}

  RestoreSession& get() const { return *session_.Here(); }
  void KeepAlive(py::object engine) { engine_ = std::move(engine); }

  py::list Tensors() const {
    py::list list;
    for (const StoredTensor& tensor : get().tensors()) {
      list.append(py::make_tuple(TextToPython(tensor.name), std::string(DTypeName(tensor.dtype)), ShapeToPython(tensor.global_shape),
                                 TextToPython(tensor.alias_of)));
    }
    return list;
  }

  py::list PassedOver() const {
    py::list list;
    for (const lamina::PassedOver& each : get().passed_over()) list.append(py::make_tuple(each.step, TextToPython(each.reason)));
    return list;
  }

  py::list Blobs() const {
    py::list list;
    for (const StoredBlob& blob : get().blobs()) list.append(py::make_tuple(TextToPython(blob.name), blob.rank, py::bytes(blob.bytes)));
    return list;
  }

  bool Holds(const py::str& text) {
    const std::string name = TextFromPython(text);
    RestoreSession& session = get();
    return ValueOrRaise(WithSignals(OnSignal::kWait, [&] { return session.Holds(name); }));
  }

  bool Fill(const py::sequence& targets) {
    const std::vector<TensorView> views = TensorsFromPython(targets);
    RestoreSession& session = get();
    return ValueOrRaise(WithSignals(OnSignal::kWait, [&] { return session.Fill(views); })) == RestoreSession::Progress::kFilled;
  }

  void End() {
    RestoreSession& session = get();
    RaiseIfError(WithSignals(OnSignal::kWait, [&] { return session.End(); }));
  }

  void Fail(const std::string& class_name, const std::string& message) {
    RestoreSession& session = get();
    RaiseIfError(WithSignals(OnSignal::kWait, [&] { return session.Fail(StatusFromClassName(class_name, message)); }));
  }

 private:
  py::object engine_;  // outlives the session, which is declared behind it
  const OfThisProcess<RestoreSession> session_;
};

class PyEngine {
 public:
  // `asked`: the names of the hooks that are asked.
  PyEngine(const py::dict& options, std::shared_ptr<StoreQueue> queue, const std::vector<std::string>& asked) {
    parts_->queue = std::move(queue);
    std::shared_ptr<TestingEnv> testing;
    const Options known = OptionsFromPython(options, testing);
    parts_->machine = std::make_unique<Machine>(known.root, known.io_threads, std::move(testing));
    parts_->device = std::make_unique<device::HostDevice>(parts_->machine->env());
    if (parts_->queue != nullptr) {
      parts_->coordinator = std::make_unique<StoreCoordinator>(*parts_->queue);
    } else {
      parts_->coordinator = std::make_unique<coord::InProcessCoordinator>(parts_->machine->env(), parts_->hub);
    }
    // Of hooks in Python those that stall are the business of their own threads; the mailbox returns.
    parts_->dispatcher = std::make_unique<hooks::Dispatcher>(parts_->machine->env(), kEventCapacity, env::kForeverNs);
    parts_->dispatcher->AddHook(parts_->mailbox);
    RaiseIfError(parts_->dispatcher->Start());
    parts_->verdicts = std::make_unique<hooks::Verdicts>(parts_->machine->env(), static_cast<int64_t>(known.verdict_timeout_s * 1e9),
                                                         [dispatcher = parts_->dispatcher.get(), rank = known.rank](std::string line) {
                                                           Event event;
                                                           event.kind = EventKind::kFallback;
                                                           event.rank = rank;
                                                           event.cause = std::move(line);
                                                           dispatcher->Post(std::move(event));
                                                         });
    for (const std::string& name : asked) {
      parts_->verdicts->Add(name, parts_->asked.emplace_back(std::make_shared<VerdictMailbox>()));
    }
    parts_->engine = ValueOrRaise(engine::NewEngine(known, {parts_->machine->env(), parts_->machine->tier(), *parts_->coordinator,
                                                            *parts_->device, parts_->dispatcher.get(), parts_->verdicts.get()}));
  }

  ~PyEngine() {
    WithoutGil([this] {
      parts_->CloseMailboxes();
      if (parts_->engine == nullptr) return;
      parts_->engine->Abandon();
      // What hangs, in storage or in a beat, must not hang the program's end: what it stands on stays for as long as the process does.
      if (!parts_->engine->Close(0).ok() || parts_->engine->BeatHangs()) static_cast<void>(parts_.release());
    });
  }

  // `refused`: the class and the message of what kept this rank from describing its state.
  PyTicket Save(int64_t step, const py::sequence& tensors, const py::dict& blobs, const py::sequence& topology,
                const std::optional<std::pair<std::string, std::string>>& refused) {
    const std::vector<TensorView> views = TensorsFromPython(tensors);
    std::vector<BlobView> plain;
    for (const auto& [name, bytes] : blobs) plain.push_back({name.cast<std::string>(), bytes.cast<std::string>()});
    SaveRequest request{step, views, plain, TopologyFromPython(topology), absl::OkStatus()};
    if (refused.has_value()) request.refused = StatusFromClassName(refused->first, refused->second);
    return PyTicket(ValueOrRaise(WithSignals(OnSignal::kWait, [&] { return parts_->engine->Save(request); })));
  }

  std::unique_ptr<PySession> BeginRestore(std::optional<int64_t> step) {
    return std::make_unique<PySession>(ValueOrRaise(WithSignals(OnSignal::kWait, [&] { return parts_->engine->BeginRestore(step); })));
  }

  // After `grace_s` (None: until each save's own deadline) what is left is given up, so that the end of the program does not wait for it.
  void Close(std::optional<double> grace_s) {
    const absl::Status status = InSlices(
        grace_s, [this](double slice_s) { return parts_->engine->Close(slice_s); }, [] { return false; });
    WithoutGil([&] {
      if (!status.ok()) parts_->engine->Abandon();
      parts_->mailbox->LetPass();  // so that the dispatcher ends, whatever Python does
      parts_->dispatcher->Stop();
      parts_->CloseMailboxes();
    });
    RaiseIfError(status);
  }

  // A dict; None when nothing came in time; raises StopIteration when there will be no more.
  py::object NextEvent(double timeout_s) {
    const std::optional<Event> event = WithoutGil([&] { return parts_->mailbox->Next(timeout_s); });
    if (event.has_value()) return EventToPython(*event);
    if (parts_->mailbox->closed()) throw py::stop_iteration();
    return py::none();
  }

  // What the hook with that ordinal is asked: ("may_commit", step). As NextEvent.
  py::object NextQuestion(size_t hook, double timeout_s) {
    VerdictMailbox& mailbox = *parts_->asked.at(hook);
    const std::optional<VerdictMailbox::Question> question = WithoutGil([&] { return mailbox.Next(timeout_s); });
    if (question.has_value()) return py::make_tuple(question->name, question->step);
    if (mailbox.closed()) throw py::stop_iteration();
    return py::none();
  }

  void Answer(size_t hook, std::optional<std::string> refusal) { parts_->asked.at(hook)->Answer(std::move(refusal)); }

 private:
  // In the order of construction: what is later stands on what is before.
  struct Parts {
    std::shared_ptr<StoreQueue> queue;
    std::shared_ptr<EventMailbox> mailbox = std::make_shared<EventMailbox>();
    coord::InProcessHub hub;
    std::unique_ptr<Machine> machine;
    std::unique_ptr<device::HostDevice> device;
    std::unique_ptr<coord::Coordinator> coordinator;
    std::unique_ptr<hooks::Dispatcher> dispatcher;
    std::vector<std::shared_ptr<VerdictMailbox>> asked;
    std::unique_ptr<hooks::Verdicts> verdicts;
    std::unique_ptr<engine::CoreEngine> engine;

    void CloseMailboxes() const {
      mailbox->Close();
      for (const std::shared_ptr<VerdictMailbox>& each : asked) each->Close();
    }
  };

  std::unique_ptr<Parts> parts_ = std::make_unique<Parts>();
};

}  // namespace

void BindEngine(py::module_& module) {
  py::class_<PyTicket>(module, "SaveTicket")
      .def("wait", &PyTicket::Wait, "timeout_s"_a)
      .def("done", &PyTicket::Done)
      .def("exception", &PyTicket::Exception);
  py::class_<PySession>(module, "RestoreSession")
      .def_property_readonly("found", [](const PySession& session) { return session.get().found(); })
      .def_property_readonly("step", [](const PySession& session) { return session.get().step(); })
      .def_property_readonly("rank_count", [](const PySession& session) { return session.get().rank_count(); })
      .def_property_readonly("topology", [](const PySession& session) { return TopologyToPython(session.get().topology()); })
      .def_property_readonly("line", [](const PySession& session) { return session.get().line(); })
      .def("passed_over", &PySession::PassedOver)
      .def("tensors", &PySession::Tensors)
      .def("blobs", &PySession::Blobs)
      .def("holds", &PySession::Holds, "name"_a)
      .def("fill", &PySession::Fill, "targets"_a)
      .def("end", &PySession::End)
      .def("fail", &PySession::Fail, "error_class_name"_a, "message"_a);
  py::class_<PyEngine>(module, "Engine")
      .def(py::init<const py::dict&, std::shared_ptr<StoreQueue>, const std::vector<std::string>&>(), "options"_a, "coordinator"_a,
           "asked"_a = std::vector<std::string>())
      .def("save", &PyEngine::Save, "step"_a, "tensors"_a, "blobs"_a, "topology"_a, "refused"_a = std::nullopt)
      .def(
          "begin_restore",
          [](const py::object& engine, std::optional<int64_t> step) {
            std::unique_ptr<PySession> session = engine.cast<PyEngine&>().BeginRestore(step);
            session->KeepAlive(engine);
            return session;
          },
          "step"_a)
      .def("close", &PyEngine::Close, "grace_s"_a)
      .def("next_event", &PyEngine::NextEvent, "timeout_s"_a)
      .def("next_question", &PyEngine::NextQuestion, "hook"_a, "timeout_s"_a)
      .def("answer", &PyEngine::Answer, "hook"_a, "refusal"_a);
}

}  // namespace lamina::bindings
