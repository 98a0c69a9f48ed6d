// What ranks say to one another: keys under the job's prefix, waiting with a watch on the others' beats, statuses as messages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coord/coordinator.h"
#include "env/env.h"
#include "env/sync.h"
#include "lamina/options.h"

namespace lamina::engine {

std::string EncodeStatus(const absl::Status& status);
// A text that is no status is an Internal status.
absl::Status DecodeStatus(std::string_view text);
// The status with this rank and phase as details, and "rank 3, writing: " before the message, unless an earlier cause is in it already.
absl::Status FromRank(const absl::Status& status, int32_t rank, std::string_view phase);
inline constexpr std::string_view kWaitingPhase = "waiting";  // of a rank that others waited for in vain
bool IsAbsence(const absl::Status& status);                   // all it says is that a rank did not come

// How long and under which conditions to wait.
struct Patience {
  std::string what;                       // "the vote of step 100": for messages
  int64_t deadline_ns = env::kForeverNs;  // DeadlineExceeded naming the ranks that are missing; its details are the first one's
  int64_t living_deadline_ns = 0;         // when later: of ranks that are missing at the deadline and show life on storage from then on
  bool watch_beats = true;  // Unavailable naming a rank that is missing and has not beaten for beat_timeout_s, and its last beat
  std::function<absl::Status()> tick = {};           // called at each poll; a status that is not OK ends the wait
  std::function<absl::Status()> without_store = {};  // the same, about once a second while the store does not answer
};

// The time of what a rank shows on storage while the coordinator does not take its beats; nullopt: it shows nothing. Asked only before a
// rank counts as silent or as not come.
using SignOfLife = std::function<std::optional<int64_t>(int32_t rank)>;

// Thread-safe but for the beats that a wait watches, which are its own.
class Agreement {
 public:
  Agreement(env::Env& env, coord::Coordinator& coordinator, const Options& options, SignOfLife sign_of_life = nullptr);

  int32_t rank() const { return rank_; }
  int32_t rank_count() const { return rank_count_; }
  bool IsLeader() const { return rank_ == 0; }

  absl::Status Say(const std::string& key, std::string_view value);  // value of any size: split into parts
  absl::StatusOr<std::optional<std::string>> Look(const std::string& key);
  // Takes back what this rank has said under keys that start so; best effort, since the job's end ends them.
  void Forget(const std::string& prefix);
  // Waits for what `from` says under `key`.
  absl::StatusOr<std::string> Hear(const std::string& key, int32_t from, const Patience& patience);
  // Waits for `key`/<rank> of every rank, in the order of ranks.
  absl::StatusOr<std::vector<std::string>> HearAll(const std::string& key, const Patience& patience);
  // All ranks call it; each gets what every rank said. The leader gathers and passes on, so that a rank asks once.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& key, std::string_view mine, const Patience& patience);
  // All ranks come together: each says how it is (`mine`), the leader works and its answer is everybody's. DeadlineExceeded naming the
  // ranks that have not come after `begin_timeout_s`; the first rank's status that is not OK; the leader's own.
  absl::StatusOr<std::string> Assemble(const std::string& key, const std::string& what, double begin_timeout_s, const absl::Status& mine,
                                       const std::function<absl::StatusOr<std::string>()>& leader_work);
  // That this rank lives, what it does and how many bytes of it are done.
  void Beat(std::string_view phase, int64_t bytes);

 private:
  std::string Full(const std::string& key) const { return prefix_ + key; }
  absl::StatusOr<std::string> Fetch(const std::string& key, std::string_view head);
  absl::Status WaitFor(const std::string& what, const std::vector<int32_t>& missing_ranks, const Patience& patience,
                       const std::function<absl::StatusOr<bool>(int32_t)>& arrived);
  std::vector<int32_t> WithoutSign(const std::vector<int32_t>& ranks, std::map<int32_t, int64_t>& signs_ns) const;

  env::Env& env_;
  coord::Coordinator& coordinator_;
  const std::string prefix_;
  const int32_t rank_;
  const int32_t rank_count_;
  const int64_t beat_ns_;
  const int64_t beat_timeout_ns_;
  const SignOfLife sign_of_life_;
  uint64_t beat_count_ = 0;
  env::Mutex mutex_;                                              // not held across a call of the coordinator
  std::map<std::string, uint64_t> said_ ABSL_GUARDED_BY(mutex_);  // keys, and in how many parts
};

std::string NameRanks(const std::vector<int32_t>& ranks);  // "rank 3"; "ranks 1, 2 and 7"; at most 16 by number

inline int64_t SecondsToNs(double seconds) { return seconds > 9e9 ? env::kForeverNs : static_cast<int64_t>(seconds * 1e9); }
inline double NsToSeconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }
// A moment later than `ns`, which may be kForeverNs.
inline int64_t LaterBy(int64_t ns, int64_t duration_ns) { return ns > env::kForeverNs - duration_ns ? env::kForeverNs : ns + duration_ns; }
inline int64_t DeadlineAfter(env::Env& env, double seconds) {
  const int64_t duration_ns = SecondsToNs(seconds);
  const int64_t now_ns = env.MonotonicNs();
  return duration_ns > env::kForeverNs - now_ns ? env::kForeverNs : now_ns + duration_ns;
}

}  // namespace lamina::engine
