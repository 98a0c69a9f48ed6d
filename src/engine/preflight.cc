#include "engine/preflight.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "device/host_device.h"
#include "device/pinned_window.h"
#include "engine/agreement.h"
#include "engine/memory_budget.h"
#include "engine/runtime.h"
#include "env/posix_env.h"
#include "format/paths.h"
#include "snapshot/snapshotter.h"
#include "tier/file_names.h"

namespace lamina::engine {
namespace {

constexpr int64_t kSampleBytes = 32 * base::kMiB;
constexpr int64_t kPartBytes = base::kMiB;
constexpr int64_t kFewBytes = base::kGiB;  // of free room, where the state's size is not known
constexpr int64_t kFilesBesidePacks = 5;   // of one save: catalog, packs, the log's record, two directories
constexpr int64_t kSavesOfInodes = 1000;
constexpr int64_t kManySaves = 1000;
constexpr int64_t kClockNs = 2 * base::kSecondNs;
constexpr double kLongHoldS = 5;

std::string Size(int64_t bytes) {
  constexpr std::pair<double, const char*> kUnits[] = {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}};
  for (const auto& [unit, name] : kUnits) {
    if (static_cast<double>(bytes) >= unit) return absl::StrFormat("%.1f %s", static_cast<double>(bytes) / unit, name);
  }
  return absl::StrCat(bytes, " B");
}

std::string Seconds(double seconds) {
  return seconds < 0.1 ? absl::StrFormat("%.1f ms", seconds * 1e3) : absl::StrFormat("%.2f s", seconds);
}

std::string Quoted(const std::string& path) { return absl::StrCat("'", path, "'"); }

Finding Fine(std::string name, std::string found, std::string expected = {}) {
  Finding finding;
  finding.name = std::move(name);
  finding.found = std::move(found);
  finding.expected = std::move(expected);
  return finding;
}

Finding Fail(std::string name, const absl::Status& status, std::string expected, std::string advice) {
  Finding finding = Fine(std::move(name), std::string(status.message()), std::move(expected));
  finding.level = FindingLevel::kFail;
  finding.advice = std::move(advice);
  finding.code = status.code();
  return finding;
}

void Warn(Finding& finding, std::string advice) {
  finding.level = FindingLevel::kWarn;
  finding.advice = std::move(advice);
}

void Fail(Finding& finding, absl::StatusCode code, std::string advice) {
  finding.level = FindingLevel::kFail;
  finding.code = code;
  finding.advice = std::move(advice);
}

std::string AdviceFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return "make the directory that should hold the root; is its file system mounted?";
    case absl::StatusCode::kPermissionDenied:
      return "give this user the right to write there, or mount the file system for writing";
    case absl::StatusCode::kResourceExhausted:
      return "free room or inodes there, or have the quota raised";
    default:
      return "see what the kernel's log says of this file system";
  }
}

Finding JudgeClock(const tier::FileProbe& probe) {
  const double ahead_s = NsToSeconds(probe.clock_ahead_ns);
  Finding finding =
      Fine("clock", absl::StrFormat("the file server's clock is %.2f s %s", std::abs(ahead_s), ahead_s < 0 ? "behind" : "ahead"),
           "at most 2 s from this machine's");
  finding.badness = std::abs(ahead_s);
  if (std::abs(probe.clock_ahead_ns) > kClockNs) {
    Warn(finding, "keep both clocks with NTP: leases go by the server's, but the times that logs show will not fit together");
  }
  return finding;
}

// How fast bytes become durable where the root lies.
struct MeasuredSpeed {
  double bytes_per_second = 0;
  double sync_s = 0;  // of one block
};

absl::Status WriteSample(env::Env& env, env::File& file, int64_t sample_bytes, MeasuredSpeed& speed) {
  const std::vector<std::byte> part(kPartBytes, std::byte{0x5a});
  const int64_t begun_ns = env.MonotonicNs();
  LAMINA_RETURN_IF_ERROR(file.WriteAt(0, std::span(part).first(4096)));
  LAMINA_RETURN_IF_ERROR(file.Sync());
  const int64_t synced_ns = env.MonotonicNs();
  for (int64_t at = 0; at < sample_bytes; at += kPartBytes) LAMINA_RETURN_IF_ERROR(file.WriteAt(at, part));
  LAMINA_RETURN_IF_ERROR(file.Sync());
  speed.sync_s = NsToSeconds(synced_ns - begun_ns);
  speed.bytes_per_second = static_cast<double>(sample_bytes) / std::max(1e-9, NsToSeconds(env.MonotonicNs() - synced_ns));
  return absl::OkStatus();
}

