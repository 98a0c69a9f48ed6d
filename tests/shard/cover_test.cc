#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "shard/box.h"
#include "testing/boxes.h"

using namespace lamina;
using namespace lamina::shard;
using lamina::testing::Draw;
using lamina::testing::ElementsOf;

namespace {

// Cuts the whole at random again and again: any arrangement of boxes that cuts through can make.
std::vector<HeldBox> RandomCover(std::mt19937_64& random, std::span<const int64_t> shape, int cuts) {
  std::vector<Box> boxes{WholeBox(shape)};
  for (int i = 0; i < cuts; ++i) {
    Box& box = boxes[random() % boxes.size()];
    const size_t d = random() % shape.size();
    if (box.extent[d] < 2) continue;
    const int64_t at = Draw(random, 1, box.extent[d] - 1);
    Box rest = box;
    rest.offset[d] += at;
    rest.extent[d] -= at;
    box.extent[d] = at;
    boxes.push_back(rest);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  std::vector<HeldBox> held;
  for (const Box& box : boxes) held.push_back({static_cast<int32_t>(held.size()), box});
  return held;
}

bool CoversOnce(std::span<const int64_t> shape, std::span<const HeldBox> held) {
  std::vector<int> times(static_cast<size_t>(ElementCount(shape)), 0);
  for (const HeldBox& h : held) {
    for (const int64_t element : ElementsOf(h.box, shape)) ++times[static_cast<size_t>(element)];
  }
  return std::all_of(times.begin(), times.end(), [](int t) { return t == 1; });
}

std::string Message(std::span<const int64_t> shape, const std::vector<HeldBox>& held) {
  return std::string(CheckCover(shape, held).message());
}

std::vector<HeldBox> Rows(int64_t count) {
  std::vector<HeldBox> held;
  for (int64_t row = 0; row < count; ++row) held.push_back({static_cast<int32_t>(row), {{row, 0}, {1, 1}}});
  return held;
}

}  // namespace

TEST_CASE("CheckCover agrees with counting every element", "[shard]") {
  std::mt19937_64 random(7);
  int sound = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    std::vector<int64_t> shape(static_cast<size_t>(Draw(random, 1, 4)));
    for (int64_t& size : shape) size = Draw(random, 1, 6);
    std::vector<HeldBox> held = RandomCover(random, shape, 12);
    HeldBox& victim = held[random() % held.size()];
    const size_t d = random() % shape.size();
    switch (trial % 5) {
      case 0:
        break;
      case 1:
        held.push_back(victim);
        break;
      case 2:
        victim = held.back(), held.pop_back();
        break;
      case 3:
        victim.box.offset[d] = std::max<int64_t>(0, victim.box.offset[d] - 1);
        break;
      case 4:
        victim.box.extent[d] -= 1;
        break;
    }
    const bool covers = CoversOnce(shape, held);
    sound += covers ? 1 : 0;
    REQUIRE(CheckCover(shape, held).ok() == covers);
  }
  CHECK(sound >= 1000);
}

TEST_CASE("A cover that no cut runs through is accepted", "[shard]") {
  const std::vector<HeldBox> pinwheel{
      {0, {{0, 0}, {1, 2}}}, {1, {{0, 2}, {2, 1}}}, {2, {{2, 1}, {1, 2}}}, {3, {{1, 0}, {2, 1}}}, {4, {{1, 1}, {1, 1}}}};
  CHECK(CheckCover(std::vector<int64_t>{3, 3}, pinwheel).ok());
}

TEST_CASE("A hole is named as the box that is held by no rank", "[shard]") {
  const std::vector<int64_t> shape{4, 8};
  CHECK(Message(shape, {{0, {{0, 0}, {4, 3}}}, {1, {{0, 5}, {4, 3}}}}) == "[0:4, 3:5] is held by no rank");
  CHECK(Message(shape, {{0, {{0, 0}, {2, 8}}}}) == "[2:4, 0:8] is held by no rank");
  CHECK(Message(shape, {}) == "[0:4, 0:8] is held by no rank");
  CHECK(Message({}, {}) == "[] is held by no rank");
}

TEST_CASE("An overlap is named with both holders", "[shard]") {
  const std::vector<int64_t> shape{4, 8};
  CHECK(Message(shape, {{1, {{0, 0}, {4, 5}}}, {3, {{0, 4}, {4, 4}}}}) ==
        "[0:4, 4:5] is held by ranks 1 and 3, in boxes [0:4, 0:5] and [0:4, 4:8]");
  CHECK(Message({}, {{2, {}}, {2, {}}}) == "[] is held twice by rank 2");
}

TEST_CASE("Empty boxes and empty tensors are covered", "[shard]") {
  CHECK(CheckCover(std::vector<int64_t>{0, 3}, std::vector<HeldBox>{}).ok());
  CHECK(CheckCover(std::vector<int64_t>{0, 3}, std::vector<HeldBox>{{0, {{0, 0}, {0, 3}}}}).ok());
  CHECK(CheckCover(std::vector<int64_t>{2}, std::vector<HeldBox>{{0, {{0}, {2}}}, {1, {{2}, {0}}}}).ok());
  CHECK(CheckCover({}, std::vector<HeldBox>{{0, {}}}).ok());
}

