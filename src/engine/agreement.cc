#include "engine/agreement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/serial.h"
#include "base/status.h"
#include "base/units.h"

namespace lamina::engine {
namespace {

constexpr size_t kMessageBytes = 512 * 1024;  // well below what a store takes as one value
constexpr int64_t kPollFirstNs = base::kMillisecondNs;
constexpr int64_t kPollLastNs = 50 * base::kMillisecondNs;
constexpr int64_t kWithoutStoreNs = base::kSecondNs;  // a store that stumbles comes back sooner
constexpr size_t kRanksNamedMax = 16;
constexpr char kWholeTag = 'w';
constexpr char kPartsTag = 'p';

std::string PartKey(const std::string& key, uint64_t part) { return absl::StrCat(key, "#", part); }

// Of a message that is split; 0 for one that is not.
uint64_t PartCountOf(std::string_view head) {
  uint64_t parts = 0;
  const bool split = !head.empty() && head[0] == kPartsTag && absl::SimpleAtoi(absl::string_view(head.data() + 1, head.size() - 1), &parts);
  return split ? parts : 0;
}

absl::Status OfRank(const absl::Status& status, int32_t rank, std::string_view phase) {
  return base::WithDetail(base::WithDetail(status, base::kRankDetail, absl::StrCat(rank)), base::kPhaseDetail, phase);
}

std::string BeatKey(int32_t rank) { return absl::StrCat("beat/", rank); }

struct LastBeat {
  std::string phase;  // empty: none was ever seen, or it cannot be read
  int64_t bytes = 0;
};

// When each rank was last heard of by one wait.
class BeatWatch {
 public:
  BeatWatch(env::Env& env, int64_t beat_ns, int64_t timeout_ns, const SignOfLife& sign_of_life)
      : env_(env), beat_ns_(beat_ns), timeout_ns_(timeout_ns), sign_of_life_(sign_of_life) {}

  // Reads the beats of `ranks` if that is due; names the silent ones.
  std::vector<int32_t> Silent(const std::vector<int32_t>& ranks,
                              const std::function<absl::StatusOr<std::optional<std::string>>(int32_t)>& read) {
    std::vector<int32_t> silent;
    const int64_t now_ns = env_.MonotonicNs();
    if (started_ns_ < 0) started_ns_ = last_look_ns_ = now_ns;
    if (now_ns - last_look_ns_ < beat_ns_) return silent;
    last_look_ns_ = now_ns;
    if (seen_.empty()) seen_.resize(static_cast<size_t>(*std::max_element(ranks.begin(), ranks.end())) + 1, {"", started_ns_});
    for (const int32_t rank : ranks) {
      const absl::StatusOr<std::optional<std::string>> beat = read(rank);
      Seen& seen = seen_[static_cast<size_t>(rank)];
      if (beat.ok() && beat->has_value() && **beat != seen.beat) {
        seen.beat = **beat;
        seen.at_ns = now_ns;
      }
      if (now_ns - seen.at_ns < timeout_ns_ || ShowsLife(rank, seen)) continue;
      silent.push_back(rank);
    }
    return silent;
  }

  // Of a rank that was named.
  LastBeat LastOf(int32_t rank) const {
    const std::vector<std::string> fields = absl::StrSplit(seen_[static_cast<size_t>(rank)].beat, absl::MaxSplits(' ', 2));
    LastBeat last;
    if (fields.size() == 3 && absl::SimpleAtoi(fields[1], &last.bytes)) last.phase = fields[2];
    return last;
  }

 private:
  struct Seen {
    std::string beat;
    int64_t at_ns = 0;
    std::optional<int64_t> sign_ns = {};
  };

  // One that is new to this watch counts as a beat. Compared with itself alone: the clocks of machines need not agree.
  bool ShowsLife(int32_t rank, Seen& seen) {
    const std::optional<int64_t> sign_ns = sign_of_life_ ? sign_of_life_(rank) : std::nullopt;
    if (!sign_ns.has_value() || sign_ns == seen.sign_ns) return false;
    seen.sign_ns = sign_ns;
    seen.at_ns = env_.MonotonicNs();
    return true;
  }