absl::StatusOr<MeasuredSpeed> MeasureWrites(env::Env& env, const std::string& directory, int64_t sample_bytes) {
  const std::string path = tier::TrialPath(env, directory);
  MeasuredSpeed speed;
  absl::Status status;
  {
    LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<env::File> file, env.files().CreateNew(path));
    status = WriteSample(env, *file, sample_bytes, speed);
  }
  env.files().Unlink(path).IgnoreError();  // a leftover that a claim or a later probe removes
  LAMINA_RETURN_IF_ERROR(status);
  return speed;
}

Finding JudgeWrites(env::Env& env, const tier::FileProbe& probe, const Options& options, int64_t rank_bytes) {
  const int64_t sample_bytes = rank_bytes > 0 ? std::clamp(rank_bytes, kPartBytes, kSampleBytes) : kSampleBytes;
  const absl::StatusOr<MeasuredSpeed> speed = MeasureWrites(env, probe.directory, sample_bytes);
  if (!speed.ok())
    return Fail("durable", speed.status(), absl::StrCat(Size(sample_bytes), " to be written and synced"), AdviceFor(speed.status()));
  const std::string rate = absl::StrCat(Size(static_cast<int64_t>(speed->bytes_per_second)), "/s, a sync takes ", Seconds(speed->sync_s));
  if (rank_bytes == 0) return Fine("durable", rate);
  const double durable_s = static_cast<double>(rank_bytes) / speed->bytes_per_second + speed->sync_s;
  const double most_s = options.save_timeout_s > 0 ? options.save_timeout_s : kSaveDeadlineS;
  Finding finding = Fine("durable", absl::StrCat("about ", Seconds(durable_s), " for ", Size(rank_bytes), " a rank: ", rate),
                         absl::StrCat("less than the ", Seconds(most_s), " that a save may take"));
  finding.badness = durable_s;
  if (durable_s > most_s) {
    Fail(finding, absl::StatusCode::kDeadlineExceeded,
         absl::StrCat("set save_timeout_s to ", std::ceil(2 * durable_s), " or more, or use a faster file system"));
  }
  return finding;
}

// What the caller is held for, tried with a part of the state's bytes in the way a save copies them.
absl::StatusOr<Finding> MeasureHold(env::Env& env, int64_t rank_bytes) {
  const int64_t sample_bytes = rank_bytes > 0 ? std::clamp(rank_bytes, kPartBytes, 2 * kSampleBytes) : 2 * kSampleBytes;
  std::vector<std::byte> source(static_cast<size_t>(sample_bytes), std::byte{0x5a});
  const BoxView box{{{0}, {sample_bytes}}, source.data(), {1}};
  const std::vector<snapshot::SnapshotItem> items{{&box, DType::kUint8, {}}};
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<device::PinnedWindow> window,
                          device::PinnedWindow::Create(env, snapshot::PlanLayout(items).data_bytes));
  device::HostDevice device(env);
  double first_s = 0;  // it touches the window's pages, wakes threads and fills caches
  double copy_s = 0;
  for (double* const took_s : {&first_s, &copy_s}) {
    const int64_t begun_ns = env.MonotonicNs();
    LAMINA_RETURN_IF_ERROR(snapshot::Take(device, *window, items, env::kForeverNs).status());
    *took_s = NsToSeconds(env.MonotonicNs() - begun_ns);
  }
  const double map_s = std::max(0.0, first_s - copy_s);
  const double rate = static_cast<double>(sample_bytes) / std::max(1e-9, copy_s);
  const std::string at = absl::StrCat(Size(static_cast<int64_t>(rate)), "/s");
  if (rank_bytes == 0) return Fine("hold", absl::StrCat("copies run at ", at));
  const double factor = static_cast<double>(rank_bytes) / static_cast<double>(sample_bytes);
  Finding finding = Fine("hold", absl::StrCat("about ", Seconds(copy_s * factor), " for ", Size(rank_bytes), " a rank at ", at,
                                              "; the first save ", Seconds(map_s * factor), " more, to map the window"));
  finding.badness = copy_s * factor;
  if (finding.badness > kLongHoldS)
    Warn(finding, "save less often, or spread the state over more ranks; is the machine busy, or short of memory?");
  return finding;
}

