#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "device/host_device.h"
#include "device/pinned_window.h"
#include "env/sim_env.h"

namespace lamina::device {
namespace {

struct Outcome {
  int64_t copies_right = 0;
  int64_t op_count = 0;
  uint64_t trace_hash = 0;
};

// Three tasks share a window that holds two of their copies at a time.
Outcome CopyInTurns(uint64_t seed, int64_t power_cut_at_op) {
  Outcome outcome;
  env::SimWorld world({.seed = seed, .power_cut_at_op = power_cut_at_op});
  env::SimProcess& process = world.NewProcess("trainer");
  world.Start(process, [&](env::Env& env) {
    HostDevice device(env, {.chaos_seed = seed});
    const auto window = *PinnedWindow::Create(env, 2 * 4096);
    std::vector<std::byte> source(4096);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7);
    const std::vector<int64_t> extent = {4096};
    const std::vector<int64_t> strides = {1};
    std::vector<std::unique_ptr<env::Task>> tasks;
    for (int i = 0; i < 3; ++i) {
      tasks.push_back(env.Start("copier", [&] {
        const auto lease = window->Acquire(4096, env::kForeverNs);
        const bool enqueued = device.EnqueueGather({source.data(), 1, extent, strides}, 0, 4096, lease->bytes().data()).ok();
        const bool done = (*device.Record())->Wait().ok();
        outcome.copies_right += enqueued && done && std::ranges::equal(lease->bytes(), source);
      }));
    }
    for (const auto& task : tasks) task->Join();
  });
  REQUIRE(world.Run().ok());
  outcome.op_count = world.op_count();
  outcome.trace_hash = world.trace_hash();
  return outcome;
}

TEST_CASE("HostDevice and PinnedWindow run in the simulator and replay from the seed", "[device][sim]") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Outcome first = CopyInTurns(seed, -1);
    const Outcome second = CopyInTurns(seed, -1);
    REQUIRE(first.copies_right == 3);
    REQUIRE(first.trace_hash == second.trace_hash);
  }
}

TEST_CASE("HostDevice and PinnedWindow unwind when their process dies at any operation", "[device][sim]") {
  const int64_t op_count = CopyInTurns(5, -1).op_count;
  REQUIRE(op_count >= 9);
  for (int64_t cut = 0; cut < op_count; ++cut) REQUIRE(CopyInTurns(5, cut).op_count <= op_count);
}

}  // namespace
}  // namespace lamina::device
