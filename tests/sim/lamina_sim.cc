// lamina_sim: random histories of jobs on a simulated cluster, each from one seed. docs/simulation.md says how to use it.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/history.h"

namespace lamina::sim {
namespace {

constexpr std::string_view kUsage =
    "usage: lamina_sim [--seed S] [--seeds COUNT] [--ranks N] [--saves K] [--faults LIST] [--twice] [--tell] [--json]\n"
    "  --seed S       the first seed (1)\n"
    "  --seeds COUNT  how many seeds, from S on (1)\n"
    "  --ranks N      a launch has 1 to N ranks (4)\n"
    "  --saves K      saves of a history, before its final launch (6)\n"
    "  --faults LIST  all (the default), none, names with commas between them; list: says which there are\n"
    "  --twice        runs each seed twice, and compares\n"
    "  --tell         says what happens in each history\n"
    "  --json         one object a line: a failed history each, then the sum\n"
    "exit codes: 0 all is well, 1 a history broke an invariant, 2 wrong use\n";

struct Settings {
  HistoryOptions history;
  uint64_t seed_count = 1;
  std::string faults = "all";
  bool twice = false;
  bool json = false;
};

// Nullopt: wrong use, and why has been said.
std::optional<Settings> Parse(int count, char** words) {
  Settings settings;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    const auto flag = [&](std::string_view name, bool& value) { return word == name && (value = true); };
    if (flag("--twice", settings.twice) || flag("--tell", settings.history.tell) || flag("--json", settings.json)) continue;
    const absl::string_view value = i + 1 < count ? words[i + 1] : "";
    const auto number = [&](std::string_view name, auto& target, int64_t least, int64_t most) {
      int64_t parsed = 0;
      if (word != name || !absl::SimpleAtoi(value, &parsed) || parsed < least || parsed > most) return false;
      target = static_cast<std::remove_reference_t<decltype(target)>>(parsed);
      return true;
    };
    const bool known = number("--seed", settings.history.seed, 0, INT64_MAX / 4) ||
                       number("--seeds", settings.seed_count, 1, INT64_MAX / 4) ||
                       number("--ranks", settings.history.rank_count_max, 1, 64) ||
                       number("--saves", settings.history.save_count, 1, 300) || (word == "--faults" && !value.empty());
    if (!known) {
      std::fprintf(stderr, "lamina_sim: '%s %s' is no option with a value in its range\n%s", words[i], std::string(value).c_str(),
                   kUsage.data());
      return std::nullopt;
    }
    if (word == "--faults") settings.faults = std::string(value);
    ++i;
  }
  return settings;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? std::string("\\n") : static_cast<unsigned char>(c) < 0x20 ? std::string(" ") : std::string(1, c);
  }
  return quoted + "\"";
}

std::string Replay(const Settings& settings, uint64_t seed) {
  return absl::StrCat("lamina_sim --seed ", seed, " --ranks ", settings.history.rank_count_max, " --saves ", settings.history.save_count,
                      " --faults ", settings.faults);
}

void SayFailure(const Settings& settings, uint64_t seed, const HistoryOutcome& outcome) {
  const std::string message(outcome.status.message());
  if (settings.json) {
    std::printf("{\"seed\": %llu, \"broke\": %s, \"replay\": %s}\n", static_cast<unsigned long long>(seed), Quoted(message).c_str(),
                Quoted(Replay(settings, seed)).c_str());
  } else {
    std::printf("seed %llu broke: %s\n%sreplay: %s --tell\n", static_cast<unsigned long long>(seed), message.c_str(), outcome.story.c_str(),
                Replay(settings, seed).c_str());
  }
  std::fflush(stdout);
}

// What many histories came to.
struct Sum {
  int64_t histories = 0;
  int64_t failed = 0;
  int64_t launches = 0;
  int64_t commits = 0;
  int64_t restores = 0;
  int64_t drops = 0;
  int64_t deletions = 0;
  int64_t reads = 0;
  int64_t late_reads = 0;
  int64_t operations = 0;
  double simulated_s = 0;
  std::map<FaultKind, int64_t> faults;

  void Add(const HistoryOutcome& outcome) {
    ++histories;
    failed += outcome.status.ok() ? 0 : 1;
    launches += outcome.launch_count;
    commits += outcome.commit_count;
    restores += outcome.restore_count;
    drops += outcome.drop_count;
    deletions += outcome.deletion_count;
    reads += outcome.read_count;
    late_reads += outcome.late_read_count;
    operations += outcome.op_count;
    simulated_s += outcome.simulated_s;
    for (const auto& [kind, count] : outcome.faults) faults[kind] += count;
  }
  void Say(bool json, double wall_s) const {
    const std::string kinds = absl::StrJoin(faults, ", ", [json](std::string* out, const auto& fault) {
      absl::StrAppend(out, json ? Quoted(NameOf(fault.first)) : std::string(NameOf(fault.first)), json ? ": " : " ", fault.second);
    });
    const char* const format = json ? "{\"histories\": %lld, \"failed\": %lld, \"launches\": %lld, \"commits\": %lld, \"restores\": %lld, "
                                      "\"drops\": %lld, \"deletions\": %lld, \"reads\": %lld, \"late_reads\": %lld, "
                                      "\"operations\": %lld, \"simulated_s\": %.0f, \"wall_s\": %.1f, \"faults\": {%s}}\n"
                                    : "%lld histories, %lld failed; %lld launches, %lld commits, %lld restores, %lld drops, %lld files "
                                      "deleted, %lld steps read beside and %lld too late, %lld operations, %.0f s "
                                      "simulated in %.1f s\nfaults planned: %s\n";
    std::printf(format, static_cast<long long>(histories), static_cast<long long>(failed), static_cast<long long>(launches),
                static_cast<long long>(commits), static_cast<long long>(restores), static_cast<long long>(drops),
                static_cast<long long>(deletions), static_cast<long long>(reads), static_cast<long long>(late_reads),
                static_cast<long long>(operations), simulated_s, wall_s, kinds.c_str());
  }
};

int Main(int count, char** words) {
  std::optional<Settings> settings = Parse(count, words);
  if (!settings.has_value()) return 2;
  if (settings->faults == "list") {
    for (const FaultKindInfo& info : FaultKinds())
      std::printf("%-14s %s\n", std::string(info.name).c_str(), std::string(info.text).c_str());
    return 0;
  }
  const absl::StatusOr<std::set<FaultKind>> kinds = ParseFaultKinds(settings->faults);
  if (!kinds.ok()) {
    std::fprintf(stderr, "lamina_sim: %s\n", std::string(kinds.status().message()).c_str());
    return 2;
  }
  settings->history.faults = *kinds;
  const auto begun = std::chrono::steady_clock::now();
  Sum sum;
  env::SimThreads threads;
  for (uint64_t i = 0; i < settings->seed_count; ++i) {
    HistoryOptions options = settings->history;
    options.seed += i;
    HistoryOutcome outcome = RunHistory(options, threads);
    if (settings->twice && outcome.status.ok() && RunHistory(options, threads).trace_hash != outcome.trace_hash) {
      outcome.status = absl::InternalError("the seed does not replay: a second run took another course");
    }
    sum.Add(outcome);
    if (!outcome.status.ok())
      SayFailure(*settings, options.seed, outcome);
    else if (settings->history.tell && !settings->json)
      std::printf("seed %llu:\n%s", static_cast<unsigned long long>(options.seed), outcome.story.c_str());
  }
  sum.Say(settings->json, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  return sum.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lamina::sim

int main(int count, char** words) { return lamina::sim::Main(count, words); }
