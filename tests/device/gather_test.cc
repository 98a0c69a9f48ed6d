#include "device/gather.h"

#include <catch2/catch.hpp>

#include "testing/device_suite.h"

namespace lamina::device {
namespace {

bool IsContiguous(std::vector<int64_t> extent, std::vector<int64_t> strides) {
  const std::byte memory{};
  const auto plan = GatherPlan::Make({&memory, 4, extent, strides});
  REQUIRE(plan.ok());
  return plan->contiguous();
}

TEST_CASE("GatherPlan knows contiguous sources, whatever the strides of single elements", "[device]") {
  CHECK(IsContiguous({}, {}));
  CHECK(IsContiguous({6}, {1}));
  CHECK(IsContiguous({2, 3, 4}, {12, 4, 1}));
  CHECK(IsContiguous({2, 1, 4}, {4, 99, 1}));
  CHECK(IsContiguous({1}, {0}));
  CHECK(IsContiguous({0, 7}, {3, 3}));
  CHECK_FALSE(IsContiguous({6}, {2}));
  CHECK_FALSE(IsContiguous({6}, {-1}));
  CHECK_FALSE(IsContiguous({6}, {0}));
  CHECK_FALSE(IsContiguous({3, 4}, {1, 3}));
  CHECK_FALSE(IsContiguous({3, 4}, {5, 1}));
}

TEST_CASE("GatherPlan reads each range of a source as the slow way does", "[device]") {
  std::mt19937_64 random(21);
  for (int round = 0; round < 200; ++round) {
    const testing::RandomSource source = testing::MakeRandomSource(random, int64_t{1} << (round % 5), 4);
    const auto plan = GatherPlan::Make(testing::View(source));
    REQUIRE(plan.ok());
    const std::vector<std::byte> expected = source.Packed();
    const int64_t count = source.ElementCount();
    for (int64_t begin = 0; begin <= count; begin += 1 + count / 7) {
      std::vector<std::byte> target(static_cast<size_t>((count - begin) * source.element_bytes));
      plan->Gather(begin, count - begin, target.data());
      REQUIRE(std::equal(target.begin(), target.end(), expected.begin() + begin * source.element_bytes, expected.end()));
    }
  }
}

}  // namespace
}  // namespace lamina::device
