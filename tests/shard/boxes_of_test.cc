#include "shard/boxes_of.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "shard/box.h"
#include "testing/boxes.h"

using namespace lamina;
using namespace lamina::shard;
using lamina::testing::Draw;
using lamina::testing::ElementsOf;

namespace {

using Indices = std::vector<int64_t>;

// torch.chunk on explicit indices, filled up with empty chunks.
std::vector<Indices> TorchChunk(const Indices& indices, size_t count) {
  std::vector<Indices> chunks(count);
  const size_t length = (indices.size() + count - 1) / count;
  for (size_t i = 0; i < indices.size(); ++i) chunks[i / length].push_back(indices[i]);
  return chunks;
}

Indices Reference(const Indices& indices, const Placement& placement, size_t mesh_size, size_t coordinate) {
  if (placement.kind == Placement::Kind::kReplicate) return indices;
  if (placement.kind == Placement::Kind::kShard) return TorchChunk(indices, mesh_size)[coordinate];
  Indices local;
  for (const Indices& piece : TorchChunk(indices, static_cast<size_t>(placement.split_factor))) {
    const Indices mine = TorchChunk(piece, mesh_size)[coordinate];
    local.insert(local.end(), mine.begin(), mine.end());
  }
  return local;
}

struct Case {
  std::vector<int64_t> shape, mesh, coordinate;
  std::vector<Placement> placements;
};

Case RandomCase(std::mt19937_64& random) {
  Case c;
  c.shape.resize(static_cast<size_t>(Draw(random, 1, 3)));
  for (int64_t& size : c.shape) size = Draw(random, 0, 13);
  for (int64_t m = Draw(random, 0, 4); m > 0; --m) {
    c.mesh.push_back(Draw(random, 1, 5));
    c.coordinate.push_back(Draw(random, 0, c.mesh.back() - 1));
    Placement p;
    p.kind = static_cast<Placement::Kind>(Draw(random, 0, 2));
    p.dim = Draw(random, 0, static_cast<int64_t>(c.shape.size()) - 1);
    p.split_factor = Draw(random, 1, 6);
    c.placements.push_back(p);
  }
  return c;
}

// The indices of the local tensor along each dimension.
std::vector<Indices> ReferenceOf(const Case& c) {
  std::vector<Indices> dims;
  for (const int64_t size : c.shape) {
    dims.emplace_back(static_cast<size_t>(size));
    std::iota(dims.back().begin(), dims.back().end(), 0);
  }
  for (size_t m = 0; m < c.mesh.size(); ++m) {
    Indices& held = dims[static_cast<size_t>(c.placements[m].dim)];
    held = Reference(held, c.placements[m], static_cast<size_t>(c.mesh[m]), static_cast<size_t>(c.coordinate[m]));
  }
  return dims;
}

std::vector<int64_t> RowsOf(const std::vector<int64_t>& mesh, const std::vector<Placement>& placements, std::vector<int64_t> coordinate) {
  const auto boxes = BoxesOf(std::vector<int64_t>{8, 3}, mesh, coordinate, placements);
  std::vector<int64_t> rows;
  for (const Box& box : boxes.value()) {
    for (int64_t i = 0; i < box.extent[0]; ++i) rows.push_back(box.offset[0] + i);
  }
  return rows;
}

constexpr Placement kReplicate{};
constexpr Placement kRows{Placement::Kind::kShard, 0, 1};
constexpr Placement Strided(int64_t split_factor) { return {Placement::Kind::kStridedShard, 0, split_factor}; }

}  // namespace