Finding JudgeHold(env::Env& env, int64_t rank_bytes) {
  absl::StatusOr<Finding> finding = MeasureHold(env, rank_bytes);
  if (finding.ok()) return *std::move(finding);
  return Fail("hold", finding.status(), "room for a small window", "free memory on this machine");
}

}  // namespace

std::vector<Finding> JudgeProbe(const tier::FileProbe& probe, const std::string& root) {
  std::vector<Finding> findings;
  if (!probe.writable.ok()) {
    findings.push_back(Fail("root", probe.writable, "a directory that can be written, or made", AdviceFor(probe.writable)));
    return findings;
  }
  findings.push_back(Fine("root", probe.directory == root ? absl::StrCat(Quoted(root), " can be written")
                                                          : absl::StrCat(Quoted(root), " can be made in ", Quoted(probe.directory))));
  if (const absl::Status put = tier::PutsIfAbsent(probe); put.ok()) {
    findings.push_back(Fine("put-if-absent", probe.link.ok() ? "by hard links" : "by renaming without replacing"));
  } else {
    findings.push_back(Fail("put-if-absent", put, "a name that is taken stays as it is",
                            "use a local file system, NFS 3 or newer, Lustre or another one with hard links"));
  }
  if (probe.durable_names.ok()) {
    findings.push_back(Fine("durable-names", "a directory can be synced"));
  } else {
    findings.push_back(Fail("durable-names", probe.durable_names, "a directory can be synced",
                            "use a file system where names outlive a power cut once they are synced"));
  }
  return findings;
}

namespace {

// What a save needs room for besides itself, as more saves of its size.
struct SavesWanted {
  int64_t count = 0;
  std::string what;
  std::string advice = "free room there, drop steps that nobody needs, or use another root";
};

SavesWanted WantedSaves(const Options& options, int64_t steps_held) {
  const int64_t in_flight = options.saves_in_flight_max;
  SavesWanted wanted{.count = in_flight + 1, .what = "the last one, and those in flight"};
  if (options.keep == 0) return wanted;
  const bool grace = options.gc_grace_s > 0;
  const int64_t to_come = options.keep + in_flight + (grace ? 1 : 0) - steps_held;
  if (to_come <= wanted.count) return wanted;
  wanted.count = to_come;
  wanted.what = absl::StrCat("the ", options.keep, " that keep leaves, ", in_flight, " in flight");
  if (grace) absl::StrAppend(&wanted.what, ", and one whose files stay for gc_grace_s (", options.gc_grace_s, " s)");
  if (steps_held > 0) absl::StrAppend(&wanted.what, ", less ", steps_held, " steps that are there already");
  absl::StrAppend(&wanted.advice, ", or lower keep; more than one save within gc_grace_s needs more room yet");
  return wanted;
}

}  // namespace

std::vector<Finding> JudgeRoom(const env::FileSystemInfo& room, const std::string& root, const Options& options, const StateSize& size,
                               int64_t steps_held) {
  std::vector<Finding> findings;
  const SavesWanted wanted = WantedSaves(options, steps_held);
  const std::string& advice = wanted.advice;
  Finding space = Fine("space", absl::StrCat(Size(room.bytes_available), " free of ", Size(room.bytes_total), " at ", Quoted(root)));
  if (size.job_bytes > 0) {
    const int64_t saves = room.bytes_available / size.job_bytes;
    absl::StrAppend(&space.found, ", room for ", saves > kManySaves ? absl::StrCat("more than ", kManySaves) : absl::StrCat(saves),
                    saves == 1 ? " save" : " saves");
    space.expected = absl::StrCat("room for ", wanted.count, " saves of ", Size(size.job_bytes), ": ", wanted.what);
    if (saves < wanted.count) Warn(space, advice);
    if (saves < 1) Fail(space, absl::StatusCode::kResourceExhausted, advice);
  } else if (room.bytes_available < kFewBytes) {
    space.expected = absl::StrCat(Size(kFewBytes), " or more");
    Warn(space, advice);
  }
  findings.push_back(std::move(space));
  if (room.inodes_total == 0) return findings;
  const int64_t files = options.rank_count + kFilesBesidePacks;
  Finding inodes = Fine("inodes", absl::StrCat(room.inodes_available, " free of ", room.inodes_total),
                        absl::StrCat(files, " for a save of ", options.rank_count, options.rank_count == 1 ? " rank" : " ranks"));
  if (room.inodes_available / kSavesOfInodes < files) Warn(inodes, advice);
  if (room.inodes_available < files) Fail(inodes, absl::StatusCode::kResourceExhausted, advice);
  findings.push_back(std::move(inodes));
  return findings;
}

