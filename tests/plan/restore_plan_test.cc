#include "plan/restore_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "base/status.h"
#include "plan/save_plan.h"
#include "shard/box.h"
#include "testing/boxes.h"
#include "testing/descriptions.h"

using namespace lamina;
using namespace lamina::plan;
using lamina::testing::AddSharded;
using lamina::testing::Draw;
using lamina::testing::ElementsOf;
using lamina::testing::Entry;
using lamina::testing::kReplicate;
using lamina::testing::Shard;
using lamina::testing::StridedShard;

namespace {

using Ranks = std::vector<RankDescription>;
using Elements = std::vector<int64_t>;

// The elements of a box of a tensor as they are in memory: each knows its tensor and its place in it.
Elements ValuesOf(const EntryDescription& entry, const Box& box) {
  Elements values = ElementsOf(box, entry.global_shape);
  const auto tensor = static_cast<int64_t>(std::hash<std::string>{}(entry.alias_of.empty() ? entry.name : entry.alias_of) >> 34);
  for (int64_t& value : values) value += tensor << 32;
  return values;
}

// A step in memory: what PlanSave makes each rank write, by writer and table.
struct Saved {
  format::Catalog catalog;
  std::vector<std::vector<Elements>> packs;
};

Saved Save(const Ranks& ranks) {
  SavePlan plan = PlanSave(ranks).value();
  Saved saved;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    saved.packs.emplace_back();
    for (const BoxReference& reference : plan.ranks[rank].writes) {
      const EntryDescription& entry = ranks[rank].entries[static_cast<size_t>(reference.entry)];
      saved.packs.back().push_back(ValuesOf(entry, entry.boxes[static_cast<size_t>(reference.box)]));
    }
  }
  saved.catalog.tensors = std::move(plan.tensors);
  saved.catalog.writers.resize(ranks.size());
  return saved;
}

using Memory = std::vector<std::vector<Elements>>;  // by entry and box

void CopyChunk(const Saved& saved, const BoxRead& read, int64_t begin, int64_t count, Memory& memory, const RankDescription& target) {
  const format::StoredBox& stored = saved.catalog.tensors[static_cast<size_t>(read.tensor)].boxes[static_cast<size_t>(read.stored_box)];
  const Elements& pack = saved.packs[stored.writer][stored.table];
  for (const TargetPart& part : read.parts) {
    const auto entry = static_cast<size_t>(part.entry);
    const auto box = static_cast<size_t>(part.box);
    bool touched = false;
    int64_t last_end = 0;
    ForEachRunOfChunk(stored.box, begin, count, part.common, target.entries[entry].boxes[box], [&](int64_t from, int64_t to, int64_t run) {
      touched = true;
      REQUIRE((from >= last_end && run > 0 && from + run <= count));
      last_end = from + run;
      for (int64_t i = 0; i < run; ++i) {
        int64_t& place = memory[entry][box].at(static_cast<size_t>(to + i));
        REQUIRE(place == -1);  // filled once
        place = pack.at(static_cast<size_t>(begin + from + i));
      }
    });
    REQUIRE(ChunkTouches(stored.box, begin, count, part.common) == touched);
  }
}

Memory Restore(const Saved& saved, const RankDescription& target, int64_t chunk_elements) {
  Memory memory;
  for (const EntryDescription& entry : target.entries) {
    memory.emplace_back();
    for (const Box& box : entry.boxes) memory.back().emplace_back(static_cast<size_t>(shard::ElementCount(box.extent)), -1);
  }
  const auto reads = PlanRestore(saved.catalog, target.entries);
  REQUIRE(reads.ok());
  std::pair<uint32_t, uint32_t> last{0, 0};
  for (const BoxRead& read : *reads) {
    const format::StoredBox& stored = saved.catalog.tensors[static_cast<size_t>(read.tensor)].boxes[static_cast<size_t>(read.stored_box)];
    REQUIRE((&read == reads->data() || last < std::pair(stored.writer, stored.table)));
    last = {stored.writer, stored.table};
    const int64_t all = shard::ElementCount(stored.box.extent);
    for (int64_t begin = 0; begin < all; begin += chunk_elements) {
      CopyChunk(saved, read, begin, std::min(chunk_elements, all - begin), memory, target);
    }
  }
  return memory;
}

// Gather, then slice: every box of the target is its slice of the global tensor.
void CheckRestored(const Saved& saved, const Ranks& targets, int64_t chunk_elements) {
  for (const RankDescription& target : targets) {
    const Memory memory = Restore(saved, target, chunk_elements);
    for (size_t entry = 0; entry < target.entries.size(); ++entry) {
      const EntryDescription& description = target.entries[entry];
      if (!description.alias_of.empty()) continue;
      for (size_t box = 0; box < description.boxes.size(); ++box) {
        REQUIRE(memory[entry][box] == ValuesOf(description, description.boxes[box]));
      }
    }
  }
}

