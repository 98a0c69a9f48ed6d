// The parts of this machine that an engine or a reader of one process stands on.
#pragma once

#include <memory>
#include <string>

#include "device/host_device.h"
#include "env/env.h"
#include "env/fault_env.h"
#include "env/posix_env.h"
#include "io/thread_queue.h"
#include "tier/file_tier.h"

namespace lamina::bindings {

// An Env whose files fail as told: lamina._core.testing.FaultEnv.
struct TestingEnv {
  std::unique_ptr<env::Env> system = env::NewPosixEnv();
  env::FaultEnv faults{*system};
};

class Machine {
 public:
  // `testing` null: the operating system as it is.
  Machine(const std::string& root, int32_t io_threads, std::shared_ptr<TestingEnv> testing)
      : testing_(std::move(testing)),
        system_(testing_ == nullptr ? env::NewPosixEnv() : nullptr),
        queue_(env(), io_threads, /*depth_max=*/4 * io_threads),
        tier_(env(), root, queue_) {}

  env::Env& env() { return testing_ != nullptr ? static_cast<env::Env&>(testing_->faults) : *system_; }
  tier::FileTier& tier() { return tier_; }

 private:
  const std::shared_ptr<TestingEnv> testing_;
  const std::unique_ptr<env::Env> system_;
  io::ThreadQueue queue_;
  tier::FileTier tier_;
};

}  // namespace lamina::bindings
