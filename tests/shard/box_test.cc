#include "shard/box.h"

#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "testing/boxes.h"

using namespace lamina;
using namespace lamina::shard;
using lamina::testing::Draw;
using lamina::testing::ElementsOf;

namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

std::vector<int64_t> RandomShape(std::mt19937_64& random, int64_t dims_max, int64_t size_max) {
  std::vector<int64_t> shape(static_cast<size_t>(Draw(random, 0, dims_max)));
  for (int64_t& size : shape) size = Draw(random, 1, size_max);
  return shape;
}

Box RandomBox(std::mt19937_64& random, std::span<const int64_t> shape) {
  Box box;
  for (const int64_t size : shape) {
    box.offset.push_back(Draw(random, 0, size - 1));
    box.extent.push_back(Draw(random, 1, size - box.offset.back()));
  }
  return box;
}

}  // namespace

TEST_CASE("Element counts that are negative or too large are refused", "[shard]") {
  CHECK(CheckedElementCount(std::vector<int64_t>{}) == 1);
  CHECK(CheckedElementCount(std::vector<int64_t>{3, 0, 5}) == 0);
  CHECK(CheckedElementCount(std::vector<int64_t>{int64_t{1} << 31, int64_t{1} << 31}) == int64_t{1} << 62);
  CHECK(!CheckedElementCount(std::vector<int64_t>{int64_t{1} << 33, int64_t{1} << 33}).has_value());
  CHECK(!CheckedElementCount(std::vector<int64_t>{0, kHuge, kHuge}).has_value());
  CHECK(!CheckedElementCount(std::vector<int64_t>{4, -1}).has_value());
}

TEST_CASE("A box outside the shape is refused without overflow", "[shard]") {
  const std::vector<int64_t> shape{4, 6};
  CHECK(ValidateBox({{0, 2}, {4, 4}}, shape).ok());
  CHECK(ValidateBox({{4, 6}, {0, 0}}, shape).ok());
  for (const Box& bad : std::vector<Box>{
           {{0, 3}, {4, 4}}, {{-1, 0}, {1, 1}}, {{0, 0}, {1, -1}}, {{kHuge, 0}, {kHuge, 1}}, {{0}, {4}}, {{0, 0}, {4}}, {{5, 0}, {0, 1}}}) {
    const absl::Status status = ValidateBox(bad, shape);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(status.message()).find("[0:4, 0:6]") != std::string::npos);
  }
}

TEST_CASE("Boxes print as half-open ranges", "[shard]") {
  CHECK(ToString(Box{{0, 8}, {4, 8}}) == "[0:4, 8:16]");
  CHECK(ToString(Box{}) == "[]");
}

TEST_CASE("A box without dimensions has one element", "[shard]") {
  CHECK(!IsEmpty(Box{}));
  CHECK(Intersect(Box{}, Box{}) == Box{});
  CHECK(IsEmpty(Box{{2, 0}, {0, 3}}));
}

TEST_CASE("A flat range is covered in order by at most 2N - 1 boxes", "[shard]") {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 5000; ++trial) {
    const std::vector<int64_t> shape = RandomShape(random, 4, 4);
    const Box place = RandomBox(random, shape);
    const int64_t begin = Draw(random, 0, ElementCount(place.extent));
    const int64_t end = Draw(random, begin, ElementCount(place.extent));
    const auto boxes = BoxesOfFlatRange(place.offset, place.extent, begin, end);
    REQUIRE(boxes.ok());
    CHECK(boxes->size() <= std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
    std::vector<int64_t> found;
    for (const Box& box : *boxes) {
      const std::vector<int64_t> elements = ElementsOf(box, shape);
      found.insert(found.end(), elements.begin(), elements.end());
    }
    const std::vector<int64_t> all = ElementsOf(place, shape);
    REQUIRE(found == std::vector<int64_t>(all.begin() + begin, all.begin() + end));
  }
}

TEST_CASE("A flat range outside the array is refused", "[shard]") {
  const std::vector<int64_t> origin{0, 0};
  const std::vector<int64_t> extent{2, 3};
  CHECK(BoxesOfFlatRange(origin, extent, 6, 6)->empty());
  CHECK(!BoxesOfFlatRange(origin, extent, 2, 7).ok());
  CHECK(!BoxesOfFlatRange(origin, extent, -1, 2).ok());
  CHECK(!BoxesOfFlatRange(origin, extent, 3, 2).ok());
  CHECK(!BoxesOfFlatRange(std::vector<int64_t>{0}, extent, 0, 1).ok());
}

TEST_CASE("Runs copy what the two boxes have in common and are as long as they can be", "[shard]") {
  std::mt19937_64 random(6);
  int checked = 0;
  while (checked < 3000) {
    const std::vector<int64_t> shape = RandomShape(random, 4, 5);
    const Box source = RandomBox(random, shape);
    const Box target = RandomBox(random, shape);
    const std::optional<Box> common = Intersect(source, target);
    if (!common.has_value()) continue;
    ++checked;
    const std::vector<int64_t> of_source = ElementsOf(source, shape);
    const std::vector<int64_t> of_target = ElementsOf(target, shape);
    std::vector<int64_t> copied;
    ForEachRun(*common, source, target, [&](int64_t from, int64_t to, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        REQUIRE(of_source.at(static_cast<size_t>(from + i)) == of_target.at(static_cast<size_t>(to + i)));
        copied.push_back(of_source[static_cast<size_t>(from + i)]);
      }
    });
    REQUIRE(copied == ElementsOf(*common, shape));
  }
}

TEST_CASE("Runs over whole trailing dimensions are merged", "[shard]") {
  int runs = 0;
  const auto count_runs = [&](int64_t, int64_t, int64_t count) {
    ++runs;
    CHECK(count == 2 * 3 * 4);
  };
  ForEachRun({{4, 0, 0}, {2, 3, 4}}, {{0, 0, 0}, {8, 3, 4}}, {{4, 0, 0}, {2, 3, 4}}, count_runs);
  CHECK(runs == 1);
}
