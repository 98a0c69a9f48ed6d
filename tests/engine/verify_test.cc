// Every byte of a root, damaged one at a time.
#include "engine/verify.h"

#include <catch2/catch.hpp>
#include <map>

#include "env/posix_env.h"
#include "format/version.h"
#include "testing/job.h"
#include "tier/log.h"
#include "tier/memory_tier.h"

namespace lamina {
namespace {

using testing::Moment;
using testing::RankState;

// A root in memory that one rank has saved two steps to.
struct Root {
  Root() {
    coord::InProcessHub hub;
    RankState state(0, 1);
    const auto engine = Engine(hub, Mode::kTrain);
    for (const int64_t step : {100, 200}) {
      const auto handle = testing::BeginSave(*engine, state, {step, 1});
      REQUIRE(handle.ok());
      REQUIRE(testing::Await(**handle).ok());
    }
    REQUIRE(engine->Close(-1).ok());
  }

  std::unique_ptr<lamina::Engine> Engine(coord::InProcessHub& hub, Mode mode) {
    coordinators.push_back(std::make_unique<coord::InProcessCoordinator>(*env, hub));
    Options options = testing::JobOptions("/memory", 0, 1);
    options.mode = mode;
    options.restore_retry_s = 0;
    return engine::NewEngine(options, {*env, tier, *coordinators.back(), device}).value();
  }

  void Put(const std::string& name, const std::string& bytes) {
    REQUIRE(tier.Delete(name).ok());
    REQUIRE(tier.PutIfAbsent(name, bytes).ok());
  }

  // All that are not empty, as the leases are.
  std::map<std::string, std::string> Files(const std::string& prefix = {}) {
    std::map<std::string, std::string> files;
    const std::vector<std::string> names = tier.ListNames(prefix).value();
    for (const std::string& name : names) {
      const std::string path = prefix.empty() ? name : prefix + "/" + name;
      if (name.ends_with('/')) {
        files.merge(Files(path.substr(0, path.size() - 1)));
      } else if (tier.Stat(path)->bytes > 0) {
        files[path] = tier::ReadWhole(tier, path, format::kMetadataBytesMax).value();
      }
    }
    return files;
  }

  absl::StatusOr<Moment> Restore(std::optional<int64_t> step, RankState& state) {
    coord::InProcessHub hub;
    const auto engine = Engine(hub, Mode::kRead);
    return testing::RestoreAndCheck(*engine, state, step);
  }

