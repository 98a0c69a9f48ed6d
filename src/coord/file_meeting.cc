#include "coord/file_meeting.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::coord {
namespace {

constexpr std::string_view kLaunchPrefix = "launch-";
constexpr int64_t kLeftoverNs = 7 * 24 * 3600 * base::kSecondNs;  // longer than a live job goes without a save
constexpr int64_t kPauseFirstNs = base::kMillisecondNs;
constexpr int64_t kPauseLastNs = 50 * base::kMillisecondNs;
constexpr size_t kRanksNamedMax = 16;

std::string LaunchDirectory(const std::string& directory, const std::string& nonce) {
  return absl::StrCat(directory, "/", std::string(kLaunchPrefix), nonce);
}

std::string CallKey(const std::string& job) { return job + "/call"; }
std::string HereKey(const std::string& job, const std::string& call, int32_t rank) { return absl::StrCat(job, "/", call, "/here/", rank); }
std::string GoKey(const std::string& job, const std::string& call) { return absl::StrCat(job, "/", call, "/go"); }
std::string LeftKey(int32_t rank) { return absl::StrCat("left/", rank); }

absl::Status MakeDirectory(env::FileSystem& files, const std::string& path) {
  const absl::Status made = files.MakeDirectory(path);
  return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
}

// All at once is too much for a message: the first ones.
std::string Numbers(const std::vector<int32_t>& ranks) {
  const std::vector<int32_t> named(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(std::min(ranks.size(), kRanksNamedMax)));
  return absl::StrCat(absl::StrJoin(named, ", "), named.size() < ranks.size() ? ", ..." : "");
}

// What launches that nobody ended left behind. Best effort: what stands in the way is no business of this launch.
void RemoveLeftovers(env::Env& env, const std::string& directory, int64_t now_ns) {
  const absl::StatusOr<std::vector<env::DirectoryEntry>> entries = env.files().List(directory);
  if (!entries.ok()) return;
  for (const env::DirectoryEntry& entry : *entries) {
    const std::string path = absl::StrCat(directory, "/", entry.name);
    const bool is_launch = entry.kind == env::FileKind::kDirectory && entry.name.starts_with(kLaunchPrefix);
    const bool is_key = entry.kind == env::FileKind::kFile && IsKeyFile(entry.name);
    if (!is_launch && !is_key) continue;
    const absl::StatusOr<env::FileInfo> info = env.files().Stat(path);
    if (!info.ok() || now_ns - info->modified_ns < kLeftoverNs) continue;
    if (is_key) env.files().Unlink(path).IgnoreError();
    if (is_launch && FileCoordinator(env, path).DeleteAll().ok()) env.files().RemoveDirectory(path).IgnoreError();
  }
}

// One rank in the meeting. Its board may not be seen yet, or stumble: what is Unavailable is tried again until the time is up.
class Participant {
 public:
  Participant(env::Env& env, const FileMeetingOptions& options)
      : env_(env),
        options_(options),
        board_(env, options.directory),
        deadline_ns_(env.MonotonicNs() + static_cast<int64_t>(options.timeout_s * static_cast<double>(base::kSecondNs))) {}

  // Rank 0: calls, hears every rank, lists them.
  absl::StatusOr<std::string> Gather() {
    const std::string call = env::RandomHex(env_, kNonceDigits);
    const std::string launch = LaunchDirectory(options_.directory, call);
    LAMINA_RETURN_IF_ERROR(Repeat([&] { return Done(board_.Set(CallKey(options_.job), call)); }, [] { return absl::OkStatus(); }));
    std::vector<std::string> answers(static_cast<size_t>(options_.rank_count));
    answers[0] = call;
    std::vector<int32_t> missing;
    const auto all_answered = [&]() -> absl::StatusOr<bool> {
      missing.clear();
      for (int32_t rank = 1; rank < options_.rank_count; ++rank) {
        std::string& answer = answers[static_cast<size_t>(rank)];
        if (!answer.empty()) continue;
        LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> found, board_.Get(HereKey(options_.job, call, rank)));
        answer = found.value_or("");
        if (answer.empty()) missing.push_back(rank);
      }
      return missing.empty();
    };
    LAMINA_RETURN_IF_ERROR(Repeat(all_answered, [&] {
      return absl::DeadlineExceededError(
          absl::StrCat("ranks that did not come to '", options_.directory, "' within ", options_.timeout_s, " s: ", Numbers(missing)));
    }));
    LAMINA_RETURN_IF_ERROR(MakeDirectory(env_.files(), launch));
    LAMINA_RETURN_IF_ERROR(board_.Set(GoKey(options_.job, call), absl::StrJoin(answers, "\n")));
    return call;
  }

