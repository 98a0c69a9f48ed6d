#include "engine/shared_path.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/serial.h"
#include "base/status.h"
#include "base/units.h"
#include "format/paths.h"
#include "tier/log.h"
#include "tier/patient_tier.h"

namespace lamina::engine {
namespace {

constexpr int64_t kLookPauseNs = 50 * base::kMillisecondNs;
constexpr double kUnseenS = 22;  // how long a network file system may not show what another machine made
constexpr int64_t kProbeBytesMax = 1024;

// What one rank found, for the leader.
struct Seen {
  absl::Status status;
  bool shared = false;
  std::string probe;  // that this rank has put, for the leader to see; empty: none
  std::string host;
};

std::string Encode(const Seen& seen) {
  base::Writer writer;
  writer.PutText(EncodeStatus(seen.status));
  writer.Put<uint8_t>(seen.shared);
  writer.PutText(seen.probe);
  writer.PutText(seen.host);
  return writer.Take();
}

absl::StatusOr<Seen> DecodeSeen(std::string_view text) {
  base::Reader reader(text);
  Seen seen;
  seen.status = DecodeStatus(reader.GetText());
  seen.shared = reader.Get<uint8_t>() != 0;
  seen.probe = reader.GetText();
  seen.host = reader.GetText();
  if (!reader.AtEnd()) return absl::InternalError("a rank sent what it sees of the root in a form that cannot be read");
  return seen;
}

class PathCheck {
 public:
  PathCheck(const Options& options, const Runtime& runtime, Agreement& agreement)
      : options_(options), runtime_(runtime), agreement_(agreement) {}

  absl::Status Run(const std::string& key, const std::string& what, const absl::Status& mine) {
    LAMINA_ASSIGN_OR_RETURN(mark_, agreement_.Assemble(key, what, options_.begin_timeout_s, mine, [this] { return Mark(); }));
    const Seen seen = Look();
    const absl::Status verdict = Verdict(key, what, seen);
    for (const std::string& name : {own_, seen.probe}) {
      if (!name.empty()) runtime_.tier.Delete(name).IgnoreError();  // one that stays is a few bytes, which a later claim removes
    }
    return verdict;
  }

 private:
  // Of the leader: what the others are to find.
  absl::StatusOr<std::string> Mark() {
    tier::PatientTier tier(runtime_.env, runtime_.tier, tier::LogPatience(runtime_.tier, SecondsToNs(options_.restore_retry_s)));
    tier::Log log(runtime_.env, tier);
    if (options_.mode == Mode::kRead) {
      LAMINA_ASSIGN_OR_RETURN(const format::StoreHeader store, OpenRoot(options_, log));
      return format::ToString(store.store_id);
    }
    LAMINA_RETURN_IF_ERROR(OpenRoot(options_, log).status());
    LAMINA_ASSIGN_OR_RETURN(own_, Put());
    return own_;
  }

  // A file that holds its own name.
  absl::StatusOr<std::string> Put() {
    const std::string name = format::ProbePath(env::RandomHex(runtime_.env, format::kNonceDigits));
    LAMINA_RETURN_IF_ERROR(base::Annotate(runtime_.tier.PutIfAbsent(name, name), absl::StrCat("writing '", name, "'")));
    return name;
  }

  Seen Look() {
    Seen seen;
    seen.host = runtime_.env.Self().host;
    if (agreement_.IsLeader()) {
      seen.shared = true;
      return seen;
    }
    seen.status = Sees(mark_, seen.shared);
    const bool first_here = agreement_.rank() % options_.local_rank_count == 0;
    if (!seen.status.ok() || !seen.shared || !first_here || options_.mode == Mode::kRead) return seen;
    absl::StatusOr<std::string> put = Put();
    seen.status = put.status();
    if (put.ok()) seen.probe = *std::move(put);
    return seen;
  }

