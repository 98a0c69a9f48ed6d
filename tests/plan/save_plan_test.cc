#include "plan/save_plan.h"

#include <catch2/catch.hpp>

#include "shard/box.h"
#include "testing/descriptions.h"

using namespace lamina;
using namespace lamina::plan;
using lamina::testing::AddSharded;
using lamina::testing::Entry;
using lamina::testing::kReplicate;
using lamina::testing::Shard;

namespace {

using Ranks = std::vector<RankDescription>;

std::string Refusal(const Ranks& ranks) {
  const auto plan = PlanSave(ranks);
  return plan.ok() ? "" : std::string(plan.status().message());
}

// The ranks that write, for each box of a tensor of the plan.
std::vector<uint32_t> WritersOf(const SavePlan& plan, size_t tensor) {
  std::vector<uint32_t> writers;
  for (const format::StoredBox& box : plan.tensors[tensor].boxes) writers.push_back(box.writer);
  return writers;
}

// Tables are positions in the writer's pack, and the box written there is the one that the catalog names.
void CheckTables(const SavePlan& plan, const Ranks& ranks) {
  size_t written = 0;
  for (const format::CatalogTensor& tensor : plan.tensors) {
    for (const format::StoredBox& stored : tensor.boxes) {
      const BoxReference& reference = plan.ranks.at(stored.writer).writes.at(stored.table);
      const EntryDescription& entry = ranks[stored.writer].entries.at(static_cast<size_t>(reference.entry));
      CHECK(entry.name == tensor.name);
      CHECK(entry.boxes.at(static_cast<size_t>(reference.box)) == stored.box);
      ++written;
    }
  }
  for (const RankPlan& rank : plan.ranks) written -= rank.writes.size();
  CHECK(written == 0);
}

}  // namespace

TEST_CASE("Every box is written once, by a rank that holds it, and the tables name it", "[plan]") {
  Ranks ranks(8);
  AddSharded(ranks, "z.sharded", {10, 3}, {4, 2}, {Shard(0), kReplicate});
  AddSharded(ranks, "a.replicated", {5}, {8}, {kReplicate});
  AddSharded(ranks, "m.scalar", {}, {8}, {kReplicate}, DType::kFloat64);
  const SavePlan plan = PlanSave(ranks).value();
  REQUIRE(plan.tensors.size() == 3);
  CHECK(plan.tensors[0].name == "a.replicated");
  CHECK(plan.tensors[2].name == "z.sharded");
  CHECK(plan.state_bytes == 10 * 3 * 4 + 5 * 4 + 8);
  CHECK(plan.replica_groups.size() == 6);
  CheckTables(plan, ranks);
  int64_t written = 0;
  for (const RankPlan& rank : plan.ranks) written += rank.written_bytes;
  CHECK(written == plan.state_bytes);
}

TEST_CASE("Bytes of replicas are even over the ranks", "[plan]") {
  Ranks ranks(4);
  AddSharded(ranks, "fixed", {100}, {4}, {Shard(0)});
  ranks[0].entries.push_back(Entry("only.rank0", {60}, {{{0}, {60}}}));
  for (int i = 0; i < 40; ++i) AddSharded(ranks, "w" + std::to_string(i), {10 + i % 3}, {4}, {kReplicate});
  const SavePlan plan = PlanSave(ranks).value();
  for (const RankPlan& rank : plan.ranks) {
    CHECK(rank.written_bytes >= plan.state_bytes / 4 - 48);
    CHECK(rank.written_bytes <= plan.state_bytes / 4 + 48);
  }
  CheckTables(plan, ranks);
}

TEST_CASE("The same descriptions give the same plan and other descriptions another digest", "[plan]") {
  Ranks ranks(3);
  AddSharded(ranks, "w", {1024, 1}, {3}, {Shard(0)});
  const SavePlan once = PlanSave(ranks).value();
  CHECK(once.digest == PlanSave(ranks).value().digest);
  Ranks grown(3);  // a kept plan must not be used for it (FC-22)
  AddSharded(grown, "w", {1025, 1}, {3}, {Shard(0)});
  CHECK(once.digest != PlanSave(grown).value().digest);
}

TEST_CASE("Replicas are listed on every rank that holds them, and whether they may differ", "[plan]") {
  Ranks ranks(3);
  AddSharded(ranks, "buffer", {4}, {3}, {kReplicate});
  AddSharded(ranks, "weight", {4}, {3}, {kReplicate});
  for (RankDescription& rank : ranks) rank.entries[0].replicas_may_differ = true;
  const SavePlan plan = PlanSave(ranks).value();
  CHECK(WritersOf(plan, 0) == std::vector<uint32_t>{0});
  CHECK(WritersOf(plan, 1) == std::vector<uint32_t>{1});
  REQUIRE(plan.replica_groups.size() == 2);
  for (const size_t i : {0u, 1u}) {
    CHECK(plan.replica_groups[i].name == (i == 0 ? "buffer" : "weight"));
    CHECK(plan.replica_groups[i].ranks == std::vector<int32_t>{0, 1, 2});
    CHECK(plan.replica_groups[i].owner == static_cast<int32_t>(i));
    CHECK(plan.replica_groups[i].may_differ == (i == 0));
  }
  for (const RankPlan& rank : plan.ranks) CHECK(rank.replicas == std::vector<ReplicaBox>{{{0, 0}, 0}, {{1, 0}, 1}});
}

