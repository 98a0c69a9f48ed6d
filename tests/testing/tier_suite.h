// What every tier promises, run on each implementation with an empty one.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "env/env.h"
#include "tier/tier.h"

namespace lamina::testing {

inline std::string TextOf(tier::Tier& tier, std::string_view name) {
  const absl::StatusOr<std::string> bytes = tier::ReadWhole(tier, name, 1 << 20);
  INFO(name << ": " << bytes.status());
  REQUIRE(bytes.ok());
  return *bytes;
}

inline std::vector<std::string> NamesIn(tier::Tier& tier, std::string_view prefix) {
  const absl::StatusOr<std::vector<std::string>> names = tier.ListNames(prefix);
  REQUIRE(names.ok());
  return *names;
}

inline void CheckObjectsAreWholeOrAbsent(tier::Tier& tier) {
  REQUIRE(tier.Prepare("steps/a").ok());
  REQUIRE(tier.Prepare("steps/a").ok());
  const std::string large(3 << 20, 'x');
  {
    absl::StatusOr<std::unique_ptr<tier::ObjectWriter>> writer = tier.CreateObject("steps/a/pack");
    REQUIRE(writer.ok());
    REQUIRE((*writer)->Append(base::AsBytes("head ")).ok());
    REQUIRE((*writer)->Append(base::AsBytes(large)).ok());
    REQUIRE((*writer)->Append({}).ok());
    REQUIRE((*writer)->bytes_appended() == static_cast<int64_t>(large.size()) + 5);
    REQUIRE((*writer)->Finish().ok());
    REQUIRE((*writer)->bytes_written() == (*writer)->bytes_appended());
    REQUIRE_FALSE((*writer)->Append(base::AsBytes("late")).ok());
    REQUIRE_FALSE((*writer)->Finish().ok());
  }
  REQUIRE(absl::IsAlreadyExists(tier.CreateObject("steps/a/pack").status()));
  absl::StatusOr<std::unique_ptr<tier::ObjectReader>> reader = tier.OpenObject("steps/a/pack");
  REQUIRE(reader.ok());
  REQUIRE((*reader)->bytes() == static_cast<int64_t>(large.size()) + 5);
  std::string part(7, '\0');
  REQUIRE((*reader)->ReadRange(2, std::as_writable_bytes(std::span(part.data(), part.size()))).ok());
  REQUIRE(part == "ad xxxx");
  REQUIRE((*reader)->ReadRange((*reader)->bytes(), {}).ok());
  REQUIRE(absl::IsDataLoss((*reader)->ReadRange((*reader)->bytes() - 6, std::as_writable_bytes(std::span(part.data(), part.size())))));
  REQUIRE(absl::IsDataLoss((*reader)->ReadRange(int64_t{1} << 60, std::as_writable_bytes(std::span(part.data(), part.size())))));
  REQUIRE(absl::IsDataLoss(tier::ReadWhole(tier, "steps/a/pack", 100).status()));
  // An open reader outlives the name, as far as it has begun to read.
  REQUIRE(tier.Delete("steps/a/pack").ok());
  REQUIRE((*reader)->ReadRange(0, std::as_writable_bytes(std::span(part.data(), part.size()))).ok());
  REQUIRE(absl::IsNotFound(tier.OpenObject("steps/a/pack").status()));
}

inline void CheckAbortLeavesNothing(tier::Tier& tier) {
  REQUIRE(tier.Prepare("steps/b").ok());
  absl::StatusOr<std::unique_ptr<tier::ObjectWriter>> writer = tier.CreateObject("steps/b/pack");
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Append(base::AsBytes("bytes")).ok());
  REQUIRE((*writer)->Abort().ok());
  REQUIRE(absl::IsNotFound(tier.OpenObject("steps/b/pack").status()));
  REQUIRE(NamesIn(tier, "steps/b").empty());
  REQUIRE(tier.CreateObject("steps/b/pack").ok());
}

inline void CheckPutIfAbsent(tier::Tier& tier) {
  REQUIRE(tier.Prepare("log").ok());
  REQUIRE(tier.PutIfAbsent("log/1", "first").ok());
  REQUIRE(absl::IsAlreadyExists(tier.PutIfAbsent("log/1", "second")));
  REQUIRE(TextOf(tier, "log/1") == "first");
  REQUIRE(tier.PutIfAbsent("log/2", "").ok());
  REQUIRE(TextOf(tier, "log/2").empty());
  REQUIRE(tier.SettleNames("log").ok());
  REQUIRE(NamesIn(tier, "log") == std::vector<std::string>{"1", "2"});
  REQUIRE(tier.RemoveLeftovers("log", 0).ok());
  REQUIRE(NamesIn(tier, "log") == std::vector<std::string>{"1", "2"});
}