  // Asks again for what may show later.
  absl::Status Sees(const std::string& mark, bool& shared) {
    const int64_t deadline_ns = DeadlineAfter(runtime_.env, options_.restore_retry_s > 0 ? kUnseenS : 0);
    while (true) {
      const absl::StatusOr<std::string> found = Read(mark);
      shared = found.ok() && *found == mark;
      if (shared) return absl::OkStatus();
      const bool may_show = absl::IsNotFound(found.status()) || absl::IsUnavailable(found.status());
      if (!may_show || runtime_.env.MonotonicNs() >= deadline_ns) {
        return found.ok() || absl::IsNotFound(found.status()) ? absl::OkStatus() : found.status();
      }
      runtime_.env.SleepNs(kLookPauseNs);
    }
  }

  absl::StatusOr<std::string> Read(const std::string& mark) {
    if (options_.mode == Mode::kTrain) return tier::ReadWhole(runtime_.tier, mark, kProbeBytesMax);
    LAMINA_ASSIGN_OR_RETURN(const format::StoreHeader store, tier::Log(runtime_.env, runtime_.tier).ReadStore());
    return format::ToString(store.store_id);
  }

  absl::Status Verdict(const std::string& key, const std::string& what, const Seen& seen) {
    const Patience patience{.what = absl::StrCat(what, ", who sees the root")};
    LAMINA_RETURN_IF_ERROR(agreement_.Say(absl::StrCat(key, "/seen/", agreement_.rank()), Encode(seen)));
    if (!agreement_.IsLeader()) {
      LAMINA_ASSIGN_OR_RETURN(const std::string text, agreement_.Hear(key + "/verdict", 0, patience));
      return DecodeStatus(text);
    }
    const absl::Status verdict = Judge(key, patience);
    LAMINA_RETURN_IF_ERROR(agreement_.Say(key + "/verdict", EncodeStatus(verdict)));
    return verdict;
  }

  absl::Status Judge(const std::string& key, const Patience& patience) {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<std::string> texts, agreement_.HearAll(key + "/seen", patience));
    std::vector<int32_t> apart;
    std::vector<std::string> hosts;
    for (int32_t rank = 0; rank < agreement_.rank_count(); ++rank) {
      LAMINA_ASSIGN_OR_RETURN(Seen seen, DecodeSeen(texts[static_cast<size_t>(rank)]));
      if (!seen.status.ok()) return FromRank(seen.status, rank, "looking at the root");
      if (seen.shared && !seen.probe.empty()) LAMINA_RETURN_IF_ERROR(Sees(seen.probe, seen.shared));
      if (seen.shared) continue;
      apart.push_back(rank);
      if (std::find(hosts.begin(), hosts.end(), seen.host) == hosts.end()) hosts.push_back(seen.host);
    }
    if (apart.empty()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(
        "the root '", runtime_.tier.Describe(), "' is not shared: ", NameRanks(apart), " (host ", absl::StrJoin(hosts, ", "),
        ") and rank 0 (host ", runtime_.env.Self().host,
        ") do not see one another's files there. All ranks need the same directory at this path, such as one network file system that is "
        "mounted alike on all machines"));
  }

  const Options& options_;
  const Runtime& runtime_;
  Agreement& agreement_;
  std::string mark_;
  std::string own_;  // of the leader: its probe
};

}  // namespace

absl::StatusOr<format::StoreHeader> OpenRoot(const Options& options, tier::Log& log) {
  if (options.expect_store.empty()) return options.mode == Mode::kRead ? log.ReadStore() : log.CreateOrReadStore();
  const absl::StatusOr<format::StoreHeader> store = log.ReadStore();
  if (absl::IsNotFound(store.status())) {
    return absl::NotFoundError(absl::StrCat(std::string(store.status().message()), ", and store ", options.expect_store,
                                            " is expected (LAMINA_EXPECT_STORE): is its file system mounted?"));
  }
  LAMINA_RETURN_IF_ERROR(store.status());
  if (const std::string found = format::ToString(store->store_id); found != options.expect_store) {
    return absl::FailedPreconditionError(absl::StrCat("'", options.root, "' holds store ", found, ", and store ", options.expect_store,
                                                      " is expected (LAMINA_EXPECT_STORE): is another file system mounted?"));
  }
  return store;
}

absl::Status CheckSharedPath(const Options& options, const Runtime& runtime, Agreement& agreement, const std::string& key,
                             const std::string& what, const absl::Status& mine) {
  return PathCheck(options, runtime, agreement).Run(key, what, mine);
}

}  // namespace lamina::engine
