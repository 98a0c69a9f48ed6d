// The only door to the operating system: files, time, randomness, threads and waiting. Code above is ordinary blocking code on
// threads that Env starts, and waits only through Env, so that the simulator sees every wait.
//
// In a simulated process that has died every call unwinds the calling thread by a private exception of the simulator. Destructors
// therefore call only what cannot throw there: Mutex lock and unlock, CondVar notify, Task join, closing a File.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "env/file_system.h"

namespace lamina::env {

// Enough to tell whether a process that wrote this into a file still lives.
struct ProcessIdentity {
  std::string host;
  std::string boot_id;
  std::string pid_namespace;
  int64_t pid = 0;
  int64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat: tells a reused pid from the old process
  bool operator==(const ProcessIdentity&) const = default;
};

enum class Liveness { kAlive, kDead, kUnknown };  // kUnknown: another host, boot or pid namespace

// A thread. Destruction joins it; the body must have been told to end by then.
class Task {
 public:
  virtual ~Task() = default;
  virtual void Join() = 0;  // idempotent
};

// Implementation side of Mutex and CondVar (sync.h); use those.
class MutexImpl {
 public:
  virtual ~MutexImpl() = default;
  virtual void Lock() = 0;
  virtual void Unlock() = 0;
};

class CondVarImpl {
 public:
  virtual ~CondVarImpl() = default;
  // Waits until notified, or until MonotonicNs() reaches `deadline_ns`; may also wake for no reason. Returns false on the deadline.
  virtual bool WaitUntil(MutexImpl& mutex, int64_t deadline_ns) = 0;
  virtual void NotifyAll() = 0;
};

inline constexpr int64_t kForeverNs = INT64_MAX;

class Env {
 public:
  virtual ~Env() = default;
  virtual FileSystem& files() = 0;
  virtual int64_t MonotonicNs() = 0;  // never goes back; arbitrary origin, one per process
  virtual int64_t WallNs() = 0;       // since the epoch; may jump
  virtual void SleepNs(int64_t duration_ns) = 0;
  virtual uint64_t RandomU64() = 0;  // unpredictable on an operating system, from the seed in the simulator
  // Null when the system grants no thread: `body` never runs then (no_thread.h has the status).
  virtual std::unique_ptr<Task> Start(std::string name, std::function<void()> body) = 0;
  virtual std::unique_ptr<MutexImpl> NewMutex() = 0;
  virtual std::unique_ptr<CondVarImpl> NewCondVar() = 0;
  virtual ProcessIdentity Self() = 0;
  virtual int64_t ProcessId() { return Self().pid; }  // where that is cheaper, it is asked cheaply; another one after a fork
  virtual Liveness LivenessOf(const ProcessIdentity& process) = 0;
  // A named point where the simulator may switch, crash or pause; nothing on an operating system. Coordinators and devices call it
  // once for each of their operations.
  virtual void Operation(std::string_view what) = 0;
};

// `count` lower-case hexadecimal digits from env.RandomU64(), for nonces in names.
std::string RandomHex(Env& env, int count);

}  // namespace lamina::env