TEST_CASE("Names of some ranks only are planned, as pipeline stages have them", "[plan]") {
  Ranks ranks(2);
  ranks[0].entries = {Entry("stage0.w", {4}, {{{0}, {4}}})};
  ranks[1].entries = {Entry("stage1.w", {4}, {{{0}, {4}}})};
  const SavePlan plan = PlanSave(ranks).value();
  CHECK(WritersOf(plan, 0) == std::vector<uint32_t>{0});
  CHECK(WritersOf(plan, 1) == std::vector<uint32_t>{1});
  CHECK(plan.replica_groups.empty());
}

TEST_CASE("An alias is stored once, under the name that it stands for", "[plan]") {
  Ranks ranks(2);
  AddSharded(ranks, "embed", {4}, {2}, {Shard(0)});
  AddSharded(ranks, "head", {4}, {2}, {Shard(0)});
  for (RankDescription& rank : ranks) rank.entries[1].alias_of = "embed";
  const SavePlan plan = PlanSave(ranks).value();
  CHECK(plan.state_bytes == 16);
  CHECK(plan.tensors[1].alias_of == "embed");
  CHECK(plan.tensors[1].boxes.empty());
  ranks[1].entries[1].alias_of = "";
  CHECK(Refusal(ranks).find("entry 'head': ranks 0 and 1 differ") == 0);
}

TEST_CASE("Ranks that disagree about an entry are named", "[plan]") {
  Ranks ranks(3);
  AddSharded(ranks, "w", {4}, {3}, {kReplicate});
  Ranks other = ranks;
  other[2].entries[0].dtype = DType::kBfloat16;
  CHECK(Refusal(other) == "entry 'w': ranks 0 and 2 differ: float32 of [0:4] and bfloat16 of [0:4]");
  other = ranks;
  other[1].entries[0].global_shape = {5};
  CHECK(Refusal(other) == "entry 'w': ranks 0 and 1 differ: float32 of [0:4] and float32 of [0:5]");
}

TEST_CASE("Holes and unequal boxes that overlap are named with their ranks", "[plan]") {
  Ranks ranks(2);
  ranks[0].entries = {Entry("w", {8}, {{{0}, {5}}})};
  ranks[1].entries = {Entry("w", {8}, {{{4}, {4}}})};
  CHECK(Refusal(ranks) == "entry 'w': [4:5] is held by ranks 0 and 1, in boxes [0:5] and [4:8]");
  ranks[1].entries[0].boxes = {{{6}, {2}}};
  CHECK(Refusal(ranks) == "entry 'w': [5:6] is held by no rank");
  ranks[0].entries[0].boxes = {};
  ranks[1].entries[0].boxes = {};
  CHECK(Refusal(ranks) == "entry 'w': [0:8] is held by no rank");
}

TEST_CASE("Empty shards and empty tensors are written by nobody (FC-01)", "[plan]") {
  Ranks ranks(4);
  AddSharded(ranks, "b", {1, 17}, {4}, {Shard(0)});
  AddSharded(ranks, "z", {0, 4}, {4}, {Shard(0)});
  const SavePlan plan = PlanSave(ranks).value();
  CHECK(WritersOf(plan, 0) == std::vector<uint32_t>{0});
  CHECK(plan.tensors[1].boxes.empty());
  CHECK(plan.tensors[1].global_shape == std::vector<int64_t>{0, 4});
  CHECK(plan.ranks[3].writes.empty());
}

TEST_CASE("A rank that copied only what it wrote before owns nothing else", "[plan]") {
  Ranks ranks(2);
  for (int i = 0; i < 6; ++i) AddSharded(ranks, "w" + std::to_string(i), {8}, {2}, {kReplicate});
  const SavePlan previous = PlanSave(ranks).value();
  REQUIRE(previous.ranks[1].writes.size() == 3);
  Ranks next = ranks;
  AddSharded(next, "new", {8}, {2}, {kReplicate});
  const SavePlan plan = PlanSave(next, {true, false}, &previous, ranks).value();
  for (const BoxReference& reference : plan.ranks[1].writes) {
    CHECK(std::count(previous.ranks[1].writes.begin(), previous.ranks[1].writes.end(), reference) == 1);
  }
  CHECK(WritersOf(plan, 0) == std::vector<uint32_t>{0});
  CHECK(PlanSave(next, {false, false}, &previous, ranks).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(PlanSave(ranks, {false, false}, &previous, ranks).value().digest == previous.digest);
  CHECK(PlanSave(ranks, {false, false}).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(PlanSave(ranks, {true}).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("A million pieces are planned, and one missing or doubled is named (FC-22)", "[plan]") {
  constexpr int64_t kRankCount = 1024;
  Ranks ranks(kRankCount);
  for (int t = 0; t < 1024; ++t) AddSharded(ranks, "t" + std::to_string(t), {kRankCount, 1}, {kRankCount}, {Shard(0)});
  const SavePlan plan = PlanSave(ranks).value();
  CHECK(plan.state_bytes == int64_t{1024} * 1024 * 4);
  for (const RankPlan& rank : plan.ranks) REQUIRE(rank.writes.size() == 1024);
  ranks[7].entries[3].boxes[0].offset[0] = 8;
  CHECK(Refusal(ranks) == "entry 't3': [7:8, 0:1] is held by no rank");
  ranks[7].entries[3].boxes[0] = {{7, 0}, {2, 1}};
  CHECK(Refusal(ranks) == "entry 't3': [8:9, 0:1] is held by ranks 7 and 8, in boxes [7:9, 0:1] and [8:9, 0:1]");
}