Finding JudgeMemory(env::Env& env, const Options& options, const StateSize& size) {
  const std::optional<int64_t> free_bytes = FreeMemoryBytes(env);
  const std::string free_text = free_bytes.has_value() ? absl::StrCat(Size(*free_bytes), " free") : "how much is free is not known";
  const absl::StatusOr<int64_t> window = WindowBytes(env, options, size.rank_bytes);
  if (!window.ok()) {
    return Fail("memory", window.status(), "room for a copy of the state",
                "set memory=, spread the state over more ranks, or give the job more memory");
  }
  if (size.rank_bytes == 0 && options.memory_bytes == 0) return Fine("memory", free_text);
  Finding finding = Fine("memory", absl::StrCat("a window of ", Size(*window), " a rank, ", free_text));
  const int64_t machine_bytes = *window * options.local_rank_count;
  if (free_bytes.has_value() && machine_bytes > *free_bytes) {
    finding.expected = absl::StrCat(Size(machine_bytes), " for the ", options.local_rank_count, " ranks of this machine");
    Warn(finding, "set memory= to less, or give the job more memory: the kernel may end it");
  }
  if (*window < size.rank_bytes) {
    finding.expected = absl::StrCat(Size(size.rank_bytes), " or more, to hold a copy of this rank's state");
    Fail(finding, absl::StatusCode::kResourceExhausted,
         absl::StrCat("set memory= to ", size.rank_bytes * options.local_rank_count, " or more, which is for all ranks of a machine"));
  }
  return finding;
}

std::vector<Finding> Preflight(env::Env& env, const Options& options, const StateSize& size) {
  const tier::FileProbe probe = tier::ProbeFiles(env, options.root);
  std::vector<Finding> findings = JudgeProbe(probe, options.root);
  if (const absl::StatusOr<env::FileSystemInfo> room = env.files().Capacity(probe.directory); room.ok()) {
    const auto steps = env.files().List(tier::JoinName(options.root, format::kStepsPrefix));
    const int64_t steps_held = steps.ok() ? static_cast<int64_t>(steps->size()) : 0;
    for (Finding& finding : JudgeRoom(*room, options.root, options, size, steps_held)) findings.push_back(std::move(finding));
  } else if (probe.writable.ok()) {
    findings.push_back(Fail("space", room.status(), "the file system tells its room", AdviceFor(room.status())));
  }
  findings.push_back(JudgeMemory(env, options, size));
  findings.push_back(JudgeHold(env, size.rank_bytes));
  if (!probe.writable.ok()) return findings;
  findings.push_back(JudgeClock(probe));
  findings.push_back(JudgeWrites(env, probe, options, size.rank_bytes));
  return findings;
}

std::string ToText(const Finding& finding) {
  std::string text = absl::StrCat(finding.name, ": ", finding.found);
  if (!finding.expected.empty()) absl::StrAppend(&text, "; expected ", finding.expected);
  if (!finding.advice.empty()) absl::StrAppend(&text, "; ", finding.advice);
  return text;
}

absl::Status FirstFailure(const std::vector<Finding>& findings, const std::function<void(std::string)>& warn) {
  for (const Finding& finding : findings) {
    if (finding.level == FindingLevel::kFail) return absl::Status(finding.code, ToText(finding));
    if (finding.level == FindingLevel::kWarn) warn(ToText(finding));
  }
  return absl::OkStatus();
}

}  // namespace lamina::engine

namespace lamina {

std::vector<Finding> Preflight(const Options& options, const StateSize& size) {
  const std::unique_ptr<env::Env> env = env::NewPosixEnv();
  return engine::Preflight(*env, options, size);
}

}  // namespace lamina