TEST_CASE("Boxes that cut too many dimensions are refused", "[shard]") {
  const std::vector<int64_t> shape(9, 2);
  CHECK(CheckCover(shape, std::vector<HeldBox>{{0, {std::vector<int64_t>(9, 0), std::vector<int64_t>(9, 1)}}}).code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("A million rows are checked, and one missing, doubled or shifted is named (FC-22)", "[shard]") {
  constexpr int64_t kRows = 1'048'576;
  const std::vector<int64_t> shape{kRows, 1};
  std::vector<HeldBox> held = Rows(kRows);
  std::mt19937_64 random(8);
  std::shuffle(held.begin(), held.end(), random);
  CHECK(CheckCover(shape, held).ok());
  std::sort(held.begin(), held.end(), [](const HeldBox& a, const HeldBox& b) { return a.holder < b.holder; });
  std::vector<HeldBox> missing = held;
  missing.erase(missing.begin() + 777'777);
  CHECK(Message(shape, missing) == "[777777:777778, 0:1] is held by no rank");
  std::vector<HeldBox> doubled = held;
  doubled.push_back({7, {{500'000, 0}, {1, 1}}});
  CHECK(Message(shape, doubled).find("[500000:500001, 0:1] is held by ranks 500000 and 7") == 0);
  held[1000].box.offset[0] += 1;
  CHECK(Message(shape, held) == "[1000:1001, 0:1] is held by no rank");
}

TEST_CASE("CheckDisjoint agrees with counting every element", "[shard]") {
  std::mt19937_64 random(10);
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<int64_t> shape(static_cast<size_t>(Draw(random, 1, 3)));
    for (int64_t& size : shape) size = Draw(random, 1, 6);
    std::vector<HeldBox> held = RandomCover(random, shape, 10);
    held.erase(held.begin() + Draw(random, 0, static_cast<int64_t>(held.size()) - 1));  // a hole is no overlap
    if (trial % 2 == 0 && !held.empty()) {
      Box& box = held[random() % held.size()].box;
      const size_t d = random() % shape.size();
      box.extent[d] = std::min(shape[d] - box.offset[d], box.extent[d] + 1);
    }
    std::vector<int> times(static_cast<size_t>(ElementCount(shape)), 0);
    for (const HeldBox& h : held) {
      for (const int64_t element : ElementsOf(h.box, shape)) ++times[static_cast<size_t>(element)];
    }
    REQUIRE(CheckDisjoint(held).ok() == std::all_of(times.begin(), times.end(), [](int t) { return t <= 1; }));
  }
  CHECK(!CheckDisjoint(std::vector<HeldBox>{{0, {}}, {1, {}}}).ok());
}

TEST_CASE("SplitBox gives each wanted element to exactly one box, equal boxes once", "[shard]") {
  std::mt19937_64 random(9);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int64_t> shape(static_cast<size_t>(Draw(random, 1, 3)));
    for (int64_t& size : shape) size = Draw(random, 1, 7);
    std::vector<HeldBox> held = RandomCover(random, shape, 10);
    held.push_back(held[random() % held.size()]);  // a replica
    Box wanted = RandomCover(random, shape, 6)[0].box;
    const auto pieces = SplitBox(wanted, held);
    REQUIRE(pieces.ok());
    CHECK(std::is_sorted(pieces->begin(), pieces->end(), [](const Piece& a, const Piece& b) { return a.held_ordinal < b.held_ordinal; }));
    std::vector<int64_t> found;
    for (const Piece& piece : *pieces) {
      CHECK(Intersect(piece.box, held[static_cast<size_t>(piece.held_ordinal)].box) == piece.box);
      const std::vector<int64_t> elements = ElementsOf(piece.box, shape);
      found.insert(found.end(), elements.begin(), elements.end());
    }
    std::sort(found.begin(), found.end());
    REQUIRE(found == ElementsOf(wanted, shape));
  }
}

TEST_CASE("SplitBox names what no box holds", "[shard]") {
  const std::vector<HeldBox> held{{0, {{0, 0}, {2, 8}}}, {1, {{3, 0}, {1, 8}}}};
  const auto pieces = SplitBox({{1, 2}, {3, 4}}, held);
  CHECK(pieces.status().message() == "[2:3, 2:6] is held by no rank");
  CHECK(SplitBox({{1, 2}, {0, 4}}, held)->empty());
  CHECK(SplitBox({{1}, {1}}, held).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("SplitBox refuses unequal boxes that overlap", "[shard]") {
  const std::vector<HeldBox> held{{4, {{0}, {5}}}, {6, {{3}, {5}}}};
  CHECK(std::string(SplitBox({{0}, {8}}, held).status().message()).find("[3:5] is held by ranks 4 and 6") == 0);
}
