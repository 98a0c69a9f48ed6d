// Delivers events to hooks on one task of its own, so that no hook ever holds up a save.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "env/env.h"
#include "env/sync.h"
#include "lamina/events.h"
#include "lamina/hooks.h"

namespace lamina::hooks {

// How a save or a restore ended, and that the root is lost: such events are kept however full the queue is. There are few of them.
bool MustBeDelivered(EventKind kind);

// Post, dropped_count: thread-safe. AddHook, Start, Stop and destruction: by the owner, in this order.
class Dispatcher {
 public:
  // Keeps at most `capacity` events that may be dropped. `report` gets one line for each hook that is removed, on the delivering task; it
  // must not throw.
  Dispatcher(env::Env& env, int64_t capacity, std::function<void(std::string)> report);
  ~Dispatcher();  // as Stop
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  void AddHook(std::shared_ptr<Hook> hook);
  absl::Status Start();  // ResourceExhausted when the system grants no thread
  // Stamps both clocks and queues; never waits for a hook. Dropped and counted when the queue is full or the dispatcher has stopped.
  void Post(Event event);
  // Delivers what is queued and joins the task; it takes as long as the hooks do. Idempotent. Without Start nothing is delivered.
  void Stop();
  int64_t dropped_count() const;

 private:
  void Deliver();
  std::deque<Event> WaitForEvents();
  void DeliverTo(std::shared_ptr<Hook>& hook, const Event& event);

  env::Env& env_;
  const int64_t capacity_;
  const std::function<void(std::string)> report_;
  std::vector<std::shared_ptr<Hook>> hooks_;  // the task's own from Start on; null: removed
  mutable env::Mutex mutex_;
  env::CondVar posted_;
  std::deque<Event> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t dropped_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<env::Task> task_;
};

}  // namespace lamina::hooks