TEST_CASE("BoxesOf agrees with chunking explicit indices on 10,000 random meshes", "[shard]") {
  std::mt19937_64 random(11);
  int strided = 0;
  int many = 0;
  for (int trial = 0; trial < 10'000; ++trial) {
    const Case c = RandomCase(random);
    for (const Placement& p : c.placements) strided += p.kind == Placement::Kind::kStridedShard ? 1 : 0;
    const auto boxes = BoxesOf(c.shape, c.mesh, c.coordinate, c.placements);
    REQUIRE(boxes.ok());
    many += boxes->size() > 1 ? 1 : 0;
    const std::vector<Indices> dims = ReferenceOf(c);
    std::vector<int64_t> expected{0};  // elements of the local tensor, row-major
    Box local;
    for (size_t d = 0; d < dims.size(); ++d) {
      std::vector<int64_t> longer;
      for (const int64_t element : expected) {
        for (const int64_t i : dims[d]) longer.push_back(element * c.shape[d] + i);
      }
      expected = std::move(longer);
      local.extent.push_back(static_cast<int64_t>(dims[d].size()));
    }
    std::vector<int64_t> found;
    size_t cut_dims = 0;
    for (size_t d = 0; d < dims.size(); ++d) cut_dims += boxes->front().extent[d] != local.extent[d] ? 1 : 0;
    for (const Box& box : *boxes) {
      REQUIRE(ValidateBox(box, c.shape).ok());
      const std::vector<int64_t> elements = ElementsOf(box, c.shape);
      found.insert(found.end(), elements.begin(), elements.end());
    }
    if (expected.empty()) {
      REQUIRE(boxes->size() == 1);
      REQUIRE(boxes->front().extent == local.extent);
    }
    // Boxes in two dimensions are blocks of the local tensor, so only their set is that of its elements; along dimension 0 the order is
    // too.
    const bool rows_only = cut_dims == 0 || (cut_dims == 1 && boxes->front().extent[0] != local.extent[0]);
    if (!rows_only) {
      std::sort(found.begin(), found.end());
      std::sort(expected.begin(), expected.end());
    }
    REQUIRE(found == expected);
  }
  CHECK(strided > 3000);
  CHECK(many > 300);
}

TEST_CASE("The places of a mesh cover a tensor exactly once when every mesh dimension shards", "[shard]") {
  std::mt19937_64 random(12);
  for (int trial = 0; trial < 1000; ++trial) {
    Case c = RandomCase(random);
    for (Placement& p : c.placements) {
      if (p.kind == Placement::Kind::kReplicate) p.kind = Placement::Kind::kShard;
    }
    const int64_t places = ElementCount(c.mesh);
    std::vector<HeldBox> held;
    for (int64_t place = 0; place < places; ++place) {
      int64_t rest = place;
      for (size_t m = c.mesh.size(); m-- > 0; rest /= c.mesh[m]) c.coordinate[m] = rest % c.mesh[m];
      const std::vector<Box> boxes = BoxesOf(c.shape, c.mesh, c.coordinate, c.placements).value();
      for (const Box& box : boxes) held.push_back({static_cast<int32_t>(place), box});
    }
    REQUIRE(CheckCover(c.shape, held).ok());
  }
}

TEST_CASE("More ranks than rows leave the last ranks with an empty shard (FC-01)", "[shard]") {
  const std::vector<Placement> rows{kRows};
  const std::vector<int64_t> mesh{4};
  const std::vector<std::vector<Box>> expected{{{{0, 0}, {2, 5}}}, {{{2, 0}, {2, 5}}}, {{{4, 0}, {2, 5}}}, {{{0, 0}, {0, 5}}}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(BoxesOf(std::vector<int64_t>{6, 5}, mesh, std::vector<int64_t>{rank}, rows).value() == expected[static_cast<size_t>(rank)]);
  }
  CHECK(BoxesOf({}, mesh, std::vector<int64_t>{3}, std::vector<Placement>{kReplicate}).value() == std::vector<Box>{Box{}});
  CHECK(IsEmpty(BoxesOf(std::vector<int64_t>{0, 4}, mesh, std::vector<int64_t>{0}, rows).value()[0]));
}

TEST_CASE("Tensor parallelism splits first and data sharding inside it (FC-02)", "[shard]") {
  const std::vector<Placement> placements{Strided(2), kRows};
  const std::vector<int64_t> mesh{2, 2};
  CHECK(RowsOf(mesh, placements, {0, 0}) == std::vector<int64_t>{0, 1});
  CHECK(RowsOf(mesh, placements, {0, 1}) == std::vector<int64_t>{4, 5});
  CHECK(RowsOf(mesh, placements, {1, 0}) == std::vector<int64_t>{2, 3});
  CHECK(RowsOf(mesh, placements, {1, 1}) == std::vector<int64_t>{6, 7});
}

TEST_CASE("A strided shard beside replicas keeps many boxes", "[shard]") {
  CHECK(RowsOf({2, 2}, {kReplicate, Strided(2)}, {1, 1}) == std::vector<int64_t>{2, 3, 6, 7});
  CHECK(RowsOf({2, 2, 2}, {kReplicate, Strided(2), kRows}, {1, 1, 0}) == std::vector<int64_t>{2, 3});
}

