#include "format/catalog.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "damage.h"
#include "examples.h"

using namespace lamina;
using namespace lamina::format;

namespace {

absl::StatusOr<Catalog> Decode(const std::string& bytes) { return DecodeCatalog(base::AsBytes(bytes)); }

// Two writers, a tensor in two boxes, its alias, a 0-d tensor, one without elements, blobs of two ranks.
Catalog SmallCatalog() {
  Catalog catalog = example::OneTensorCatalog();
  catalog.rank_count = 4;
  catalog.topology = {{"dp", 2}, {"tp", 2}};
  catalog.writers.push_back(catalog.writers[0]);
  catalog.writers[1].writer = 1;
  const StoredBox left{.box = {.offset = {0, 0}, .extent = {4, 3}}, .writer = 0, .table = 0};
  const StoredBox right{.box = {.offset = {0, 3}, .extent = {4, 5}}, .writer = 1, .table = 7};
  const std::string name("a\0\xff name", 8);
  catalog.tensors = {
      {.name = name, .dtype = DType::kBfloat16, .global_shape = {4, 8}, .alias_of = "", .boxes = {left, right}},
      {.name = "b", .dtype = DType::kBfloat16, .global_shape = {4, 8}, .alias_of = name, .boxes = {}},
      {.name = "c", .dtype = DType::kInt64, .global_shape = {}, .alias_of = "", .boxes = {{.box = {}, .writer = 1, .table = 8}}},
      {.name = "d", .dtype = DType::kComplex128, .global_shape = {0, 5}, .alias_of = "", .boxes = {}},
  };
  catalog.blobs = {{.name = "place", .rank = 0, .writer = 0, .table = 1, .bytes = 5},
                   {.name = "place", .rank = 3, .writer = 1, .table = 9, .bytes = 0},
                   {.name = "tree", .rank = 0, .writer = 0, .table = 2, .bytes = 77}};
  return catalog;
}

void RequireRefused(const std::function<void(Catalog&)>& change, const std::string& message) {
  Catalog catalog = SmallCatalog();
  change(catalog);
  const absl::Status valid = ValidateCatalog(catalog);
  CHECK(absl::IsInvalidArgument(valid));
  CHECK_THAT(std::string(valid.message()), Catch::Contains(message));
  const absl::Status decoded = Decode(EncodeCatalog(catalog)).status();
  INFO(decoded.ToString());
  CHECK(absl::IsDataLoss(decoded));
}

// Of the first tensor's two boxes.
void RequireSecondBoxRefused(const std::function<void(StoredBox&)>& change, const std::string& message) {
  RequireRefused(
      [&](Catalog& catalog) {
        StoredBoxes& boxes = catalog.tensors[0].boxes;
        StoredBox second = boxes[1];
        change(second);
        boxes = {boxes[0], second};
      },
      message);
}

}  // namespace

TEST_CASE("A catalog reads back as written", "[format]") {
  CHECK(ValidateCatalog(SmallCatalog()).ok());
  const auto decoded = Decode(EncodeCatalog(SmallCatalog()));
  INFO(decoded.status().ToString());
  REQUIRE(decoded.ok());
  CHECK(*decoded == SmallCatalog());
}

