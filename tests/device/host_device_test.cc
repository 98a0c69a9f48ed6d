#include "device/host_device.h"

#include <catch2/catch.hpp>

#include "env/posix_env.h"
#include "testing/device_suite.h"

namespace lamina::device {
namespace {

TEST_CASE("HostDevice is a Device", "[device]") {
  const auto env = env::NewPosixEnv();
  const HostDeviceOptions options = GENERATE(HostDeviceOptions{.threads = 1}, HostDeviceOptions{.threads = 2},
                                             HostDeviceOptions{.threads = 4}, HostDeviceOptions{.threads = 2, .chaos_seed = 5});
  testing::RunDeviceSuite([&] { return std::make_unique<HostDevice>(*env, options); });
}

// An Env whose tasks stay at their first sleep until told to go on, so that "late" needs no clock.
class GatedEnv final : public env::Env {
 public:
  explicit GatedEnv(env::Env& inner) : inner_(inner), mutex_(inner), opened_(inner) {}
  void OpenGate() {
    {
      env::MutexLock lock(mutex_);
      open_ = true;
    }
    opened_.NotifyAll();
  }
  void SleepNs(int64_t) override {
    env::MutexLock lock(mutex_);
    while (!open_) opened_.Wait(mutex_);
  }
  env::FileSystem& files() override { return inner_.files(); }
  int64_t MonotonicNs() override { return inner_.MonotonicNs(); }
  int64_t WallNs() override { return inner_.WallNs(); }
  uint64_t RandomU64() override { return inner_.RandomU64(); }
  std::unique_ptr<env::Task> Start(std::string name, std::function<void()> body) override { return inner_.Start(name, body); }
  std::unique_ptr<env::MutexImpl> NewMutex() override { return inner_.NewMutex(); }
  std::unique_ptr<env::CondVarImpl> NewCondVar() override { return inner_.NewCondVar(); }
  env::ProcessIdentity Self() override { return inner_.Self(); }
  env::Liveness LivenessOf(const env::ProcessIdentity& process) override { return inner_.LivenessOf(process); }
  void Operation(std::string_view what) override { operations.emplace_back(what); }

  std::vector<std::string> operations;  // of the test's own thread

 private:
  env::Env& inner_;
  env::Mutex mutex_;
  env::CondVar opened_;
  bool open_ = false;
};

TEST_CASE("HostDevice under chaos holds poison until the copy is done", "[device]") {
  const auto inner = env::NewPosixEnv();
  GatedEnv env(*inner);
  HostDevice device(env, {.chaos_seed = 1});
  const std::vector<std::byte> source(100, std::byte{7});
  std::vector<std::byte> target(101, std::byte{0x5A});
  const std::vector<int64_t> extent = {100};
  const std::vector<int64_t> strides = {1};
  REQUIRE(device.EnqueueGather({source.data(), 1, extent, strides}, 0, 100, target.data()).ok());
  const auto event = device.Record();
  REQUIRE(event.ok());
  CHECK_FALSE((*event)->Complete());
  CHECK(std::ranges::count(target, HostDevice::kPoison) == 100);
  env.OpenGate();
  REQUIRE((*event)->Wait().ok());
  REQUIRE((*event)->Complete());
  REQUIRE(std::ranges::count(target, std::byte{7}) == 100);
  REQUIRE(target[100] == std::byte{0x5A});
}

TEST_CASE("HostDevice tells Env of each operation", "[device]") {
  const auto inner = env::NewPosixEnv();
  GatedEnv env(*inner);
  HostDevice device(env, {.threads = 1});
  const std::byte source{7};
  std::byte target{};
  REQUIRE(device.EnqueueGather({&source, 1, {}, {}}, 0, 1, &target).ok());
  REQUIRE((*device.Record())->Wait().ok());
  REQUIRE(target == source);
  REQUIRE(env.operations == std::vector<std::string>{"device.enqueue", "device.record", "device.wait"});
}

TEST_CASE("HostDevice ends with copies that nobody waited for", "[device]") {
  const auto env = env::NewPosixEnv();
  const std::vector<std::byte> source(64 << 20, std::byte{7});
  std::vector<std::byte> target(source.size());
  const std::vector<int64_t> extent = {64 << 20};
  const std::vector<int64_t> strides = {1};
  for (int round = 0; round < 5; ++round) {
    HostDevice device(*env, {.chaos_seed = round % 2 == 0 ? std::optional<uint64_t>(round) : std::nullopt});
    REQUIRE(device.EnqueueGather({source.data(), 1, extent, strides}, 0, extent[0], target.data()).ok());
  }
}

}  // namespace
}  // namespace lamina::device
