// A training loop in libtorch whose whole state is saved: a model, Adam's moments and the random generator. Killed at any moment, it goes
// on with the same numbers. Its entries have the names that lamina.Checkpointer gives to {"model": module, "optim": adam, "rng": tensor},
// so Python takes its steps over, and it takes over Python's.
//
//   libtorch_trainer ROOT STEPS
//
// Several ranks are started with LAMINA_RANK, LAMINA_RANK_COUNT and LAMINA_COORDINATION_DIR, as in docs/cpp.md. They hold replicas and draw
// the same batches here, so that their gradients agree; a real job averages them.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lamina/engine.h"
#include "lamina/torch.h"

namespace {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

class Trainer {
 public:
  Trainer() {
    // Adam makes its moments in its first step; here they are made at once, so that a restore finds their memory.
    for (const torch::Tensor& parameter : model_->parameters()) {
      auto state = std::make_unique<torch::optim::AdamParamState>();
      state->step(0);
      state->exp_avg(torch::zeros_like(parameter));
      state->exp_avg_sq(torch::zeros_like(parameter));
      adam_.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }

  double TrainOneStep() {
    const torch::Tensor inputs = torch::randn({32, 16});
    const torch::Tensor loss = torch::mse_loss(model_->forward(inputs), inputs.pow(2).sum(1, /*keepdim=*/true));
    adam_.zero_grad();
    loss.backward();
    adam_.step();
    return loss.item<double>();
  }

  // The whole state by name: tensors of the model and of Adam themselves, and copies of what is no tensor.
  NamedTensors Tensors() {
    NamedTensors tensors;
    for (const auto& parameter : model_->named_parameters()) {
      const torch::optim::AdamParamState& moments = MomentsOf(parameter.value());
      const std::string name = "model." + parameter.key();
      tensors.emplace_back(name, parameter.value());
      tensors.emplace_back("optim.state." + name + ".exp_avg", moments.exp_avg());
      tensors.emplace_back("optim.state." + name + ".exp_avg_sq", moments.exp_avg_sq());
      tensors.emplace_back("optim.state." + name + ".step", torch::tensor(static_cast<float>(moments.step())));
    }
    tensors.emplace_back("rng", torch::globalContext().defaultGenerator(torch::kCPU).get_state());
    return tensors;
  }

  // After a restore into what Tensors returned: puts the copies back, and tells autograd of the rest.
  void PutBack(const NamedTensors& tensors) {
    auto tensor = tensors.begin();
    for (const auto& parameter : model_->named_parameters()) {
      torch::optim::AdamParamState& moments = MomentsOf(parameter.value());
      for (int i = 0; i < 3; ++i) lamina::WasWritten((tensor++)->second);
      moments.step(static_cast<int64_t>((tensor++)->second.item<float>()));
    }
    at::Generator generator = torch::globalContext().defaultGenerator(torch::kCPU);
    generator.set_state(tensor->second);
  }

  double Digest() const {
    double sum = 0;
    for (const torch::Tensor& parameter : model_->parameters()) sum += parameter.to(torch::kDouble).pow(2).sum().item<double>();
    return sum;
  }

 private:
  torch::optim::AdamParamState& MomentsOf(const torch::Tensor& parameter) {
    return static_cast<torch::optim::AdamParamState&>(*adam_.state().at(parameter.unsafeGetTensorImpl()));
  }

  torch::nn::Sequential model_{torch::nn::Linear(16, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1)};
  torch::optim::Adam adam_{model_->parameters(), torch::optim::AdamOptions(1e-2)};
};

absl::StatusOr<std::vector<lamina::TensorView>> ViewsOf(const NamedTensors& tensors) {
  std::vector<lamina::TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    absl::StatusOr<lamina::TensorView> view = lamina::ViewOf(name, tensor);
    if (!view.ok()) return view.status();
    views.push_back(*std::move(view));
  }
  return views;
}

absl::Status Train(const std::string& root, int64_t steps) {
  lamina::Options options;
  options.root = std::filesystem::absolute(root).string();
  if (const absl::Status status = options.FromEnvironment(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<lamina::Engine>> engine = lamina::Engine::Open(options);
  if (!engine.ok()) return engine.status();

  torch::manual_seed(1);
  Trainer trainer;
  int64_t next_step = 0;
  {
    const NamedTensors tensors = trainer.Tensors();
    const absl::StatusOr<std::vector<lamina::TensorView>> targets = ViewsOf(tensors);
    if (!targets.ok()) return targets.status();
    const absl::StatusOr<lamina::RestoreInfo> restored = (*engine)->Restore(*targets);
    if (!restored.ok()) return restored.status();
    if (restored->step.has_value()) trainer.PutBack(tensors);
    next_step = restored->next_step;
  }
  std::printf("begins at step %lld\n", static_cast<long long>(next_step));

  std::shared_ptr<lamina::SaveHandle> last;
  for (int64_t step = next_step; step < steps; ++step) {
    const double loss = trainer.TrainOneStep();
    const NamedTensors tensors = trainer.Tensors();
    const absl::StatusOr<std::vector<lamina::TensorView>> views = ViewsOf(tensors);
    if (!views.ok()) return views.status();
    absl::StatusOr<std::shared_ptr<lamina::SaveHandle>> handle = (*engine)->Save({step, *views, {}, {}});
    if (!handle.ok()) return handle.status();
    if (last != nullptr) {
      const absl::StatusOr<lamina::SaveReport> report = last->Wait(-1);
      if (!report.ok()) return report.status();
      std::printf("step %lld is saved, loss %g\n", static_cast<long long>(report->step), loss);
      std::fflush(stdout);
    }
    last = *std::move(handle);
  }
  if (last != nullptr) {
    if (const absl::Status status = last->Wait(-1).status(); !status.ok()) return status;
  }
  std::printf("after %lld steps: %.17g\n", static_cast<long long>(steps), trainer.Digest());
  return (*engine)->Close(-1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: libtorch_trainer ROOT STEPS\n");
    return 2;
  }
  torch::set_num_threads(1);
  const absl::Status status = Train(argv[1], std::atoll(argv[2]));
  if (status.ok()) return 0;
  std::fprintf(stderr, "libtorch_trainer: %s\n", status.ToString().c_str());
  return 1;
}
