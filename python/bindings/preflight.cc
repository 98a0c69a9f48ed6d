// What `lamina.preflight` and `lamina doctor` ask the core.
#include "lamina/preflight.h"

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/options.h"
#include "base/status.h"
#include "engine.h"
#include "engine/preflight.h"
#include "engine/root_state.h"
#include "errors.h"
#include "format/version.h"
#include "gil.h"
#include "machine.h"
#include "options.h"
#include "plan/description.h"
#include "plan/save_plan.h"
#include "tensor.h"
#include "tier/log.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT: the literals are how keyword arguments are written

const char* LevelName(FindingLevel level) { return level == FindingLevel::kOk ? "ok" : level == FindingLevel::kWarn ? "warn" : "fail"; }

py::list PyPreflight(const py::dict& options, int64_t job_bytes, int64_t rank_bytes) {
  std::shared_ptr<TestingEnv> testing;
  const Options known = OptionsFromPython(options, testing);
  const std::vector<Finding> findings = WithoutGil([&] {
    const StateSize size{job_bytes, rank_bytes};
    return testing == nullptr ? Preflight(known, size) : engine::Preflight(testing->faults, known, size);
  });
  py::list list;
  for (const Finding& finding : findings) {
    list.append(py::dict("name"_a = finding.name, "level"_a = LevelName(finding.level), "found"_a = TextToPython(finding.found),
                         "expected"_a = TextToPython(finding.expected), "advice"_a = TextToPython(finding.advice),
                         "badness"_a = finding.badness));
  }
  return list;
}

py::bytes Describe(const py::sequence& tensors, const py::sequence& topology) {
  const std::vector<TensorView> views = TensorsFromPython(tensors);
  return plan::EncodeDescription(ValueOrRaise(plan::Describe(views, TopologyFromPython(topology))));
}

// Of a save of what the ranks describe: the job's bytes, and those that each rank writes.
py::tuple PlannedBytes(const std::vector<std::string>& descriptions) {
  const plan::SavePlan plan = ValueOrRaise(WithoutGil([&]() -> absl::StatusOr<plan::SavePlan> {
    std::vector<plan::RankDescription> ranks;
    for (const std::string& text : descriptions) {
      LAMINA_ASSIGN_OR_RETURN(ranks.emplace_back(), plan::DecodeDescription(base::AsBytes(text)));
    }
    return plan::PlanSave(ranks);
  }));
  py::list written;
  for (const plan::RankPlan& rank : plan.ranks) written.append(rank.written_bytes);
  return py::make_tuple(plan.state_bytes, written);
}

py::list FilesToPython(const std::vector<engine::SeenFile>& files) {
  py::list list;
  for (const engine::SeenFile& file : files) list.append(py::make_tuple(TextToPython(file.name), static_cast<double>(file.age_ns) / 1e9));
  return list;
}

py::dict LookAtRoot(const std::string& root) {
  const engine::RootState state = ValueOrRaise(WithoutGil([&] {
    Machine machine(root, /*io_threads=*/1, nullptr);
    return engine::LookAtRoot(machine.env(), machine.tier());
  }));
  const format::LogRecord& newest = state.newest;
  const std::vector<format::StepEntry> line = tier::LineOf(newest);
  const char* const holder = state.holder == env::Liveness::kAlive ? "alive" : state.holder == env::Liveness::kDead ? "dead" : "unknown";
  py::object lease_age_s = py::none();
  if (state.lease_age_ns.has_value()) lease_age_s = py::float_(static_cast<double>(*state.lease_age_ns) / 1e9);
  py::object step = py::none();
  if (!line.empty()) step = py::int_(line.front().attempt.step);
  return py::dict("format_version"_a = format::kVersion, "store_id"_a = format::ToString(state.header.store_id), "record"_a = newest.number,
                  "incarnation"_a = newest.incarnation, "host"_a = TextToPython(newest.trainer.host), "pid"_a = newest.trainer.pid,
                  "run_id"_a = TextToPython(newest.trainer.run_id), "holder"_a = holder, "lease_age_s"_a = lease_age_s, "step"_a = step,
                  "state_bytes"_a = line.empty() ? 0 : line.front().state_bytes, "line_count"_a = line.size(), "damaged"_a = newest.damaged,
                  "readers"_a = FilesToPython(state.readers), "leftovers"_a = FilesToPython(state.leftovers));
}

// Those that Python goes by itself.
py::dict OwnOptions(const py::dict& options) {
  std::shared_ptr<TestingEnv> testing;
  const Options known = OptionsFromPython(options, testing);
  return py::dict("exit_grace_s"_a = known.exit_grace_s, "failures_tolerated"_a = known.failures_tolerated,
                  "verdict_timeout_s"_a = known.verdict_timeout_s);
}

py::list OptionNames() {
  py::list names;
  for (const base::OptionInfo& option : base::OptionList()) names.append(option.name);
  return names;
}

}  // namespace

void BindPreflight(py::module_& module) {
  module.def("preflight", &PyPreflight, "options"_a, "job_bytes"_a, "rank_bytes"_a);
  module.def("describe", &Describe, "tensors"_a, "topology"_a);
  module.def("planned_bytes", &PlannedBytes, "descriptions"_a);
  module.def("look_at_root", &LookAtRoot, "root"_a);
  module.def("option_names", &OptionNames);
  module.def("own_options", &OwnOptions, "options"_a);
}

}  // namespace lamina::bindings
