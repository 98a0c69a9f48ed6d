// Threads of the operating system that carry simulated tasks. They are reused, since a test makes thousands of short runs.
#pragma once

#include <semaphore.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace lamina::env {

// The right to run. Whoever holds it passes it on and then awaits its own; all memory moves with it.
class Baton {
 public:
  Baton() { sem_init(&semaphore_, 0, 0); }
  ~Baton() { sem_destroy(&semaphore_); }
  Baton(const Baton&) = delete;
  Baton& operator=(const Baton&) = delete;
  void Pass() { sem_post(&semaphore_); }
  void Await();

 private:
  sem_t semaphore_;
};

// Used only by the holder of the baton, so by several worlds only one after another. Every job has ended before destruction.
class SimThreads {
 public:
  SimThreads() = default;
  ~SimThreads();
  SimThreads(const SimThreads&) = delete;
  SimThreads& operator=(const SimThreads&) = delete;

  // Gives `job` a thread. It runs once the returned baton is passed, and returns whom to pass the baton to at its end.
  Baton& Bind(std::function<Baton*()> job);
  int64_t thread_count() const { return static_cast<int64_t>(carriers_.size()); }

 private:
  struct Carrier {
    Baton baton;
    std::function<Baton*()> job;  // empty when the baton comes: the thread ends
    std::thread thread;
  };
  void Carry(Carrier& carrier);

  std::vector<std::unique_ptr<Carrier>> carriers_;
  std::vector<Carrier*> idle_;
};

}  // namespace lamina::env