// A random way to hold the tensors over some ranks: meshes with any placements, flat ranges, or on one rank alone.
Ranks RandomRanks(std::mt19937_64& random, const std::vector<std::vector<int64_t>>& shapes) {
  const std::vector<int64_t> mesh{Draw(random, 1, 4), Draw(random, 1, 3)};
  Ranks ranks(static_cast<size_t>(mesh[0] * mesh[1]));
  for (size_t t = 0; t < shapes.size(); ++t) {
    const std::string name = "t" + std::to_string(t);
    const std::vector<int64_t>& shape = shapes[t];
    const int64_t way = Draw(random, 0, 5);
    if (way == 0) {
      ranks[random() % ranks.size()].entries.push_back(Entry(name, shape, {shard::WholeBox(shape)}));
    } else if (way == 1) {
      const int64_t all = shard::ElementCount(shape);
      const auto count = static_cast<int64_t>(ranks.size());
      for (int64_t rank = 0; rank < count; ++rank) {
        auto boxes =
            shard::BoxesOfFlatRange(std::vector<int64_t>(shape.size(), 0), shape, all * rank / count, all * (rank + 1) / count).value();
        ranks[static_cast<size_t>(rank)].entries.push_back(Entry(name, shape, std::move(boxes)));
      }
    } else {
      std::vector<shard::Placement> placements(2);
      for (shard::Placement& p : placements) {
        if (shape.empty()) break;
        p.kind = static_cast<shard::Placement::Kind>(Draw(random, 0, 2));
        p.dim = Draw(random, 0, static_cast<int64_t>(shape.size()) - 1);
        p.split_factor = Draw(random, 1, 4);
      }
      AddSharded(ranks, name, shape, mesh, placements);
    }
  }
  return ranks;
}

}  // namespace

TEST_CASE("Restore on any topology equals gather then slice", "[plan]") {
  std::mt19937_64 random(17);
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<std::vector<int64_t>> shapes(4);
    for (std::vector<int64_t>& shape : shapes) {
      shape.resize(static_cast<size_t>(Draw(random, 0, 3)));
      for (int64_t& size : shape) size = Draw(random, 0, 9) == 0 ? 0 : Draw(random, 1, 9);
    }
    const Saved saved = Save(RandomRanks(random, shapes));
    CheckRestored(saved, RandomRanks(random, shapes), Draw(random, 1, 40));
  }
}

TEST_CASE("More ranks than rows are saved and restored on any number of ranks (FC-01)", "[plan]") {
  const auto job = [](int64_t count) {
    Ranks ranks(static_cast<size_t>(count));
    AddSharded(ranks, "w", {6}, {count}, {Shard(0)});
    AddSharded(ranks, "m", {6, 5}, {count}, {Shard(0)}, DType::kBfloat16);
    AddSharded(ranks, "b", {1, 17}, {count}, {Shard(0)});
    AddSharded(ranks, "z", {0, 4}, {count}, {Shard(0)});
    AddSharded(ranks, "s", {}, {count}, {kReplicate});
    return ranks;
  };
  const Saved by_four = Save(job(4));
  for (const int64_t count : {1, 2, 3, 4, 7, 8}) CheckRestored(by_four, job(count), 4);
  CheckRestored(Save(job(8)), job(1), 4);
}

TEST_CASE("Two shardings of one dimension keep their nesting on every other mesh (FC-02)", "[plan]") {
  const auto job = [](const std::vector<int64_t>& mesh, const std::vector<shard::Placement>& placements) {
    Ranks ranks(static_cast<size_t>(shard::ElementCount(mesh)));
    for (const char* name : {"w", "w.exp_avg", "w.exp_avg_sq"}) AddSharded(ranks, name, {8, 3}, mesh, placements);
    return ranks;
  };
  const Ranks four = job({2, 2}, {StridedShard(0, 2), Shard(0)});
  const Ranks eight = job({4, 2}, {StridedShard(0, 2), Shard(0)});
  CHECK(four[1].entries[0].boxes == std::vector<Box>{{{4, 0}, {2, 3}}});
  CHECK(four[2].entries[0].boxes == std::vector<Box>{{{2, 0}, {2, 3}}});
  const Saved saved = Save(four);
  CheckRestored(saved, job({1}, {kReplicate}), 5);
  CheckRestored(saved, job({4}, {Shard(0)}), 5);
  CheckRestored(saved, job({3}, {Shard(1)}), 5);
  CheckRestored(saved, eight, 5);
  CheckRestored(Save(eight), four, 5);
}

TEST_CASE("A target that the step has as an alias is read from where its bytes are", "[plan]") {
  Ranks source(2);
  AddSharded(source, "embed", {6}, {2}, {Shard(0)});
  AddSharded(source, "head", {6}, {2}, {Shard(0)});
  for (RankDescription& rank : source) rank.entries[1].alias_of = "embed";
  const Saved saved = Save(source);
  Ranks untied(1);
  AddSharded(untied, "head", {6}, {1}, {kReplicate});
  CHECK(Restore(saved, untied[0], 2)[0][0] == ValuesOf(source[0].entries[0], {{0}, {6}}));
}

