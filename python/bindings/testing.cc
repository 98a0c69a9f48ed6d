// lamina._core.testing: an Env whose files fail as told. Nothing outside tests and drills imports it.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "engine.h"
#include "errors.h"
#include "machine.h"

namespace lamina::bindings {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // NOLINT: the literals are how keyword arguments are written

std::optional<env::FaultCall> CallNamed(const std::string& name) {
  using Call = env::FaultCall;
  static constexpr std::pair<const char*, Call> kCalls[] = {
      {"open", Call::kOpen},           {"create", Call::kCreate}, {"write", Call::kWrite},
      {"read", Call::kRead},           {"sync", Call::kSync},     {"link", Call::kLink},
      {"rename", Call::kRename},       {"unlink", Call::kUnlink}, {"syncdir", Call::kSyncDirectory},
      {"mkdir", Call::kMakeDirectory},
  };
  for (const auto& [known, call] : kCalls) {
    if (name == known) return call;
  }
  return std::nullopt;
}

int64_t AddRule(TestingEnv& testing, const std::string& call, int error_number, const std::string& path_part, int64_t first,
                int64_t count) {
  const std::optional<env::FaultCall> known = CallNamed(call);
  if (!known.has_value()) RaiseIfError(absl::InvalidArgumentError("no file call is named '" + call + "'"));
  return testing.faults.plan().AddRule({known, path_part, error_number, first, count < 0 ? env::kFaultsForEver : count});
}

}  // namespace

void BindTesting(py::module_& module) {
  py::module_ testing = module.def_submodule("testing", "Faults on demand, for tests.");
  py::class_<TestingEnv, std::shared_ptr<TestingEnv>>(testing, "FaultEnv")
      .def(py::init<>())
      .def("fail", &AddRule, "call"_a, "errno"_a, "path_part"_a = "", "first"_a = 1, "count"_a = 1)
      .def(
          "heal", [](TestingEnv& env, int64_t rule) { return env.faults.plan().RemoveRule(rule); }, "rule"_a)
      .def(
          "set_write_bytes_per_second", [](TestingEnv& env, int64_t bytes) { env.faults.plan().SetWriteBytesPerSecond(bytes); }, "bytes"_a)
      .def(
          "set_write_bytes_max", [](TestingEnv& env, int64_t bytes) { env.faults.plan().SetWriteBytesMax(bytes); }, "bytes"_a)
      .def(
          "set_hidden_s", [](TestingEnv& env, double seconds) { env.faults.plan().SetHiddenNs(static_cast<int64_t>(seconds * 1e9)); },
          "seconds"_a)
      .def(
          "set_hidden_from_others_s",
          [](TestingEnv& env, double seconds) { env.faults.plan().SetHiddenFromOthersNs(static_cast<int64_t>(seconds * 1e9)); },
          "seconds"_a)
      .def(
          "hang", [](TestingEnv& env, std::optional<std::string> path_part) { env.faults.plan().SetHang(std::move(path_part)); },
          "path_part"_a)
      .def(
          "set_stale_open_every", [](TestingEnv& env, int64_t count) { env.faults.plan().SetStaleOpenEvery(count); }, "count"_a)
      .def_property_readonly("fault_count", [](TestingEnv& env) { return env.faults.plan().fault_count(); });
}

}  // namespace lamina::bindings