  // Every other rank: answers calls until one is followed by a list that names it.
  absl::StatusOr<std::string> Answer() {
    const std::string mine = env::RandomHex(env_, kNonceDigits);
    std::string answered;
    const auto is_listed = [&]() -> absl::StatusOr<bool> {
      LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> call, board_.Get(CallKey(options_.job)));
      if (call.has_value() && *call != answered) {
        if (!answered.empty()) LAMINA_RETURN_IF_ERROR(board_.Delete(HereKey(options_.job, answered, options_.rank)));
        LAMINA_RETURN_IF_ERROR(board_.Set(HereKey(options_.job, *call, options_.rank), mine));
        answered = *call;
      }
      if (answered.empty()) return false;
      LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> list, board_.Get(GoKey(options_.job, answered)));
      const std::vector<std::string> ranks = absl::StrSplit(list.value_or(""), '\n');
      if (std::ranges::find(ranks, mine) == ranks.end()) return false;
      if (ranks.size() == static_cast<size_t>(options_.rank_count)) return true;
      return absl::InvalidArgumentError(
          absl::StrCat("rank 0 was started with rank_count ", ranks.size(), ", rank ", options_.rank, " with ", options_.rank_count));
    };
    const absl::Status listed = Repeat(is_listed, [&] {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", options_.rank, " came to '", options_.directory, "' and was not called by rank 0 within ",
                       options_.timeout_s, " s: rank 0, or a rank that it waits for, did not come, or another process has this rank"));
    });
    if (!answered.empty()) board_.Delete(HereKey(options_.job, answered, options_.rank)).IgnoreError();  // heard, or in vain
    LAMINA_RETURN_IF_ERROR(listed);
    // A name that another client of the file system made shows late.
    FileCoordinator launch(env_, LaunchDirectory(options_.directory, answered));
    LAMINA_RETURN_IF_ERROR(Repeat([&] { return Done(launch.Check("").status()); }, [] { return absl::OkStatus(); }));
    return answered;
  }

 private:
  static absl::StatusOr<bool> Done(const absl::Status& status) { return status.ok() ? absl::StatusOr<bool>(true) : status; }

  // Until `attempt` is true or fails for good. When the time is up: what `late` says, else what stood in the way last.
  absl::Status Repeat(const std::function<absl::StatusOr<bool>()>& attempt, const std::function<absl::Status()>& late) {
    for (int64_t pause_ns = kPauseFirstNs;; pause_ns = std::min(2 * pause_ns, kPauseLastNs)) {
      const absl::StatusOr<bool> done = attempt();
      if (done.ok() && *done) return absl::OkStatus();
      if (!done.ok() && !absl::IsUnavailable(done.status())) return done.status();
      const int64_t now_ns = env_.MonotonicNs();
      if (now_ns >= deadline_ns_) return done.ok() ? late() : done.status();
      env_.SleepNs(std::min(pause_ns, deadline_ns_ - now_ns));
    }
  }

  env::Env& env_;
  const FileMeetingOptions& options_;
  FileCoordinator board_;
  const int64_t deadline_ns_;
};

}  // namespace

FileMeeting::FileMeeting(env::Env& env, const FileMeetingOptions& options, std::string nonce)
    : env_(env), options_(options), nonce_(std::move(nonce)), launch_(env, LaunchDirectory(options.directory, nonce_)) {}

absl::StatusOr<std::unique_ptr<FileMeeting>> FileMeeting::Join(env::Env& env, const FileMeetingOptions& options) {
  LAMINA_RETURN_IF_ERROR(MakeDirectory(env.files(), options.directory));
  Participant participant(env, options);
  absl::StatusOr<std::string> nonce = options.rank == 0 ? participant.Gather() : participant.Answer();
  LAMINA_RETURN_IF_ERROR(nonce.status());
  std::unique_ptr<FileMeeting> meeting(new FileMeeting(env, options, *std::move(nonce)));
  if (options.rank == 0) {
    const absl::StatusOr<env::FileInfo> made = env.files().Stat(LaunchDirectory(options.directory, meeting->nonce()));
    if (made.ok()) RemoveLeftovers(env, options.directory, made->modified_ns);  // the present by the server's clock
  }
  return meeting;
}

absl::Status FileMeeting::Leave() {
  LAMINA_RETURN_IF_ERROR(launch_.Set(LeftKey(options_.rank), ""));
  const absl::Status status = RemoveIfLast();
  return absl::IsUnavailable(status) ? absl::OkStatus() : status;  // another one was the last and is removing it
}

absl::Status FileMeeting::RemoveIfLast() {
  for (int32_t rank = 0; rank < options_.rank_count; ++rank) {
    LAMINA_ASSIGN_OR_RETURN(const bool left, launch_.Check(LeftKey(rank)));
    if (!left) return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(launch_.DeleteAll());
  const absl::Status removed = env_.files().RemoveDirectory(LaunchDirectory(options_.directory, nonce_));
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  FileCoordinator board(env_, options_.directory);
  LAMINA_RETURN_IF_ERROR(board.Delete(GoKey(options_.job, nonce_)));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> call, board.Get(CallKey(options_.job)));
  return call == nonce_ ? board.Delete(CallKey(options_.job)) : absl::OkStatus();
}

}  // namespace lamina::coord