TEST_CASE("Uneven nested splits are read by the shape of the local tensor (FC-02)", "[shard]") {
  // 7 rows: tensor parallelism gives 4 and 3, and data sharding over 3 cuts them into 2, 2, 0 and 1, 1, 1.
  const std::vector<Placement> placements{Strided(2), kRows};
  const std::vector<int64_t> mesh{3, 2};
  const auto boxes = [&](std::vector<int64_t> coordinate, int64_t rows) {
    return BoxesOfLocal(std::vector<int64_t>{7}, mesh, coordinate, placements, std::vector<int64_t>{rows});
  };
  CHECK(boxes({0, 0}, 2).value() == std::vector<Box>{{{0}, {2}}});
  CHECK(boxes({1, 1}, 1).value() == std::vector<Box>{{{5}, {1}}});
  CHECK(boxes({2, 1}, 1).value() == std::vector<Box>{{{6}, {1}}});  // as fully_shard holds it
  CHECK(boxes({2, 0}, 0).value() == std::vector<Box>{{{0}, {0}}});
  CHECK(boxes({2, 0}, 1).value() == std::vector<Box>{{{6}, {1}}});  // as distribute_tensor holds it
  CHECK(boxes({2, 1}, 0).value() == std::vector<Box>{{{0}, {0}}});
  CHECK(boxes({0, 0}, 3).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Where nothing is held, the local tensor may have any shape without elements", "[shard]") {
  // Tensor parallelism over 3 gives the last place none of 4 columns; fully_shard keeps no rows of that, where 6 would be its share.
  const std::vector<Placement> placements{kRows, {Placement::Kind::kShard, 1, 1}};
  const auto boxes = [&](std::vector<int64_t> coordinate, std::vector<int64_t> local) {
    return BoxesOfLocal(std::vector<int64_t>{12, 4}, std::vector<int64_t>{2, 3}, coordinate, placements, local);
  };
  CHECK(boxes({1, 2}, {6, 0}).value() == std::vector<Box>{{{0, 0}, {6, 0}}});
  CHECK(boxes({1, 2}, {0, 0}).value() == std::vector<Box>{{{0, 0}, {0, 0}}});
  CHECK(boxes({1, 1}, {0, 0}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(boxes({1, 2}, {6, 1}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(boxes({1, 2}, {0}).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("A local tensor that fits two readings with different rows is refused", "[shard]") {
  int refused = 0;
  for (int64_t rows = 1; rows < 64; ++rows) {
    for (int64_t place = 0; place < 12; ++place) {
      const std::vector<int64_t> coordinate{place / 4, place % 4};
      const std::vector<Placement> placements{Strided(4), kRows};
      const auto boxes = BoxesOf(std::vector<int64_t>{rows}, std::vector<int64_t>{3, 4}, coordinate, placements).value();
      int64_t held = 0;
      for (const Box& box : boxes) held += box.extent[0];
      const auto read =
          BoxesOfLocal(std::vector<int64_t>{rows}, std::vector<int64_t>{3, 4}, coordinate, placements, std::vector<int64_t>{held});
      refused += read.ok() ? 0 : 1;
      if (read.ok()) CHECK(*read == boxes);
    }
  }
  CHECK(refused > 0);
}

TEST_CASE("BoxesOf refuses sizes that do not fit", "[shard]") {
  const std::vector<int64_t> shape{4};
  const auto code = [&](std::vector<int64_t> mesh, std::vector<int64_t> coordinate, std::vector<Placement> placements) {
    return BoxesOf(shape, mesh, coordinate, placements).status().code();
  };
  CHECK(code({2}, {0}, {kRows}) == absl::StatusCode::kOk);
  CHECK(code({2}, {2}, {kRows}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({0}, {0}, {kRows}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({2, 2}, {0, 0}, {kRows}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({2}, {0}, {{Placement::Kind::kShard, 1, 1}}) == absl::StatusCode::kInvalidArgument);
  CHECK(code({2}, {0}, {Strided(0)}) == absl::StatusCode::kInvalidArgument);
  CHECK(!BoxesOf({}, std::vector<int64_t>{2}, std::vector<int64_t>{0}, std::vector<Placement>{kRows}).ok());
  CHECK(!BoxesOf(std::vector<int64_t>{-1}, {}, {}, {}).ok());
}
