#include "env/posix_env.h"

#include <linux/ioprio.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/units.h"
#include "env/posix_file_system.h"

namespace lamina::env {
namespace {

int64_t ClockNs(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * base::kSecondNs + time.tv_nsec;
}

class PosixMutex : public MutexImpl {
 public:
  void Lock() override { mutex_.lock(); }
  void Unlock() override { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

class PosixCondVar : public CondVarImpl {
 public:
  bool WaitUntil(MutexImpl& mutex, int64_t deadline_ns) override {
    // Mutex and CondVar of one Env are of one kind.
    std::unique_lock<std::mutex> lock(static_cast<PosixMutex&>(mutex).native(), std::adopt_lock);
    // The steady clock is CLOCK_MONOTONIC: the same as MonotonicNs.
    const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
    bool in_time = true;
    if (deadline_ns == kForeverNs) {
      condition_.wait(lock);
    } else {
      in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    }
    lock.release();  // the caller holds it still
    return in_time;
  }
  void NotifyAll() override { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

// Blocks signals while it lives; threads started meanwhile inherit that.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    // A thread's own faults reach the handlers that report them.
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

// Tasks that hash, write or delete behind a job's back; nobody waits for one of them but who closes.
bool IsBackground(std::string_view name) { return name.starts_with("lamina-io") || name == "lamina-save" || name == "lamina-retention"; }

// Names and priorities are a courtesy: what the system refuses of them is let be.
void PrepareThread(const std::string& name) {
  constexpr size_t kNameBytesMax = 15;
  constexpr int kLowPriority = 10;
  constexpr int kLowIoPriority = 7;  // the last before "idle", which may wait for ever
  pthread_setname_np(pthread_self(), name.substr(0, kNameBytesMax).c_str());
  if (!IsBackground(name)) return;
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowPriority);
  syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, kLowIoPriority));
}

class PosixTask : public Task {
 public:
  PosixTask(std::string name, std::function<void()> body) {
    const SignalsBlocked blocked;
    thread_ = std::thread([name = std::move(name), body = std::move(body)] {
      PrepareThread(name);
      body();
    });
  }
  ~PosixTask() override { PosixTask::Join(); }
  void Join() override {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

// The first line; empty when the file cannot be read.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string LinkTarget(const char* path) {
  char target[256];
  const ssize_t count = readlink(path, target, sizeof(target));
  return count > 0 ? std::string(target, static_cast<size_t>(count)) : std::string();
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? std::string(name) : std::string();
}

struct ProcessStat {
  char state = '?';
  int64_t thread_count = 0;
  int64_t start_ticks = 0;
};

// Nullopt when the file is not there or not readable. Fields as proc(5) numbers them; the command, field 2, may hold blanks and brackets.
std::optional<ProcessStat> ReadProcessStat(const std::string& pid) {
  const std::string line = FirstLine("/proc/" + pid + "/stat");
  const size_t command_end = line.rfind(')');
  if (command_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(command_end + 1));
  ProcessStat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 20; ++field) fields >> skipped;
  fields >> stat.thread_count >> skipped >> stat.start_ticks;
  if (!fields) return std::nullopt;
  return stat;
}

// A process that nobody has waited for yet; with other threads alive only its first thread has ended.
bool IsEnded(const ProcessStat& stat) { return stat.state == 'X' || (stat.state == 'Z' && stat.thread_count <= 1); }

class PosixEnv : public Env {
 public:
  FileSystem& files() override { return *files_; }
  int64_t MonotonicNs() override { return ClockNs(CLOCK_MONOTONIC); }
  int64_t WallNs() override { return ClockNs(CLOCK_REALTIME); }

  void SleepNs(int64_t duration_ns) override {
    const int64_t now = MonotonicNs();
    const int64_t end = duration_ns > kForeverNs - now ? kForeverNs : now + duration_ns;
    if (end <= now) return;
    const timespec time{end / base::kSecondNs, end % base::kSecondNs};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) continue;
  }

  uint64_t RandomU64() override {
    uint64_t value = 0;
    while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
      if (errno == EINTR) continue;
      // A sandbox without the call: names stay unlike those of other processes and moments, which is what nonces are for.
      return static_cast<uint64_t>(WallNs()) ^ (static_cast<uint64_t>(MonotonicNs()) << 20) ^ (static_cast<uint64_t>(getpid()) << 42);
    }
    return value;
  }

  std::unique_ptr<Task> Start(std::string name, std::function<void()> body) override {
    try {
      return std::make_unique<PosixTask>(std::move(name), std::move(body));
    } catch (const std::system_error&) {
      return nullptr;  // a limit of threads or processes
    }
  }
  std::unique_ptr<MutexImpl> NewMutex() override { return std::make_unique<PosixMutex>(); }
  std::unique_ptr<CondVarImpl> NewCondVar() override { return std::make_unique<PosixCondVar>(); }

  // Asked anew each time, since a fork changes it.
  ProcessIdentity Self() override {
    const std::optional<ProcessStat> stat = ReadProcessStat("self");
    return {HostName(), FirstLine("/proc/sys/kernel/random/boot_id"), LinkTarget("/proc/self/ns/pid"), getpid(),
            stat.has_value() ? stat->start_ticks : 0};
  }

  int64_t ProcessId() override { return getpid(); }

  Liveness LivenessOf(const ProcessIdentity& process) override {
    const ProcessIdentity self = Self();
    const bool visible = !self.boot_id.empty() && !self.pid_namespace.empty() && process.host == self.host &&
                         process.boot_id == self.boot_id && process.pid_namespace == self.pid_namespace;
    if (!visible || process.pid <= 0 || process.pid > INT32_MAX) return Liveness::kUnknown;
    if (kill(static_cast<pid_t>(process.pid), 0) == -1 && errno == ESRCH) return Liveness::kDead;
    const std::optional<ProcessStat> stat = ReadProcessStat(std::to_string(process.pid));
    if (!stat.has_value()) return Liveness::kUnknown;  // hidden from us, or gone just now
    return IsEnded(*stat) || stat->start_ticks != process.start_ticks ? Liveness::kDead : Liveness::kAlive;
  }

  void Operation(std::string_view) override {}

 private:
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

}  // namespace

std::unique_ptr<Env> NewPosixEnv() { return std::make_unique<PosixEnv>(); }

}  // namespace lamina::env