TEST_CASE("A catalog of many tensors reads back as written", "[format]") {
  Catalog catalog = example::OneTensorCatalog();
  catalog.tensors.clear();
  uint32_t table = 0;
  for (int64_t i = 0; i < 3000; ++i) {
    CatalogTensor tensor{
        .name = "layers." + std::to_string(100'000 + i), .dtype = DType::kFloat32, .global_shape = {i + 1}, .alias_of = "", .boxes = {}};
    for (int64_t row = 0; row <= i; row += 1000) {
      const Box box{.offset = {row}, .extent = {std::min<int64_t>(1000, i + 1 - row)}};
      tensor.boxes.push_back({.box = box, .writer = 0, .table = table++});
    }
    catalog.tensors.push_back(tensor);
  }
  const auto decoded = Decode(EncodeCatalog(catalog));
  REQUIRE(decoded.ok());
  CHECK(*decoded == catalog);
}

TEST_CASE("Damage to a catalog is noticed", "[format]") {
  RequireDamageIsNoticed(EncodeCatalog(SmallCatalog()), [](auto bytes) { return DecodeCatalog(bytes).status(); });
}

TEST_CASE("A catalog of a newer version is refused by name", "[format]") {
  RequireVersionsAreKept(EncodeCatalog(SmallCatalog()), [](auto bytes) { return DecodeCatalog(bytes).status(); });
}

TEST_CASE("A catalog whose tensors contradict themselves is refused before and after it is written", "[format]") {
  RequireRefused([](Catalog& c) { std::swap(c.tensors[2], c.tensors[3]); }, "out of order");
  RequireRefused([](Catalog& c) { c.tensors[3].name = "c"; }, "out of order");
  RequireRefused([](Catalog& c) { c.tensors[0].name = ""; }, "its name has 0 bytes");
  RequireRefused([](Catalog& c) { c.tensors[3].name = std::string(kNameBytesMax + 1, 'x'); }, "its name has 65537 bytes");
  RequireRefused([](Catalog& c) { c.tensors[3].global_shape = {0, -5}; }, "shape is negative");
  RequireRefused([](Catalog& c) { c.tensors[3].global_shape = {int64_t{1} << 31, int64_t{1} << 31, 2}; }, "2^62");
  RequireRefused([](Catalog& c) { c.tensors[3].global_shape = {int64_t{1} << 59}; }, "2^62");
  RequireRefused([](Catalog& c) { c.tensors[3].global_shape.assign(kDimensionsMax + 1, 0); }, "65 dimensions");
}

TEST_CASE("A catalog whose boxes do not cover a tensor exactly is refused", "[format]") {
  RequireRefused([](Catalog& c) { c.tensors[0].boxes = {c.tensors[0].boxes[0]}; }, "[0:4, 3:8]");
  RequireRefused([](Catalog& c) { c.tensors[0].boxes = {}; }, "[0:4, 0:8]");
  RequireSecondBoxRefused([](StoredBox& b) { b.box = {.offset = {0, 2}, .extent = {4, 6}}; }, "[0:4, 2:3]");
  RequireRefused([](Catalog& c) { c.tensors[0].boxes.push_back(c.tensors[0].boxes[0]); }, "held");
  RequireSecondBoxRefused([](StoredBox& b) { b.box.extent[1] = 6; }, "");
  RequireSecondBoxRefused([](StoredBox& b) { b.box.offset[0] = std::numeric_limits<int64_t>::max(); }, "");
  RequireSecondBoxRefused([](StoredBox& b) { b.box.offset[0] = -1; }, "");
  RequireSecondBoxRefused([](StoredBox& b) { b.box = {.offset = {0, 3, 0}, .extent = {4, 5, 1}}; }, "another number of dimensions");
  RequireRefused(
      [](Catalog& c) {
        c.tensors[3].boxes = {{.box = {.offset = {0, 0}, .extent = {0, 5}}, .writer = 0, .table = 0}};
      },
      "no element");
  RequireRefused([](Catalog& c) { c.tensors[2].boxes.push_back(c.tensors[2].boxes[0]); }, "");
  RequireRefused([](Catalog& c) { c.tensors[2].boxes = {}; }, "[]");
}

TEST_CASE("A catalog whose aliases lead nowhere is refused", "[format]") {
  RequireRefused([](Catalog& c) { c.tensors[1].alias_of = "nowhere"; }, "no stored tensor");
  RequireRefused([](Catalog& c) { c.tensors[1].alias_of = "b"; }, "no stored tensor");
  RequireRefused([](Catalog& c) { c.tensors[1].dtype = DType::kFloat16; }, "dtype or shape");
  RequireRefused([](Catalog& c) { c.tensors[1].global_shape = {8, 4}; }, "dtype or shape");
  RequireRefused([](Catalog& c) { c.tensors[1].boxes = c.tensors[0].boxes; }, "boxes of its own");
}

TEST_CASE("A catalog with ordinals or counts out of range is refused", "[format]") {
  RequireSecondBoxRefused([](StoredBox& b) { b.writer = 2; }, "writer is 2");
  RequireRefused([](Catalog& c) { c.blobs[0].writer = 2; }, "writer is 2");
  RequireRefused([](Catalog& c) { c.blobs[1].rank = 4; }, "rank is 4 of 4");
  RequireRefused([](Catalog& c) { c.blobs[1].rank = 0; }, "out of order");
  RequireRefused([](Catalog& c) { std::swap(c.blobs[1], c.blobs[2]); }, "out of order");
  RequireRefused([](Catalog& c) { c.blobs[1].bytes = std::numeric_limits<uint64_t>::max(); }, "bytes");
  RequireRefused([](Catalog& c) { c.blobs[0].name = ""; }, "its name has 0 bytes");
  RequireRefused([](Catalog& c) { c.rank_count = 0; }, "rank_count");
  RequireRefused([](Catalog& c) { c.rank_count = uint32_t{1} << 31; }, "rank_count: is 2147483648");
  RequireRefused([](Catalog& c) { c.attempt.step = -1; }, "step is -1");
  RequireRefused([](Catalog& c) { c.writers[1].attempt.step = -1; }, "step is -1");
  RequireRefused([](Catalog& c) { c.writers[1].pack_bytes = 4223; }, "4223 bytes");
  RequireRefused([](Catalog& c) { c.writers[1].pack_bytes = std::numeric_limits<uint64_t>::max(); }, "bytes");
  RequireRefused([](Catalog& c) { c.topology[1].second = 0; }, "extent is 0");
  RequireRefused([](Catalog& c) { c.topology[1].first = ""; }, "its name has 0 bytes");
}

TEST_CASE("A catalog that names a pack or a chunk table twice is refused", "[format]") {
  RequireRefused([](Catalog& c) { c.writers[1].writer = 0; }, "'steps/000000000100/1-0/00000.pack' is named twice");
  RequireRefused([](Catalog& c) { c.blobs[0].table = 0; }, "chunk table 0 of writer 0 is named twice");
  RequireRefused([](Catalog& c) { c.blobs[2].table = 1; }, "chunk table 1 of writer 0 is named twice");
  RequireSecondBoxRefused([](StoredBox& b) { b.writer = b.table = 0; }, "chunk table 0 of writer 0 is named twice");
}

TEST_CASE("A catalog of incarnation 0, or with a blob above 1 GiB, is refused", "[format]") {
  RequireRefused([](Catalog& c) { c.attempt.incarnation = 0; }, "incarnation is 0");
  RequireRefused([](Catalog& c) { c.writers[1].attempt.incarnation = 0; }, "incarnation is 0");
  RequireRefused([](Catalog& c) { c.blobs[0].bytes = (uint64_t{1} << 30) + 1; }, "more than plain values may have");
}

TEST_CASE("A message shortens the name of a tensor", "[format]") {
  Catalog catalog = SmallCatalog();
  catalog.tensors[3].name = std::string(kNameBytesMax, 'n');
  catalog.tensors[3].global_shape = {-1};
  CHECK(ValidateCatalog(catalog).message().size() < 400);
}

TEST_CASE("A catalog with a dtype that does not exist is refused", "[format]") {
  RequireRefused([](Catalog& c) { c.tensors[3].dtype = static_cast<DType>(0); }, "dtype is 0");
  RequireRefused([](Catalog& c) { c.tensors[3].dtype = static_cast<DType>(23); }, "dtype is 23");
}

TEST_CASE("A catalog whose boxes cut too many dimensions is refused before the work is done", "[format]") {
  RequireRefused(
      [](Catalog& c) {
        CatalogTensor& tensor = c.tensors[3];
        tensor.global_shape = {2, 2, 2, 2, 2, 2, 2, 2, 1 << 20};
        for (int64_t i = 0; i < 5000; ++i) {
          tensor.boxes.push_back(
              {.box = {.offset = {0, 0, 0, 0, 0, 0, 0, 0, i}, .extent = {1, 1, 1, 1, 1, 1, 1, 2, 1}}, .writer = 0, .table = 0});
        }
      },
      "5000 boxes cut 8 dimensions");
  RequireRefused(
      [](Catalog& c) {
        CatalogTensor& tensor = c.tensors[3];
        tensor.global_shape = {300'000, 2};
        for (int64_t i = 0; i < 300'000; ++i) {
          for (const int64_t column : {0, 1}) {
            tensor.boxes.push_back({.box = {.offset = {i, column}, .extent = {1, 1}}, .writer = 0, .table = 0});
          }
        }
      },
      "600000 boxes cut 2 dimensions");
}

TEST_CASE("The file packs reads back as written", "[format]") {
  Packs packs = example::OnePack();
  for (uint32_t i = 1; i < 500; ++i) {
    ReachedPack pack = packs.packs[0];
    pack.writer = i;
    pack.live_bytes = i;
    packs.packs.push_back(pack);
  }
  const auto decoded = DecodePacks(base::AsBytes(EncodePacks(packs)));
  REQUIRE(decoded.ok());
  CHECK(*decoded == packs);
}

TEST_CASE("Damage to the file packs is noticed", "[format]") {
  RequireDamageIsNoticed(EncodePacks(example::OnePack()), [](auto bytes) { return DecodePacks(bytes).status(); });
}

TEST_CASE("The file packs of a newer version is refused by name", "[format]") {
  RequireVersionsAreKept(EncodePacks(example::OnePack()), [](auto bytes) { return DecodePacks(bytes).status(); });
}

TEST_CASE("A file packs out of order or with more live than there is, is refused", "[format]") {
  const auto require_refused = [](Packs packs) {
    CHECK(absl::IsInvalidArgument(ValidatePacks(packs)));
    CHECK(absl::IsDataLoss(DecodePacks(base::AsBytes(EncodePacks(packs))).status()));
  };
  Packs twice = example::OnePack();
  twice.packs.push_back(twice.packs[0]);
  require_refused(twice);
  Packs overfull = example::OnePack();
  overfull.packs[0].live_bytes = overfull.packs[0].pack_bytes + 1;
  require_refused(overfull);
  Packs negative = example::OnePack();
  negative.packs[0].attempt.step = -1;
  require_refused(negative);
}
