// Delivers events to hooks on a task of its own, so that no hook ever holds up a save, nor for long another hook or the end.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  // Keeps at most `capacity` events that may be dropped. A hook that throws, or is still at an event when `limit_ns` has passed and
  // something else is to be told, gets no further ones: the other hooks get a kFallback that says so, and one that says how many events
  // were dropped.
  Dispatcher(env::Env& env, int64_t capacity, int64_t limit_ns);
  ~Dispatcher();  // delivers what is queued, however long it takes, unless Stop has been called
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  void AddHook(std::shared_ptr<Hook> hook);
  absl::Status Start();  // ResourceExhausted when the system grants no thread
  // Stamps both clocks and queues; never waits for a hook. Dropped and counted when the queue is full or the dispatcher has stopped.
  void Post(Event event);
  // Delivers what is queued. Takes at most the limit for each hook: one that is at an event then is left behind, with a thread that uses
  // the hook and `env`. Idempotent. Without Start nothing is delivered.
  void Stop();
  bool LeavesBehind() const;  // a hook that was left behind has not returned
  int64_t dropped_count() const;

 private:
  // What the delivering task needs, which may outlive the dispatcher.
  struct State {
    explicit State(env::Env& shared_env) : env(shared_env), mutex(shared_env), changed(shared_env) {}
    env::Env& env;
    env::Mutex mutex;
    env::CondVar changed;
    std::vector<std::shared_ptr<Hook>> hooks ABSL_GUARDED_BY(mutex);  // null: gets no further events
    std::deque<Event> queue ABSL_GUARDED_BY(mutex);
    std::optional<Event> event ABSL_GUARDED_BY(mutex);  // that is being delivered
    size_t next_hook ABSL_GUARDED_BY(mutex) = 0;        // that gets it, or is at it
    int64_t begun_ns ABSL_GUARDED_BY(mutex) = -1;       // of the call of that hook; -1: there is none
    uint64_t turn ABSL_GUARDED_BY(mutex) = 0;           // of the task that delivers; one of an earlier turn is left behind
    std::set<uint64_t> running ABSL_GUARDED_BY(mutex);  // turns of tasks that have not ended
    bool stopping ABSL_GUARDED_BY(mutex) = false;
    int64_t dropped_count ABSL_GUARDED_BY(mutex) = 0;
    int64_t untold_count ABSL_GUARDED_BY(mutex) = 0;  // of them
  };
  struct Call {
    std::shared_ptr<Hook> hook;
    Event event;
  };

  static void Deliver(State& state, uint64_t turn);
  static std::optional<Call> WaitForCall(State& state, uint64_t turn);
  static bool TakeEvent(State& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex);
  static void Remove(State& state, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex);
  static Event Fallback(State& state, const Event& like, std::string cause);
  bool StartTask(uint64_t turn);
  void LeaveBehind(int64_t begun_before_ns);

  const int64_t capacity_;
  const int64_t limit_ns_;
  const std::shared_ptr<State> state_;
  std::map<uint64_t, std::unique_ptr<env::Task>> tasks_ ABSL_GUARDED_BY(state_->mutex);  // by turn
};

}  // namespace lamina::hooks
