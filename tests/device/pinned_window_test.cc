#include "device/pinned_window.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "base/units.h"
#include "env/posix_env.h"

namespace lamina::device {
namespace {

std::unique_ptr<PinnedWindow> MakeWindow(env::Env& env, int64_t bytes) {
  auto window = PinnedWindow::Create(env, bytes);
  REQUIRE(window.ok());
  return *std::move(window);
}

bool Mentions(const absl::Status& status, std::string_view text) { return std::string(status.message()).find(text) != std::string::npos; }

TEST_CASE("PinnedWindow hands out whole pages and takes them back", "[device]") {
  const auto env = env::NewPosixEnv();
  const auto window = MakeWindow(*env, 3 * 4096 - 5);
  REQUIRE(window->bytes() == 3 * 4096);
  {
    auto first = window->Acquire(4097, 0);
    REQUIRE(first.ok());
    REQUIRE(first->bytes().size() == 4097);
    REQUIRE(reinterpret_cast<uintptr_t>(first->bytes().data()) % 4096 == 0);
    REQUIRE(window->leased_bytes() == 2 * 4096);
    auto second = window->Acquire(4096, 0);
    REQUIRE(second.ok());
    REQUIRE(window->leased_bytes() == 3 * 4096);
    std::ranges::fill(first->bytes(), std::byte{1});
    std::ranges::fill(second->bytes(), std::byte{2});
    REQUIRE(std::ranges::count(first->bytes(), std::byte{1}) == 4097);
  }
  REQUIRE(window->leased_bytes() == 0);
  REQUIRE(window->Acquire(3 * 4096, 0).ok());
}

TEST_CASE("PinnedWindow takes memory for what was ever leased at once", "[device]") {
  const auto env = env::NewPosixEnv();
  constexpr int64_t kLeaseBytes = 8 * base::kMiB;  // whole huge pages
  const auto window = MakeWindow(*env, 4 * kLeaseBytes);
  const std::byte* const begin = window->Acquire(1, 0)->bytes().data();
  const auto taken_bytes = [&] {
    std::vector<unsigned char> pages(static_cast<size_t>(window->bytes() / 4096));
    REQUIRE(mincore(const_cast<std::byte*>(begin), static_cast<size_t>(window->bytes()), pages.data()) == 0);
    return 4096 * std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
  };
  for (int i = 0; i < 3; ++i) {
    const auto lease = window->Acquire(kLeaseBytes, 0);
    REQUIRE(taken_bytes() >= kLeaseBytes);
  }
  REQUIRE(taken_bytes() < 2 * kLeaseBytes);
  const auto first = window->Acquire(kLeaseBytes, 0);
  const auto second = window->Acquire(kLeaseBytes, 0);
  REQUIRE(taken_bytes() >= 2 * kLeaseBytes);
  REQUIRE(taken_bytes() < 3 * kLeaseBytes);
}

TEST_CASE("WindowLease gives its range back once when moved", "[device]") {
  const auto env = env::NewPosixEnv();
  const auto window = MakeWindow(*env, 4 * 4096);
  WindowLease a = *window->Acquire(4096, 0);
  WindowLease b = *window->Acquire(4096, 0);
  a = std::move(b);
  REQUIRE(window->leased_bytes() == 4096);
  WindowLease c(std::move(a));
  REQUIRE(window->leased_bytes() == 4096);
  c = WindowLease();
  REQUIRE(window->leased_bytes() == 0);
}

TEST_CASE("PinnedWindow says what is needed, what there is and what to set", "[device]") {
  const auto env = env::NewPosixEnv();
  const auto window = MakeWindow(*env, 2 * 4096);
  const absl::Status too_large = window->Acquire(9000, env::kForeverNs).status();
  REQUIRE(too_large.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Mentions(too_large, "9000 bytes"));
  CHECK(Mentions(too_large, "8192"));
  CHECK(Mentions(too_large, "set memory=9000"));
  const auto lease = window->Acquire(4097, 0);
  const absl::Status late = window->Acquire(4096, env->MonotonicNs() + base::kMillisecondNs).status();
  REQUIRE(late.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(Mentions(late, "4096 bytes"));
  CHECK(Mentions(late, "window of 8192 bytes"));
  CHECK(Mentions(late, "set memory=12288"));
  CHECK(window->Acquire(-1, 0).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(window->Acquire(0, 0)->bytes().empty());
  CHECK(PinnedWindow::Create(*env, 0).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("PinnedWindow refuses more memory than the system can map", "[device]") {
  const auto env = env::NewPosixEnv();
  const absl::Status status = PinnedWindow::Create(*env, int64_t{1} << 50).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Mentions(status, "1125899906842624"));
}

TEST_CASE("PinnedWindow grants leases in the order they were asked for", "[device]") {
  const auto env = env::NewPosixEnv();
  const auto window = MakeWindow(*env, 4 * 4096);
  env::Mutex mutex(*env);
  std::vector<int> order;
  WindowLease all = *window->Acquire(4 * 4096, 0);
  std::vector<std::unique_ptr<env::Task>> tasks;
  // The first to wait wants all, so the others, who would fit sooner, may not pass it.
  for (int i = 0; i < 4; ++i) {
    const int waiting_before = i;
    tasks.push_back(env->Start("asker", [&, i] {
      const auto lease = window->Acquire(i == 0 ? 4 * 4096 : 4096 * i, env::kForeverNs);
      env::MutexLock lock(mutex);
      if (lease.ok()) order.push_back(i);
    }));
    while (window->waiting_count() != waiting_before + 1) env->SleepNs(base::kMicrosecondNs);
  }
  all = WindowLease();
  for (const auto& task : tasks) task->Join();
  REQUIRE(order.size() == 4);
  REQUIRE(order.front() == 0);
  REQUIRE(window->leased_bytes() == 0);
}

TEST_CASE("PinnedWindow's leases never overlap and all room comes back", "[device]") {
  const auto env = env::NewPosixEnv();
  const auto window = MakeWindow(*env, 64 * 4096);
  std::mt19937_64 random(41);
  std::vector<std::pair<WindowLease, std::byte>> held;
  for (int round = 0; round < 2000; ++round) {
    if (!held.empty() && random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      REQUIRE(std::ranges::count(held.back().first.bytes(), held.back().second) == std::ssize(held.back().first.bytes()));
      held.pop_back();
      continue;
    }
    auto lease = window->Acquire(1 + static_cast<int64_t>(random() % (16 * 4096)), 0);
    if (!lease.ok()) continue;
    const auto mark = static_cast<std::byte>(round);
    std::ranges::fill(lease->bytes(), mark);
    held.emplace_back(*std::move(lease), mark);
  }
  held.clear();
  REQUIRE(window->Acquire(64 * 4096, 0).ok());
}

TEST_CASE("PinnedWindow is not in a forked child", "[device]") {
  const auto env = env::NewPosixEnv();
  const auto window = MakeWindow(*env, 4096);
  const auto lease = window->Acquire(4096, 0);
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    // The kernel reads the page on the child's behalf and says EFAULT where there is none.
    _exit(write(pipe_ends[1], lease->bytes().data(), 1) < 0 && errno == EFAULT ? 0 : 1);
  }
  int wait_status = -1;
  REQUIRE(waitpid(child, &wait_status, 0) == child);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  REQUIRE(wait_status == 0);
}

}  // namespace
}  // namespace lamina::device
