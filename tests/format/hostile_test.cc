// Files whose checksums are right and whose content lies. Built without the schemas' code, as a stranger would.
#include <flatbuffers/flatbuffers.h>

#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "damage.h"
#include "examples.h"
#include "memory_meter.h"

using namespace lamina;
using namespace lamina::format;
using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using flatbuffers::voffset_t;

namespace {

using Bytes = std::span<const std::byte>;
using Decode = std::function<absl::Status(Bytes)>;

constexpr voffset_t Field(int ordinal) { return static_cast<voffset_t>(4 + 2 * ordinal); }

std::string Finished(const FrameKind& kind, FlatBufferBuilder& builder, flatbuffers::uoffset_t root) {
  builder.Finish(Offset<void>(root));
  return Framed(kind, {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()});
}

// A struct field of `bytes` bytes, all zero but for the first.
template <size_t kBytes>
struct Blank {
  alignas(8) std::array<uint8_t, kBytes> bytes{1};
};

// The root table of a catalog with one of its vectors; fields as in docs/format.md.
std::string CatalogWith(FlatBufferBuilder& builder, int field, flatbuffers::uoffset_t vector) {
  const Blank<48> facts;
  const auto start = builder.StartTable();
  builder.AddStruct(Field(0), &facts);
  builder.AddOffset(Field(field), Offset<void>(vector));
  return Finished(kCatalogFrame, builder, builder.EndTable(start));
}

// A tensor of no dimension with a long name.
flatbuffers::uoffset_t NamedTensor(FlatBufferBuilder& builder, size_t name_bytes) {
  const auto name = builder.CreateString(std::string(name_bytes, 'x'));
  const auto start = builder.StartTable();
  const uint8_t dtype = 12;
  builder.AddStruct(Field(0), &dtype);
  builder.AddOffset(Field(1), name);
  return builder.EndTable(start);
}

// A vector that refers `count` times to one table.
flatbuffers::uoffset_t ManyTimes(FlatBufferBuilder& builder, flatbuffers::uoffset_t table, size_t count) {
  return builder.CreateVector(std::vector<Offset<void>>(count, Offset<void>(table))).o;
}

void RequireRefusedWithinMemory(const std::string& bytes, const Decode& decode) {
  const MemoryMeter meter;
  const absl::Status status = decode(base::AsBytes(bytes));
  INFO(status.ToString());
  CHECK(absl::IsDataLoss(status));
  CHECK(meter.PeakBytes() <= 2 * bytes.size() + (size_t{64} << 20));
}

absl::Status CatalogStatus(Bytes bytes) { return DecodeCatalog(bytes).status(); }

}  // namespace

