// A root that is not one and the same directory for all ranks.
#include <catch2/catch.hpp>
#include <filesystem>

#include "base/units.h"
#include "testing/checks.h"
#include "testing/thread_job.h"

namespace lamina {
namespace {

namespace fs = std::filesystem;
using testing::All;
using testing::Contains;
using testing::Moment;
using testing::RootIn;
using testing::ScratchDirectory;
using testing::ThreadJob;

std::string PlaceIn(const ScratchDirectory& scratch, int32_t place) { return absl::StrCat(scratch.path(), "/root", place); }

size_t FilesIn(const std::string& directory) {
  if (!fs::exists(directory)) return 0;
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("A root that is not shared is found before anything is saved or claimed", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(PlaceIn(scratch, 0), 4, [&](Options& options) {
    options.local_rank_count = 2;
    options.root = PlaceIn(scratch, options.rank / 2);  // two machines with two ranks each
  });
  const bool save = GENERATE(true, false);
  for (const absl::Status& status : save ? job.Save({1, 1}) : job.Restore(std::nullopt)) {
    INFO(status);
    REQUIRE(absl::IsUnimplemented(status));
    REQUIRE(Contains(status, "is not shared"));
    REQUIRE(Contains(status, "ranks 2 and 3"));
  }
  for (const int32_t place : {0, 1}) {
    REQUIRE(FilesIn(PlaceIn(scratch, place) + "/log") == 0);
    REQUIRE(FilesIn(PlaceIn(scratch, place) + "/steps") == 0);
    REQUIRE(FilesIn(PlaceIn(scratch, place) + "/probe") == 0);
  }
}

TEST_CASE("A root whose new files show late is shared", "[engine]") {
  const ScratchDirectory scratch;
  ThreadJob job(RootIn(scratch), 3, [](Options& options) { options.restore_retry_s = 10; });
  for (int32_t rank = 0; rank < 3; ++rank) {
    job.faults(rank).SetHiddenNs(200 * base::kMillisecondNs);
    job.faults(rank).SetStaleOpenEvery(2);
  }
  REQUIRE(All(job.Restore(std::nullopt)) == absl::OkStatus());
  REQUIRE(All(job.Save({1, 1})) == absl::OkStatus());
  REQUIRE(FilesIn(RootIn(scratch) + "/probe") == 0);
  REQUIRE(All(job.End()) == absl::OkStatus());
}

}  // namespace lamina