// Of many that put at the same name at once exactly one is told that it won, and its bytes are there.
inline void CheckPutsRace(env::Env& env, tier::Tier& tier) {
  REQUIRE(tier.Prepare("race").ok());
  constexpr int kTasks = 4;
  std::vector<absl::Status> outcomes(kTasks);
  std::vector<std::unique_ptr<env::Task>> tasks;
  for (int i = 0; i < kTasks; ++i) {
    tasks.push_back(env.Start("put", [&tier, &outcomes, i] { outcomes[i] = tier.PutIfAbsent("race/name", std::to_string(i)); }));
  }
  for (const auto& task : tasks) task->Join();
  int winner = -1;
  for (int i = 0; i < kTasks; ++i) {
    if (!outcomes[i].ok()) REQUIRE(absl::IsAlreadyExists(outcomes[i]));
    if (!outcomes[i].ok()) continue;
    REQUIRE(winner == -1);
    winner = i;
  }
  REQUIRE(TextOf(tier, "race/name") == std::to_string(winner));
}

inline void CheckLists(tier::Tier& tier) {
  REQUIRE(tier.List("absent")->empty());
  REQUIRE(NamesIn(tier, "absent").empty());
  REQUIRE(tier.Prepare("list/sub").ok());
  REQUIRE(tier.Prepare("list/su").ok());
  REQUIRE(tier.PutIfAbsent("list/b", "12345").ok());
  REQUIRE(tier.PutIfAbsent("list/a", "1").ok());
  REQUIRE(tier.PutIfAbsent("list/.hidden", "1").ok());
  REQUIRE(tier.PutIfAbsent("list/sub/deep", "1").ok());
  REQUIRE(tier.PutIfAbsent("list/su/deep", "1").ok());
  REQUIRE(NamesIn(tier, "list") == std::vector<std::string>{"a", "b", "su/", "sub/"});
  const absl::StatusOr<std::vector<tier::ObjectInfo>> infos = tier.List("list");
  REQUIRE(infos.ok());
  REQUIRE(infos->size() == 4);
  REQUIRE((*infos)[1].name == "list/b");
  REQUIRE((*infos)[1].bytes == 5);
  REQUIRE((*infos)[1].modified_ns > 0);
  REQUIRE((*infos)[2].name == "list/su/");
  REQUIRE(tier.Delete("list/sub/deep").ok());
  REQUIRE(tier.Delete("list/sub/deep").ok());
  REQUIRE(tier.RemovePrefix("list/sub").ok());
  REQUIRE(tier.RemovePrefix("list/sub").ok());
  REQUIRE(tier.RemovePrefix("list/su").ok());
  REQUIRE(NamesIn(tier, "list") == std::vector<std::string>{"a", "b", "su/"});
}

inline void CheckTimes(env::Env& env, tier::Tier& tier) {
  REQUIRE(tier.Prepare("times").ok());
  REQUIRE(absl::IsNotFound(tier.Stat("times/lease").status()));
  REQUIRE(tier.Touch("times/lease").ok());
  const absl::StatusOr<tier::ObjectInfo> first = tier.Stat("times/lease");
  REQUIRE(first.ok());
  REQUIRE(first->name == "times/lease");
  REQUIRE(first->bytes == 0);
  env.SleepNs(20'000'000);
  REQUIRE(tier.Touch("times/lease").ok());
  REQUIRE(tier.Stat("times/lease")->modified_ns > first->modified_ns);
}

inline void CheckNamesStayInside(tier::Tier& tier) {
  for (const std::string_view name : std::initializer_list<std::string_view>{"", "/", "/etc/passwd", "..", "../x", "a/../../x", "a//b",
                                                                             "a/", "./a", "a/.", std::string_view("a\0b", 3)}) {
    INFO(name);
    REQUIRE(absl::IsInvalidArgument(tier.PutIfAbsent(name, "x")));
    REQUIRE(absl::IsInvalidArgument(tier.CreateObject(name).status()));
    REQUIRE(absl::IsInvalidArgument(tier.OpenObject(name).status()));
    REQUIRE(absl::IsInvalidArgument(tier.Stat(name).status()));
    REQUIRE(absl::IsInvalidArgument(tier.Touch(name)));
    REQUIRE(absl::IsInvalidArgument(tier.Delete(name)));
    REQUIRE(absl::IsInvalidArgument(tier.RemovePrefix(name)));
    if (name.empty()) continue;
    REQUIRE(absl::IsInvalidArgument(tier.List(name).status()));
    REQUIRE(absl::IsInvalidArgument(tier.ListNames(name).status()));
    REQUIRE(absl::IsInvalidArgument(tier.Prepare(name)));
    REQUIRE(absl::IsInvalidArgument(tier.SettleNames(name)));
    REQUIRE(absl::IsInvalidArgument(tier.RemoveLeftovers(name, 0).status()));
  }
}

inline void CheckTier(env::Env& env, tier::Tier& tier) {
  REQUIRE_FALSE(tier.Describe().empty());
  REQUIRE(tier.Prepare("").ok());
  CheckObjectsAreWholeOrAbsent(tier);
  CheckAbortLeavesNothing(tier);
  CheckPutIfAbsent(tier);
  CheckPutsRace(env, tier);
  CheckLists(tier);
  CheckTimes(env, tier);
  CheckNamesStayInside(tier);
}

}  // namespace lamina::testing
