// That the watch over deletions finds what breaks each rule, and lets pass what obeys them.
#include "sim/deletion_watch.h"

#include <catch2/catch.hpp>

#include "base/units.h"
#include "sim/history_job.h"
#include "testing/direct_queue.h"
#include "testing/tiny_save.h"
#include "tier/file_tier.h"
#include "tier/log.h"
#include "tier/reader_lease.h"

namespace lamina::sim {
namespace {

using base::kSecondNs;

// A trainer with steps 100 and 200, under the watch.
struct Place {
  Place() {
    watch.set_gc_grace_ns(10 * kSecondNs);
    world.set_on_op([this](const env::SimOp& op) { watch.OnOp(op); });
    Do(trainer, [this](tier::Tier& tier, tier::Log& log) {
      store = log.CreateOrReadStore().value();
      incarnation = log.Claim({.run_id = {}, .takeover = true}).value().number;
      first = testing::SaveTiny(tier, log, store, {100, incarnation, 0}, 0).value();
      testing::SaveTiny(tier, log, store, {200, incarnation, 1}, first).value();
    });
  }

  void Do(env::SimProcess& process, const std::function<void(tier::Tier&, tier::Log&)>& what) {
    const absl::Status ran = world.Run(process, [&](env::Env& env) {
      testing::DirectQueue queue;
      tier::FileTier tier(env, kRoot, queue);
      tier::Log log(env, tier);
      what(tier, log);
    });
    REQUIRE(ran.ok());
  }
  void DropFirst() {
    Do(trainer, [this](tier::Tier&, tier::Log& log) { dropped = log.Drop({first}, "gc of step 100"); });
    REQUIRE(dropped.ok());
  }
  // By who has no right to: what the watch says.
  std::string Delete(const std::string& name) {
    Do(world.NewProcess("rogue"), [&](tier::Tier& tier, tier::Log&) { tier.Delete(name).IgnoreError(); });
    return std::string(watch.status().message());
  }

  env::SimWorld world{{.seed = 3}};
  DeletionWatch watch{world};
  env::SimProcess& trainer = world.NewProcess("trainer");
  format::StoreHeader store;
  uint64_t incarnation = 0;
  uint64_t first = 0;
  absl::Status dropped;
};

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("The watch over deletions knows what may go", "[sim][history]") {
  Place place;
  const std::string pack = "steps/000000000100/1-0/00000.pack";
  SECTION("a step of the table") { REQUIRE(Has(place.Delete(pack), "record 3 has that step")); }
  SECTION("an attempt that may still be committed") {
    place.Do(place.trainer, [&](tier::Tier& tier, tier::Log&) {
      testing::WriteAttempt(tier, place.store, {300, place.incarnation, 2}, 0).IgnoreError();
    });
    REQUIRE(Has(place.Delete("steps/000000000300/1-2/catalog"), "does not say how it ended"));
  }
  SECTION("an attempt that was aborted, and then one of an older incarnation") {
    place.Do(place.trainer, [&](tier::Tier&, tier::Log& log) { log.Abort({300, place.incarnation, 2}, "x").IgnoreError(); });
    REQUIRE(place.Delete("steps/000000000300/1-2/catalog").empty());
    place.Do(place.trainer, [&](tier::Tier&, tier::Log& log) { log.Claim({.run_id = {}, .takeover = true}).IgnoreError(); });
    REQUIRE(place.Delete("steps/000000000300/1-3/catalog").empty());
  }
  SECTION("a record that counts, and then one that does not") {
    place.Do(place.trainer, [&](tier::Tier& tier, tier::Log&) {
      tier::Log log(place.trainer, tier, nullptr, /*records_kept=*/2);
      for (const uint32_t attempt : {2U, 3U}) log.Abort({300, place.incarnation, attempt}, "x").IgnoreError();
    });
    REQUIRE(place.Delete("log/000000000003").empty());
    REQUIRE(place.watch.old_records().size() == 1);
    const char* const name = GENERATE("log/000000000001", "log/000000000004");  // an `open`; at the floor
    REQUIRE(Has(place.Delete(name), "is to stay by record 5"));
  }
  SECTION("a dropped step, once its grace is over") {
    place.DropFirst();
    SECTION("within it") { REQUIRE(Has(place.Delete(pack), "ms of the grace of record 4 are left")); }
    SECTION("after it") {
      place.trainer.SleepNs(10 * kSecondNs);
      REQUIRE(place.Delete(pack).empty());
    }
  }
  SECTION("a dropped step that somebody reads") {
    env::SimProcess& reader = place.world.NewProcess("reader");
    const bool in_time = GENERATE(true, false);
    place.Do(reader, [&](tier::Tier& tier, tier::Log&) {
      const tier::ReaderLease lease(reader, tier);
      reader.SleepNs(150 * kSecondNs);
      place.world.Start(place.trainer, [&](env::Env& env) {
        testing::DirectQueue queue;
        tier::FileTier other(env, kRoot, queue);
        tier::Log(env, other).Drop({place.first}, "gc of step 100").IgnoreError();
        env.SleepNs(in_time ? 10 * kSecondNs : 150 * kSecondNs);
        other.Delete(pack).IgnoreError();
        place.world.Resume(reader);
      });
      if (!in_time) place.world.Pause(reader);
      reader.SleepNs(200 * kSecondNs);
    });
    INFO(place.watch.status());
    REQUIRE(place.watch.status().ok() != in_time);
    REQUIRE(place.watch.IsProtected(reader) == in_time);
  }
  SECTION("anything while the newest record is lost, but by who has not seen that") {
    const auto lose = [&] {
      testing::DirectQueue queue;
      tier::FileTier tier(place.trainer, kRoot, queue);
      const format::LogRecord newest = tier::Log(place.trainer, tier).Newest().value();
      const std::string path = std::string(kRoot) + "/" + format::LogPath(newest.number);
      const int64_t half = place.world.Stat(path)->bytes / 2;
      REQUIRE(place.world.CorruptByte(path, 3).ok());
      REQUIRE(place.world.CorruptByte(path, half + 3).ok());
      place.watch.Lose(newest);
    };
    place.DropFirst();
    place.trainer.SleepNs(10 * kSecondNs);
    lose();
    REQUIRE(place.Delete(pack).empty());
    place.Do(place.trainer, [&](tier::Tier& tier, tier::Log& log) {
      log.Newest(/*damage_ok=*/true).IgnoreError();
      tier.Delete("steps/000000000100/1-0/packs").IgnoreError();
    });
    REQUIRE(Has(std::string(place.watch.status().message()), "record 3 has that step"));
  }
}

}  // namespace lamina::sim