TEST_CASE("Targets that share memory are filled once", "[plan]") {
  Ranks source(1);
  source[0].entries = {Entry("embed", {6}, {{{0}, {6}}}), Entry("head", {6}, {{{0}, {6}}})};
  const Saved saved = Save(source);
  RankDescription target = source[0];
  target.entries[1].alias_of = "embed";
  const auto reads = PlanRestore(saved.catalog, target.entries);
  REQUIRE(reads.ok());
  REQUIRE(reads->size() == 1);
  CHECK(reads->front().parts.size() == 1);
  CHECK(reads->front().parts[0].entry == 0);
}

TEST_CASE("All targets that do not fit are named in one error, with the nearest name", "[plan]") {
  Ranks source(1);
  source[0].entries = {Entry("model.layers.0.weight", {4}, {{{0}, {4}}}), Entry("model.head", {2, 3}, {{{0, 0}, {2, 3}}}),
                       Entry("scale", {}, {Box{}})};
  const Saved saved = Save(source);
  const std::vector<EntryDescription> targets{Entry("model.layer.0.weight", {4}, {}), Entry("model.head", {3, 2}, {}),
                                              Entry("scale", {}, {}, DType::kFloat64), Entry("q", {}, {})};
  const absl::Status status = PlanRestore(saved.catalog, targets).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(status.message() ==
        "4 of 4 entries do not fit the step: 'model.layer.0.weight' is missing (nearest: 'model.layers.0.weight'); "
        "'model.head' is float32 of [0:3, 0:2], saved as float32 of [0:2, 0:3]; 'scale' is float64 of [], saved as float32 of []; "
        "'q' is missing");
  CHECK(base::DetailOf(status, base::kMismatchDetail) == "model.layer.0.weight\nmodel.head\nscale\nq");
}

TEST_CASE("A chunk's runs go through the chunk's bounds only", "[plan]") {
  const Box stored{{0, 0}, {100, 10}};
  const Box common{{0, 2}, {100, 3}};
  const Box target{{0, 0}, {100, 10}};
  std::vector<Elements> runs;
  ForEachRunOfChunk(stored, 13, 20, common, target, [&](int64_t from, int64_t to, int64_t count) { runs.push_back({from, to, count}); });
  CHECK(runs == std::vector<Elements>{{0, 13, 2}, {9, 22, 3}, {19, 32, 1}});
  CHECK(ChunkTouches(stored, 13, 2, common));
  CHECK(!ChunkTouches(stored, 15, 7, common));
  CHECK(!ChunkTouches(stored, 13, 0, common));
}

TEST_CASE("A chunk that is whole in both boxes is one run", "[plan]") {
  const Box stored{{4, 0}, {8, 10}};
  std::vector<Elements> runs;
  const auto keep = [&](int64_t from, int64_t to, int64_t count) { runs.push_back({from, to, count}); };
  ForEachRunOfChunk(stored, 13, 40, stored, {{0, 0}, {20, 10}}, keep);
  CHECK(runs == std::vector<Elements>{{0, 53, 40}});
}

TEST_CASE("NearestName finds a near name and no far one", "[plan]") {
  const std::vector<std::string_view> known{"model.layers.0.attn.weight", "model.layers.1.attn.weight", "optim.step", "x"};
  CHECK(NearestName("module.model.layers.1.attn.weight", known) == "model.layers.1.attn.weight");
  CHECK(NearestName("model.layers.0.atn.weight", known) == "model.layers.0.attn.weight");
  CHECK(NearestName("optim.stpe", known) == "optim.step");
  CHECK(NearestName("entirely.unlike", known).empty());
  CHECK(NearestName("", known).empty());
  CHECK(NearestName("x", {}).empty());
}

TEST_CASE("A rank of another job plans a million pieces without the others' (FC-22)", "[plan]") {
  constexpr int64_t kRankCount = 1024;
  format::Catalog catalog;
  catalog.writers.resize(kRankCount);
  for (int t = 0; t < 1024; ++t) {
    format::CatalogTensor& tensor = catalog.tensors.emplace_back();
    tensor.name = "t" + std::to_string(t);
    tensor.global_shape = {kRankCount, 1};
    for (int64_t row = 0; row < kRankCount; ++row)
      tensor.boxes.push_back({{{row, 0}, {1, 1}}, static_cast<uint32_t>(row), static_cast<uint32_t>(t)});
  }
  Ranks seven(7);
  for (int t = 0; t < 1024; ++t) AddSharded(seven, "t" + std::to_string(t), {kRankCount, 1}, {7}, {Shard(0)});
  const auto reads = PlanRestore(catalog, seven[3].entries);
  REQUIRE(reads.ok());
  CHECK(reads->size() == 1024 * 147);
}