TEST_CASE("A million references to one long name are refused", "[format]") {
  FlatBufferBuilder builder;
  const auto tensor = NamedTensor(builder, 60'000);
  RequireRefusedWithinMemory(CatalogWith(builder, 3, ManyTimes(builder, tensor, 1'000'000)), CatalogStatus);
}

TEST_CASE("References to one long name are counted even where the number of tables is allowed", "[format]") {
  FlatBufferBuilder builder;
  const auto tensor = NamedTensor(builder, 60'000);
  const std::string bytes = CatalogWith(builder, 3, ManyTimes(builder, tensor, 10'000));
  RequireRefusedWithinMemory(bytes, CatalogStatus);
  CHECK_THAT(std::string(CatalogStatus(base::AsBytes(bytes)).message()), Catch::Contains("more than its payload can hold"));
}

TEST_CASE("A million references to one short tensor are refused", "[format]") {
  FlatBufferBuilder builder;
  const auto tensor = NamedTensor(builder, 1);
  RequireRefusedWithinMemory(CatalogWith(builder, 3, ManyTimes(builder, tensor, 1'000'000)), CatalogStatus);
}

TEST_CASE("A million references to one blob or mesh dimension are refused", "[format]") {
  for (const int field : {1, 4}) {
    FlatBufferBuilder builder;
    const auto name = builder.CreateString(std::string(1000, 'x'));
    const Blank<24> facts;
    const auto start = builder.StartTable();
    builder.AddStruct(Field(0), &facts);
    builder.AddOffset(Field(1), name);
    const auto table = builder.EndTable(start);
    RequireRefusedWithinMemory(CatalogWith(builder, field, ManyTimes(builder, table, 1'000'000)), CatalogStatus);
  }
}

TEST_CASE("A million references to one rule are refused", "[format]") {
  FlatBufferBuilder builder;
  const auto scalars = builder.CreateVector(std::vector<uint32_t>(1000, 7));
  const Blank<6> rule_facts;
  const auto rule = builder.StartTable();
  builder.AddStruct(Field(0), &rule_facts);
  builder.AddOffset(Field(1), scalars);
  const auto rules = ManyTimes(builder, builder.EndTable(rule), 1'000'000);
  const Blank<64> facts;
  const auto start = builder.StartTable();
  builder.AddStruct(Field(0), &facts);
  builder.AddOffset(Field(3), Offset<void>(rules));
  RequireRefusedWithinMemory(Finished(kIndexFrame, builder, builder.EndTable(start)),
                             [](Bytes bytes) { return DecodeIndex(bytes).status(); });
}

TEST_CASE("Many boxes of a tensor without dimensions are refused", "[format]") {
  FlatBufferBuilder builder;
  const auto name = builder.CreateString("w");
  const auto places = builder.CreateVector(std::vector<uint64_t>(1'000'000, 0));
  const auto start = builder.StartTable();
  const uint8_t dtype = 12;
  builder.AddStruct(Field(0), &dtype);
  builder.AddOffset(Field(1), name);
  builder.AddOffset(Field(4), places);
  const auto tensor = builder.EndTable(start);
  RequireRefusedWithinMemory(CatalogWith(builder, 3, ManyTimes(builder, tensor, 1)), CatalogStatus);
}

TEST_CASE("A catalog of many boxes that overlap is refused within bounded memory", "[format]") {
  for (const size_t dimensions : {1, 2, 3, 8}) {
    Catalog catalog = example::OneTensorCatalog();
    CatalogTensor& tensor = catalog.tensors[0];
    const bool few = dimensions <= 2;  // then the corners of all boxes are looked at
    tensor.global_shape.assign(dimensions, few ? 1 << 20 : 128);
    tensor.boxes = {};
    for (int64_t i = 0; i < 200'000; ++i) {
      Box box{.offset = std::vector<int64_t>(dimensions, few ? i : i % 50), .extent = std::vector<int64_t>(dimensions, 1 + i % 60)};
      tensor.boxes.push_back({.box = box, .writer = 0, .table = 0});
    }
    INFO(dimensions);
    RequireRefusedWithinMemory(EncodeCatalog(catalog), CatalogStatus);
  }
}

TEST_CASE("Two hundred thousand sound tensors stay within bounded memory", "[format]") {
  Catalog catalog = example::OneTensorCatalog();
  const CatalogTensor one = catalog.tensors[0];
  for (int i = 0; i < 200'000; ++i) {
    catalog.tensors.push_back(one);
    catalog.tensors.back().name += std::to_string(1'000'000 + i);
    catalog.tensors.back().boxes = {{.box = one.boxes[0].box, .writer = 0, .table = static_cast<uint32_t>(i + 1)}};
  }
  const std::string bytes = EncodeCatalog(catalog);
  const MemoryMeter meter;
  CHECK(CatalogStatus(base::AsBytes(bytes)).ok());
  CHECK(meter.PeakBytes() <= 2 * bytes.size() + (size_t{64} << 20));
}

TEST_CASE("Elements of a vector that are not aligned are damage", "[format]") {
  for (const bool aligned : {true, false}) {
    FlatBufferBuilder builder;
    if (!aligned) builder.PushElement<uint32_t>(0);  // built from behind: what comes next ends 4 bytes before a multiple of 8
    const std::vector<uint8_t> writer(72, 1);
    builder.StartVector(writer.size(), 1);
    builder.PushBytes(writer.data(), writer.size());
    const auto vector = builder.EndVector(1);
    const std::string bytes = CatalogWith(builder, 2, vector);
    const absl::Status status = CatalogStatus(base::AsBytes(bytes));
    CHECK(absl::IsDataLoss(status));
    CHECK((std::string(status.message()).find("not aligned") != std::string::npos) == !aligned);
  }
}

TEST_CASE("A payload that is no FlatBuffer is damage", "[format]") {
  const std::vector<std::pair<FrameKind, Decode>> decoders = {{kCatalogFrame, CatalogStatus},
                                                              {kPacksFrame, [](Bytes bytes) { return DecodePacks(bytes).status(); }},
                                                              {kIndexFrame, [](Bytes bytes) { return DecodeIndex(bytes).status(); }},
                                                              {kLogFrame, [](Bytes bytes) { return DecodeLogRecord(bytes, 1).status(); }}};
  for (const auto& [kind, decode] : decoders) {
    for (const size_t length : {0, 1, 3, 4, 7, 8, 100, 4096}) {
      for (const char fill : {'\0', '\4', '\x7f', '\xff'}) {
        INFO(kind.name << ": " << length << " bytes of " << int{fill});
        CHECK(absl::IsDataLoss(decode(base::AsBytes(Framed(kind, std::string(length, fill))))));
      }
    }
  }
}

TEST_CASE("A frame that promises more than there is does not allocate it", "[format]") {
  const std::string catalog = EncodeCatalog(example::OneTensorCatalog());
  for (const uint64_t length : {uint64_t{1} << 20, uint64_t{1} << 30, (uint64_t{1} << 30) + 1, std::numeric_limits<uint64_t>::max()}) {
    const MemoryMeter meter;
    CHECK(absl::IsDataLoss(CatalogStatus(base::AsBytes(WithFrameField<uint64_t>(catalog, 32, length)))));
    CHECK(meter.PeakBytes() < 1u << 16);
  }
}

TEST_CASE("A payload larger than the limit is not written", "[format]") {
  Packs packs = example::OnePack();
  packs.packs.resize((size_t{1} << 24) + 1);
  CHECK(EncodePacks(packs).empty());
}
