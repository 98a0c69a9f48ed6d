#include "plan/description.h"

#include <catch2/catch.hpp>
#include <random>

#include "base/bytes.h"
#include "testing/descriptions.h"

using namespace lamina;
using namespace lamina::plan;
using lamina::testing::Entry;

namespace {

float memory[64];

TensorView View(std::string name, std::vector<int64_t> shape, std::vector<Box> boxes) {
  TensorView view{.name = std::move(name), .dtype = DType::kFloat32, .global_shape = std::move(shape), .boxes = {}, .alias_of = ""};
  for (Box& box : boxes) view.boxes.push_back({box, memory, std::vector<int64_t>(view.global_shape.size(), 1)});
  return view;
}

absl::Status Refusal(const std::vector<TensorView>& tensors) { return Describe(tensors, {}).status(); }

bool Says(const absl::Status& status, std::string_view text) { return std::string(status.message()).find(text) != std::string::npos; }

RankDescription Sample() {
  RankDescription sample;
  sample.topology = {{"dp", 2}, {"tp", 4}};
  sample.entries = {Entry("model.w", {4, 6}, {{{0, 0}, {2, 6}}, {{3, 0}, {1, 6}}}), Entry("model.tied", {4, 6}, {}),
                    Entry("scale", {}, {Box{}}, DType::kBfloat16), Entry("empty", {0, 3}, {{{0, 0}, {0, 3}}})};
  sample.entries[1].alias_of = "model.w";
  sample.entries[2].replicas_may_differ = true;
  return sample;
}

}  // namespace

TEST_CASE("A description keeps names, dtypes, shapes, boxes and topology", "[plan]") {
  const std::vector<std::pair<std::string, int64_t>> topology{{"dp", 2}};
  const auto described = Describe(std::vector<TensorView>{View("w", {4}, {{{0}, {2}}}), View("s", {}, {Box{}})}, topology);
  REQUIRE(described.ok());
  CHECK(described->entries == std::vector<EntryDescription>{Entry("w", {4}, {{{0}, {2}}}), Entry("s", {}, {Box{}})});
  CHECK(described->topology == topology);
}

TEST_CASE("Views that cannot be described are refused by name", "[plan]") {
  const Box row{{0}, {2}};
  CHECK(Says(Refusal({View("w", {4}, {row}), View("w", {4}, {row})}), "'w': two entries"));
  CHECK(Says(Refusal({View("w", {4}, {{{3}, {2}}})}), "'w': box [3:5] does not lie in [0:4]"));
  CHECK(Says(Refusal({View("w", {4}, {row, row})}), "'w': boxes of one rank"));
  CHECK(Says(Refusal({View("w", {int64_t{1} << 33, int64_t{1} << 33}, {})}), "too large"));
  CHECK(Says(Refusal({View("", {4}, {row})}), "needs a name"));
  TensorView unknown = View("w", {4}, {row});
  unknown.dtype = static_cast<DType>(99);
  CHECK(Says(Refusal({unknown}), "unknown dtype 99"));
  TensorView strides = View("w", {4}, {row});
  strides.boxes[0].strides.clear();
  CHECK(Says(Refusal({strides}), "0 strides, expected 1"));
  TensorView null = View("w", {4}, {row});
  null.boxes[0].data = nullptr;
  CHECK(Refusal({null}).code() == absl::StatusCode::kInternal);
  null.boxes[0].box.extent[0] = 0;
  CHECK(Refusal({null}).ok());
}

TEST_CASE("An alias must name an entry of the same dtype, shape and boxes", "[plan]") {
  const std::vector<Box> all{{{0}, {4}}};
  TensorView alias = View("tied", {4}, all);
  alias.alias_of = "w";
  CHECK(Refusal({alias, View("w", {4}, all)}).ok());
  CHECK(Says(Refusal({alias}), "'tied': is an alias of 'w', which is no entry"));
  CHECK(Says(Refusal({alias, View("w", {5}, all)}), "another dtype, shape or boxes"));
  CHECK(Says(Refusal({alias, View("w", {4}, {{{0}, {3}}})}), "another dtype, shape or boxes"));
  TensorView chain = View("w", {4}, all);
  chain.alias_of = "tied";
  CHECK(Says(Refusal({alias, chain}), "which is an alias itself"));
}

TEST_CASE("A description comes back from its bytes, and the digest tells descriptions apart", "[plan]") {
  const RankDescription sample = Sample();
  const std::string bytes = EncodeDescription(sample);
  const auto decoded = DecodeDescription(base::AsBytes(bytes));
  REQUIRE(decoded.ok());
  CHECK(*decoded == sample);
  CHECK(DigestOf(*decoded) == DigestOf(sample));
  RankDescription other = sample;
  other.entries[0].boxes[1].offset[0] = 2;
  CHECK(DigestOf(other) != DigestOf(sample));
  other = sample;
  other.topology[0].second = 3;
  CHECK(DigestOf(other) != DigestOf(sample));
  RankDescription scalar;  // a box without dimensions at the very end
  scalar.entries = {Entry("s", {}, {Box{}})};
  CHECK(DecodeDescription(base::AsBytes(EncodeDescription(scalar))).value() == scalar);
}

TEST_CASE("A description that is cut short or too long is refused", "[plan]") {
  const std::string bytes = EncodeDescription(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    REQUIRE(DecodeDescription(base::AsBytes(std::string_view(bytes).substr(0, size))).status().code() ==
            absl::StatusCode::kInvalidArgument);
  }
  CHECK(DecodeDescription(base::AsBytes(bytes + "x")).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("A hostile description is refused or sound, never more", "[plan]") {
  const std::string bytes = EncodeDescription(Sample());
  std::mt19937_64 random(13);
  int refused = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string hostile = bytes;
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) hostile[random() % hostile.size()] = static_cast<char>(random());
    const auto decoded = DecodeDescription(base::AsBytes(hostile));
    if (decoded.ok()) {
      REQUIRE(DecodeDescription(base::AsBytes(EncodeDescription(*decoded))).value() == *decoded);
    } else {
      REQUIRE(decoded.status().code() == absl::StatusCode::kInvalidArgument);
      ++refused;
    }
  }
  CHECK(refused > 5000);
}
