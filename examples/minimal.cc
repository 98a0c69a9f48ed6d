// A trainer in a page: its state lies in vectors, is saved at every step, and training goes on where it was stopped.
//
//   minimal ROOT STEPS
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lamina/engine.h"

namespace {

constexpr int64_t kRows = 256;
constexpr int64_t kColumns = 64;

struct State {
  std::vector<float> weights = std::vector<float>(kRows * kColumns, 1.0F);
  std::vector<float> momentum = std::vector<float>(kRows * kColumns, 0.0F);

  // Names, shapes and addresses; valid as long as the vectors keep their memory.
  std::vector<lamina::TensorView> Views() {
    const auto view = [](const char* name, std::vector<float>& values) {
      const lamina::Box whole{{0, 0}, {kRows, kColumns}};
      return lamina::TensorView{name, lamina::DType::kFloat32, whole.extent, {{whole, values.data(), {kColumns, 1}}}, "", false};
    };
    return {view("weights", weights), view("momentum", momentum)};
  }
};

void TrainOneStep(State& state, int64_t step) {
  for (size_t i = 0; i < state.weights.size(); ++i) {
    const float gradient = state.weights[i] - static_cast<float>((i + static_cast<size_t>(step)) % 7);
    state.momentum[i] = 0.9F * state.momentum[i] + gradient;
    state.weights[i] -= 0.01F * state.momentum[i];
  }
}

double Digest(const State& state) {
  double sum = 0;
  for (size_t i = 0; i < state.weights.size(); ++i) sum += static_cast<double>(i % 97) * state.weights[i] + state.momentum[i];
  return sum;
}

absl::Status Train(const std::string& root, int64_t steps) {
  lamina::Options options;
  options.root = std::filesystem::absolute(root).string();
  if (const absl::Status status = options.FromEnvironment(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<lamina::Engine>> engine = lamina::Engine::Open(options);
  if (!engine.ok()) return engine.status();

  State state;
  const std::vector<lamina::TensorView> views = state.Views();
  const absl::StatusOr<lamina::RestoreInfo> restored = (*engine)->Restore(views);
  if (!restored.ok()) return restored.status();
  std::printf("begins at step %lld\n", static_cast<long long>(restored->next_step));

  std::shared_ptr<lamina::SaveHandle> last;
  for (int64_t step = restored->next_step; step < steps; ++step) {
    TrainOneStep(state, step);
    absl::StatusOr<std::shared_ptr<lamina::SaveHandle>> handle = (*engine)->Save({step, views, {}, {}});
    if (!handle.ok()) return handle.status();
    // The step before is durable once its handle says so; this one is written while training goes on.
    if (last != nullptr) {
      const absl::StatusOr<lamina::SaveReport> report = last->Wait(-1);
      if (!report.ok()) return report.status();
      std::printf("step %lld is saved\n", static_cast<long long>(report->step));
      std::fflush(stdout);
    }
    last = *std::move(handle);
  }
  if (last != nullptr) {
    if (const absl::Status status = last->Wait(-1).status(); !status.ok()) return status;
  }
  std::printf("after %lld steps: %.17g\n", static_cast<long long>(steps), Digest(state));
  return (*engine)->Close(-1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: minimal ROOT STEPS\n");
    return 2;
  }
  const absl::Status status = Train(argv[1], std::atoll(argv[2]));
  if (status.ok()) return 0;
  std::fprintf(stderr, "minimal: %s\n", status.ToString().c_str());
  return 1;
}
