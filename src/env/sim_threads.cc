#include "env/sim_threads.h"

#include <cerrno>
#include <utility>

namespace lamina::env {

void Baton::Await() {
  while (sem_wait(&semaphore_) != 0 && errno == EINTR) {
  }
}

SimThreads::~SimThreads() {
  for (const std::unique_ptr<Carrier>& carrier : carriers_) {
    carrier->baton.Pass();
    carrier->thread.join();
  }
}

Baton& SimThreads::Bind(std::function<Baton*()> job) {
  if (idle_.empty()) {
    carriers_.push_back(std::make_unique<Carrier>());
    Carrier& carrier = *carriers_.back();
    carrier.thread = std::thread([this, &carrier] { Carry(carrier); });
    idle_.push_back(&carrier);
  }
  Carrier& carrier = *idle_.back();
  idle_.pop_back();
  carrier.job = std::move(job);
  return carrier.baton;
}

void SimThreads::Carry(Carrier& carrier) {
  for (;;) {
    carrier.baton.Await();
    if (!carrier.job) return;
    Baton* next = std::exchange(carrier.job, nullptr)();
    idle_.push_back(&carrier);  // before the baton leaves: nothing of the pool may be touched without it
    next->Pass();
  }
}

}  // namespace lamina::env