  std::unique_ptr<env::Env> env = env::NewPosixEnv();
  tier::MemoryTier tier{*env};
  device::HostDevice device{*env, {.threads = 1}};
  std::vector<std::unique_ptr<coord::InProcessCoordinator>> coordinators;
};

struct ChunkPlace {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string entry;
  int64_t chunk = 0;
};

// Where the chunks lie in each pack.
std::map<std::string, std::vector<ChunkPlace>> Chunks(Root& root) {
  std::map<std::string, std::vector<ChunkPlace>> places;
  const auto store = engine::Store::Open(*root.env, root.tier).value();
  const std::vector<engine::ListedStep> steps = store->Steps(true).value();
  for (const engine::ListedStep& step : steps) {
    const auto reader = store->OpenStep(step.entry.attempt.step).value();
    const auto add = [&](const std::string& entry, uint32_t writer, uint32_t table, int64_t bytes, int64_t element_bytes) {
      const auto chunks = reader->Table(writer, table, bytes, element_bytes).value();
      for (size_t i = 0; i < chunks.size(); ++i) {
        places[reader->PackName(writer, chunks[i].pack)].push_back(
            {chunks[i].offset, chunks[i].offset + chunks[i].stored_bytes, entry, static_cast<int64_t>(i)});
      }
    };
    for (const format::CatalogTensor& tensor : reader->catalog().tensors) {
      for (const format::StoredBox& box : tensor.boxes) {
        const int64_t element_bytes = DTypeBytes(tensor.dtype);
        add(tensor.name, box.writer, box.table, shard::ElementCount(box.box.extent) * element_bytes, element_bytes);
      }
    }
    for (const format::CatalogBlob& blob : reader->catalog().blobs) {
      add(absl::StrCat("values '", blob.name, "' of rank ", blob.rank), blob.writer, blob.table, static_cast<int64_t>(blob.bytes), 1);
    }
  }
  return places;
}

}  // namespace

TEST_CASE("What a record tidied up before it was damaged is not missing", "[engine]") {
  Root root;  // records 1 to 3
  tier::Log log(*root.env, root.tier, nullptr, /*records_kept=*/3);
  for (uint32_t attempt = 10; attempt < 15; ++attempt) REQUIRE(log.Abort({300, 1, attempt}, "x").ok());
  REQUIRE(log.Sweep(1).ok());
  REQUIRE(log.Newest()->floor == 6);
  const std::string damaged = format::LogPath(8);
  root.Put(damaged, std::string(8192, 'x'));
  const uint64_t claimed = log.Claim({.run_id = {}, .takeover = true}).value().number;
  REQUIRE(claimed == 9);
  REQUIRE(log.Newest()->floor == 5);
  const engine::Verification found = engine::Verify(*root.env, root.tier, std::nullopt, /*full=*/true).value();
  REQUIRE_FALSE(found.problems.empty());
  for (const engine::Problem& problem : found.problems) CHECK(problem.file == damaged);
}

TEST_CASE("Verify finds nothing wrong with a sound root", "[engine]") {
  Root root;
  for (const bool full : {false, true}) {
    const auto verification = engine::Verify(*root.env, root.tier, std::nullopt, full);
    REQUIRE(verification.ok());
    REQUIRE(verification->problems.empty());
    REQUIRE(verification->steps == 2);
    REQUIRE((verification->chunks > 0) == full);
  }
  REQUIRE(engine::Verify(*root.env, root.tier, std::vector<int64_t>{100}, true)->steps == 1);
  REQUIRE(absl::IsNotFound(engine::Verify(*root.env, root.tier, std::vector<int64_t>{100, 150}, true).status()));
}

TEST_CASE("Verify says that a record of the log is not two whole copies", "[engine]") {
  Root root;
  const std::string name = format::LogPath(2);
  const std::string record = root.Files("log").at(name);
  const auto told = [&](const std::string& bytes) {
    root.Put(name, bytes);
    const auto verification = engine::Verify(*root.env, root.tier, std::nullopt, false);
    REQUIRE(verification.ok());
    std::string text;
    for (const engine::Problem& problem : verification->problems) text += problem.message + "\n";
    return text;
  };
  const std::string copy = record.substr(0, record.size() / 2);
  CHECK_THAT(told(copy), Catch::Contains("4096 bytes, which is no multiple of 8192"));
  CHECK_THAT(told(record + '\0'), Catch::Contains("8193 bytes, which is no multiple of 8192") && !Catch::Contains("differ"));
  CHECK_THAT(told(copy + std::string(100, '\0') + copy + std::string(100, '\0')), Catch::Contains("8392 bytes, which is no multiple"));
  CHECK(told(record) == "");
}

TEST_CASE("Verify says which file any flipped bit is in, and a restore never yields other bits", "[engine][every_byte]") {
  Root root;
  const std::map<std::string, std::string> files = root.Files();
  const auto chunks = Chunks(root);
  REQUIRE(files.size() == 10);  // LAMINA, three records of the log, and a pack, a catalog and a list of packs of each step
  RankState state(0, 1);
  for (const auto& [name, bytes] : files) {
    const bool redundant = name.starts_with("log/");
    for (size_t offset = 0; offset < bytes.size(); ++offset) {
      std::string damaged = bytes;
      damaged[offset] = static_cast<char>(damaged[offset] ^ (1 << (offset % 8)));
      root.Put(name, damaged);
      const auto verification = engine::Verify(*root.env, root.tier, std::nullopt, true);
      INFO("'" << name << "', byte " << offset << " of " << bytes.size() << ": " << verification.status());
      REQUIRE(verification.ok());
      const auto& problems = verification->problems;
      const auto names = [&](const engine::Problem& problem) { return problem.file == name; };
      REQUIRE(std::any_of(problems.begin(), problems.end(), names));
      if (chunks.contains(name)) {
        for (const ChunkPlace& place : chunks.at(name)) {
          if (offset < place.begin || offset >= place.end) continue;
          REQUIRE(problems.size() == 1);
          REQUIRE(problems[0].entry == place.entry);
          REQUIRE(problems[0].chunk == place.chunk);
        }
      }
      if (offset % 5 != 0) continue;
      state.Poison();
      const absl::StatusOr<Moment> restored = root.Restore(200, state);
      INFO(restored.status());
      if (restored.ok()) {
        REQUIRE(*restored == Moment{200, 1});
      } else {
        REQUIRE(!redundant);
        REQUIRE((absl::IsDataLoss(restored.status()) || absl::IsUnimplemented(restored.status())));
        REQUIRE(state.IsPoisoned());
      }
      if (redundant) REQUIRE(restored.ok());
    }
    root.Put(name, bytes);
  }
}

TEST_CASE("Verify says that a file is missing or cut", "[engine]") {
  Root root;
  for (const auto& [name, bytes] : root.Files()) {
    if (name == "LAMINA") continue;  // without it there is no root
    INFO("'" << name << "'");
    for (const size_t left : {bytes.size() - 1, size_t{0}}) {
      root.Put(name, bytes.substr(0, left));
      const auto verification = engine::Verify(*root.env, root.tier, std::nullopt, false);
      REQUIRE(verification.ok());
      REQUIRE(!verification->problems.empty());
    }
    REQUIRE(root.tier.Delete(name).ok());
    const auto verification = engine::Verify(*root.env, root.tier, std::nullopt, false);
    REQUIRE(verification.ok());
    // A log that ends earlier looks like this.
    if (name != format::LogPath(3)) REQUIRE(!verification->problems.empty());
    REQUIRE(root.tier.PutIfAbsent(name, bytes).ok());
  }
}

}  // namespace lamina