  env::Env& env_;
  const int64_t beat_ns_;
  const int64_t timeout_ns_;
  const SignOfLife& sign_of_life_;
  int64_t started_ns_ = -1;
  int64_t last_look_ns_ = 0;
  std::vector<Seen> seen_;
};

}  // namespace

std::string EncodeStatus(const absl::Status& status) {
  base::Writer writer;
  writer.Put<int32_t>(static_cast<int32_t>(status.code()));
  writer.PutText(std::string_view(status.message().data(), status.message().size()));
  uint64_t count = 0;
  status.ForEachPayload([&count](absl::string_view, const absl::Cord&) { ++count; });
  writer.Put<uint64_t>(count);
  status.ForEachPayload([&writer](absl::string_view url, const absl::Cord& payload) {
    writer.PutText(std::string(url));
    writer.PutText(std::string(payload));
  });
  return writer.Take();
}

absl::Status DecodeStatus(std::string_view text) {
  base::Reader reader(text);
  const int32_t code = reader.Get<int32_t>();
  const std::string message = reader.GetText();
  if (!reader.ok() || code < 0 || code > static_cast<int32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::InternalError("a rank sent a status that cannot be read");
  }
  absl::Status status(static_cast<absl::StatusCode>(code), message);
  for (uint64_t left = reader.GetCount(2 * sizeof(uint64_t)); left > 0; --left) {
    const std::string detail = reader.GetText();
    const std::string value = reader.GetText();
    if (reader.ok()) status = base::WithDetail(status, detail, value);
  }
  return status;
}

absl::Status FromRank(const absl::Status& status, int32_t rank, std::string_view phase) {
  if (status.ok() || base::DetailOf(status, base::kRankDetail).has_value()) return status;
  return OfRank(base::Annotate(status, absl::StrCat("rank ", rank, ", ", std::string(phase))), rank, phase);
}

bool IsAbsence(const absl::Status& status) { return base::DetailOf(status, base::kPhaseDetail) == kWaitingPhase; }

std::string NameRanks(const std::vector<int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = std::min(ranks.size(), kRanksNamedMax);
  for (size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == ranks.size();
    absl::StrAppend(&text, i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (named < ranks.size()) absl::StrAppend(&text, " and ", ranks.size() - named, " more");
  return text;
}

Agreement::Agreement(env::Env& env, coord::Coordinator& coordinator, const Options& options, SignOfLife sign_of_life)
    : env_(env),
      coordinator_(coordinator),
      prefix_(absl::StrCat("lamina/", options.coordination_prefix, "/")),
      rank_(options.rank),
      rank_count_(options.rank_count),
      beat_ns_(SecondsToNs(options.beat_s)),
      beat_timeout_ns_(SecondsToNs(options.beat_timeout_s)),
      sign_of_life_(std::move(sign_of_life)),
      mutex_(env) {}

absl::Status Agreement::Say(const std::string& key, std::string_view value) {
  const uint64_t parts = value.size() <= kMessageBytes ? 0 : (value.size() + kMessageBytes - 1) / kMessageBytes;
  {
    const env::MutexLock lock(mutex_);  // first: a call that fails may have had its effect
    uint64_t& said = said_[key];
    said = std::max(said, parts);
  }
  if (parts == 0) return coordinator_.Set(Full(key), absl::StrCat(std::string(1, kWholeTag), std::string(value)));
  for (uint64_t part = 0; part < parts; ++part) {
    LAMINA_RETURN_IF_ERROR(coordinator_.Set(Full(PartKey(key, part)), value.substr(part * kMessageBytes, kMessageBytes)));
  }
  // The head comes last, so that who sees it finds all parts.
  return coordinator_.Set(Full(key), absl::StrCat(std::string(1, kPartsTag), parts));
}

absl::StatusOr<std::string> Agreement::Fetch(const std::string& key, std::string_view head) {
  if (!head.empty() && head[0] == kWholeTag) return std::string(head.substr(1));
  const uint64_t parts = PartCountOf(head);
  if (parts == 0) return absl::InternalError(absl::StrCat("the coordination key '", key, "' holds no message"));
  std::string value;
  for (uint64_t part = 0; part < parts; ++part) {
    LAMINA_ASSIGN_OR_RETURN(std::optional<std::string> bytes, coordinator_.Get(Full(PartKey(key, part))));
    if (!bytes.has_value()) return absl::UnavailableError(absl::StrCat("part ", part, " of the coordination key '", key, "' is gone"));
    value += *bytes;
  }
  return value;
}

absl::StatusOr<std::optional<std::string>> Agreement::Look(const std::string& key) {
  LAMINA_ASSIGN_OR_RETURN(std::optional<std::string> head, coordinator_.Get(Full(key)));
  if (!head.has_value()) return std::optional<std::string>();
  LAMINA_ASSIGN_OR_RETURN(std::string value, Fetch(key, *head));
  return std::optional<std::string>(std::move(value));
}

void Agreement::Forget(const std::string& prefix) {
  std::map<std::string, uint64_t> past;
  {
    const env::MutexLock lock(mutex_);
    for (auto each = said_.lower_bound(prefix); each != said_.end() && each->first.starts_with(prefix);) {
      past.insert(said_.extract(each++));
    }
  }
  for (const auto& [key, parts] : past) {
    coordinator_.Delete(Full(key)).IgnoreError();
    for (uint64_t part = 0; part < parts; ++part) coordinator_.Delete(Full(PartKey(key, part))).IgnoreError();
  }
}

absl::Status Agreement::WaitFor(const std::string& what, const std::vector<int32_t>& ranks, const Patience& patience,
                                const std::function<absl::StatusOr<bool>(int32_t)>& arrived) {
  BeatWatch watch(env_, beat_ns_, beat_timeout_ns_, sign_of_life_);
  std::vector<int32_t> missing = ranks;
  int64_t pause_ns = kPollFirstNs;
  int64_t answered_ns = env_.MonotonicNs();
  int64_t asked_without_ns = answered_ns;
  int64_t deadline_ns = patience.deadline_ns;
  std::map<int32_t, int64_t> signs_ns;
  while (true) {
    std::vector<int32_t> still_missing;
    absl::Status store;
    for (const int32_t rank : missing) {
      absl::StatusOr<bool> here = arrived(rank);
      if (!here.ok()) store = here.status();
      if (!here.ok() || !*here) still_missing.push_back(rank);
    }
    missing = std::move(still_missing);
    if (missing.empty()) return absl::OkStatus();
    if (patience.tick) LAMINA_RETURN_IF_ERROR(patience.tick());
    const int64_t now_ns = env_.MonotonicNs();
    if (store.ok()) answered_ns = asked_without_ns = now_ns;
    if (patience.without_store && now_ns - asked_without_ns >= kWithoutStoreNs) {
      asked_without_ns = now_ns;
      LAMINA_RETURN_IF_ERROR(patience.without_store());
    }
    // A store that stumbles is asked again for as long as a rank may be silent.
    if (!store.ok() && (!absl::IsUnavailable(store) || now_ns - answered_ns >= beat_timeout_ns_)) return store;
    if (now_ns >= deadline_ns && now_ns < patience.living_deadline_ns) {
      std::vector<int32_t> absent = WithoutSign(missing, signs_ns);
      if (absent.empty()) {
        deadline_ns = std::min(LaterBy(now_ns, beat_timeout_ns_), patience.living_deadline_ns);
      } else {
        missing = std::move(absent);
      }
    }
    if (now_ns >= deadline_ns) {
      const char* const hint = patience.watch_beats ? "" : ": all ranks of the process group call save() and restore(), in the same order";
      // Of the ranks that are missing, not of this one, which waited.
      return OfRank(absl::DeadlineExceededError(absl::StrCat(what, ": ", NameRanks(missing), " did not come in time", hint)),
                    missing.front(), kWaitingPhase);
    }
    if (patience.watch_beats && store.ok()) {
      const std::vector<int32_t> silent = watch.Silent(missing, [this](int32_t rank) { return coordinator_.Get(Full(BeatKey(rank))); });
      if (!silent.empty()) {
        const LastBeat last = watch.LastOf(silent.front());
        std::string heard;
        if (!last.phase.empty())
          heard = absl::StrCat("; rank ", silent.front(), " was last heard of ", last.phase, ", with ", last.bytes, " bytes done");
        absl::Status gone =
            absl::UnavailableError(absl::StrCat(what, ": ", NameRanks(silent), " gave no sign of life for ",
                                                beat_timeout_ns_ / base::kSecondNs, " s (killed, or its machine is gone)", heard));
        gone = base::WithDetail(gone, base::kRankDetail, absl::StrCat(silent.front()));
        return last.phase.empty() ? gone : base::WithDetail(gone, base::kPhaseDetail, last.phase);
      }
    }
    env_.SleepNs(std::min(pause_ns, deadline_ns - now_ns));
    pause_ns = std::min(2 * pause_ns, kPollLastNs);
  }
}

// Those of `ranks` that show no sign of life, or still the one that `signs_ns` holds of the last time.
std::vector<int32_t> Agreement::WithoutSign(const std::vector<int32_t>& ranks, std::map<int32_t, int64_t>& signs_ns) const {
  std::vector<int32_t> without;
  for (const int32_t rank : ranks) {
    const std::optional<int64_t> sign_ns = sign_of_life_ ? sign_of_life_(rank) : std::nullopt;
    const auto last = signs_ns.find(rank);
    if (!sign_ns.has_value() || (last != signs_ns.end() && last->second == *sign_ns)) {
      without.push_back(rank);
    } else {
      signs_ns[rank] = *sign_ns;
    }
  }
  return without;
}

absl::StatusOr<std::string> Agreement::Hear(const std::string& key, int32_t from, const Patience& patience) {
  std::string value;
  LAMINA_RETURN_IF_ERROR(WaitFor(patience.what, {from}, patience, [&](int32_t) -> absl::StatusOr<bool> {
    LAMINA_ASSIGN_OR_RETURN(std::optional<std::string> found, Look(key));
    if (found.has_value()) value = std::move(*found);
    return found.has_value();
  }));
  return value;
}

absl::StatusOr<std::vector<std::string>> Agreement::HearAll(const std::string& key, const Patience& patience) {
  std::vector<std::string> values(static_cast<size_t>(rank_count_));
  std::vector<int32_t> ranks(static_cast<size_t>(rank_count_));
  for (int32_t rank = 0; rank < rank_count_; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  LAMINA_RETURN_IF_ERROR(WaitFor(patience.what, ranks, patience, [&](int32_t rank) -> absl::StatusOr<bool> {
    LAMINA_ASSIGN_OR_RETURN(std::optional<std::string> found, Look(absl::StrCat(key, "/", rank)));
    if (found.has_value()) values[static_cast<size_t>(rank)] = std::move(*found);
    return found.has_value();
  }));
  return values;
}

absl::StatusOr<std::vector<std::string>> Agreement::Exchange(const std::string& key, std::string_view mine, const Patience& patience) {
  LAMINA_RETURN_IF_ERROR(Say(absl::StrCat(key, "/", rank_), mine));
  if (IsLeader()) {
    LAMINA_ASSIGN_OR_RETURN(std::vector<std::string> all, HearAll(key, patience));
    base::Writer writer;
    writer.Put<uint64_t>(all.size());
    for (const std::string& value : all) writer.PutText(value);
    LAMINA_RETURN_IF_ERROR(Say(absl::StrCat(key, "/all"), writer.Take()));
    return all;
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string joined, Hear(absl::StrCat(key, "/all"), 0, patience));
  base::Reader reader(joined);
  std::vector<std::string> all(reader.GetCount(sizeof(uint64_t)));
  for (std::string& value : all) value = reader.GetText();
  if (!reader.AtEnd() || all.size() != static_cast<size_t>(rank_count_)) {
    return absl::InternalError(absl::StrCat(patience.what, ": rank 0 sent a list that cannot be read"));
  }
  return all;
}

absl::StatusOr<std::string> Agreement::Assemble(const std::string& key, const std::string& what, double begin_timeout_s,
                                                const absl::Status& mine, const std::function<absl::StatusOr<std::string>()>& leader_work) {
  // A rank that has not come does not beat: only the timeout tells. One that cannot say that it has come shows so on storage.
  const Patience begin{
      .what = what, .deadline_ns = DeadlineAfter(env_, begin_timeout_s), .living_deadline_ns = env::kForeverNs, .watch_beats = false};
  const auto lead = [&]() -> absl::StatusOr<std::string> {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> states, HearAll(key + "/begin", begin));
    for (const std::string& state : states) LAMINA_RETURN_IF_ERROR(DecodeStatus(state));
    absl::StatusOr<std::string> answer = leader_work();
    return answer.ok() ? answer : FromRank(answer.status(), rank_, what);
  };
  LAMINA_RETURN_IF_ERROR(Say(absl::StrCat(key, "/begin/", rank_), EncodeStatus(FromRank(mine, rank_, what))));
  if (IsLeader()) {
    absl::StatusOr<std::string> answer = lead();
    base::Writer writer;
    writer.PutText(EncodeStatus(answer.status()));
    writer.PutText(answer.ok() ? *answer : "");
    LAMINA_RETURN_IF_ERROR(Say(key + "/answer", writer.Take()));
    return answer;
  }
  LAMINA_RETURN_IF_ERROR(Hear(key + "/begin/0", 0, begin).status());
  LAMINA_ASSIGN_OR_RETURN(const std::string text, Hear(key + "/answer", 0, {.what = what}));
  base::Reader reader(text);
  const std::string status = reader.GetText();
  std::string answer = reader.GetText();
  if (!reader.AtEnd()) return absl::InternalError(absl::StrCat(what, ": rank 0 sent an answer that cannot be read"));
  LAMINA_RETURN_IF_ERROR(DecodeStatus(status));
  return answer;
}

void Agreement::Beat(std::string_view phase, int64_t bytes) {
  // A beat that the store did not take is not news: the next one follows, and a store that is gone shows in the waits.
  coordinator_.Set(Full(BeatKey(rank_)), absl::StrCat(++beat_count_, " ", bytes, " ", std::string(phase))).IgnoreError();
}

}  // namespace lamina::engine
