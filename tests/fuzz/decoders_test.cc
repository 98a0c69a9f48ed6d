// Every decoder of the format against hostile bytes: payloads damaged at random whose checksums are made to fit, so that damage reaches
// what stands behind the checksums. A run is known by its target and number, and a failure names both. LAMINA_FUZZ_RUNS: runs of each
// target.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "format/catalog.h"
#include "format/examples.h"
#include "format/frame.h"
#include "format/index.h"
#include "format/log_record.h"
#include "format/pack.h"
#include "format/store_header.h"

namespace {
size_t largest_allocation_bytes = 0;  // of this program, which has one thread
}

// Counts, so that a length from a file that became an allocation is noticed. Not inlined: the compiler would take malloc and delete for a
// mismatched pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  largest_allocation_bytes = std::max(largest_allocation_bytes, bytes);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  largest_allocation_bytes = std::max(largest_allocation_bytes, bytes);
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace lamina::format {
namespace {

using Random = std::mt19937_64;

struct Target {
  std::string name;
  std::string payload;                                              // sound, to be damaged
  std::function<std::string(const std::string& payload)> wrapped;   // with checksums that fit
  std::function<absl::Status(std::span<const std::byte>)> decoded;  // OK: also checked to be the same after encoding it again
};

int64_t Runs() {
  const char* text = std::getenv("LAMINA_FUZZ_RUNS");
  return text == nullptr ? 2000 : std::atoll(text);
}

size_t Below(Random& random, size_t end) { return end == 0 ? 0 : random() % end; }

uint64_t Nasty(Random& random, size_t bytes) {
  const std::array<uint64_t, 12> values{0,          1,          2,          bytes,      bytes - 1,       bytes / 8,
                                        0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX, UINT64_MAX >> 1, uint64_t{1} << 62};
  return values[Below(random, values.size())];
}

// One small change: a bit, a number, a run copied elsewhere, another length.
void DamageOnce(Random& random, std::string& bytes) {
  if (bytes.empty()) return bytes.append(1, '\0'), void();
  const size_t at = Below(random, bytes.size());
  switch (Below(random, 6)) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(random, 8)));
      break;
    case 1:
      bytes[at] = static_cast<char>(random());
      break;
    case 2:
    case 3: {
      const uint64_t value = Nasty(random, bytes.size());
      const size_t width = size_t{4} << Below(random, 2);
      if (at / 4 * 4 + width <= bytes.size()) bytes.replace(at / 4 * 4, width, reinterpret_cast<const char*>(&value), width);
      break;
    }
    case 4: {
      const size_t length = 1 + Below(random, std::min<size_t>(32, bytes.size() - at));
      const std::string run = bytes.substr(at, length);
      bytes.replace(Below(random, bytes.size() - run.size() + 1), run.size(), run);
      break;
    }
    default:
      bytes.resize(Below(random, 8) == 0 ? at : bytes.size(), '\0');
  }
}

template <typename Value, typename Encode, typename Decode>
auto RoundTrip(const Encode& encode, const Decode& decode) {
  return [=](std::span<const std::byte> bytes) {
    const absl::StatusOr<Value> value = decode(bytes);
    if (!value.ok()) return value.status();
    const std::string again = encode(*value);
    const absl::StatusOr<Value> second = decode(base::AsBytes(again));
    if (!second.ok() || !(*second == *value)) return absl::InternalError("what was decoded cannot be encoded and decoded again");
    return absl::OkStatus();
  };
}

auto Framing(const FrameKind& kind, size_t padded_bytes = 0) {
  return [=](const std::string& payload) {
    std::string bytes = Framed(kind, payload);
    if (padded_bytes != 0) bytes.resize(padded_bytes, '\0');
    return bytes;
  };
}

std::string TwoLogCopies(const std::string& payload) {
  std::string copy = Framed(kLogFrame, payload);
  copy.resize((copy.size() + kLogCopyAlignment - 1) / kLogCopyAlignment * kLogCopyAlignment, '\0');
  return copy + copy;
}

std::string PayloadOf(const FrameKind& kind, const std::string& bytes) {
  return std::string(base::AsText(Unframed(kind, base::AsBytes(bytes)).value()));
}

Catalog RichCatalog() {
  Catalog catalog = example::OneTensorCatalog();
  catalog.rank_count = 4;
  catalog.topology = {{"dp", 2}, {"tp", 2}};
  CatalogTensor tied = catalog.tensors[0];
  tied.name = "x";
  tied.alias_of = "w";
  tied.boxes.clear();
  catalog.tensors.push_back(tied);
  catalog.blobs = {{.name = "place", .rank = 3, .writer = 0, .table = 0, .bytes = 16}};
  return catalog;
}

Target ChunkTableTarget() {
  return {"chunk table", example::Table(), [](const std::string& payload) { return payload; },
          [](std::span<const std::byte> bytes) {
            TableReference reference = example::Reference();
            reference.digest = Checksum128(bytes);
            return DecodeChunkTable(bytes, reference, 1, 16, 4).status();
          }};
}

std::vector<Target> Targets() {
  const PackFooter footer = example::Footer();
  const auto decode_footer = [=](auto bytes) { return DecodePackFooter(bytes, static_cast<int64_t>(footer.pack_bytes)); };
  const auto decode_record = [](auto bytes) { return DecodeLogRecord(bytes, example::Commit().number); };
  return {
      {"store header", PayloadOf(kStoreFrame, EncodeStoreHeader(example::Store())), Framing(kStoreFrame),
       RoundTrip<StoreHeader>(EncodeStoreHeader, DecodeStoreHeader)},
      {"log record", PayloadOf(kLogFrame, EncodeLogRecord(example::Commit())), TwoLogCopies,
       RoundTrip<LogRecord>(EncodeLogRecord, decode_record)},
      {"pack header", PayloadOf(kPackHeaderFrame, EncodePackHeader(example::Header())), Framing(kPackHeaderFrame, kPackHeaderBytes),
       RoundTrip<PackHeader>(EncodePackHeader, DecodePackHeader)},
      {"pack footer", PayloadOf(kPackFooterFrame, EncodePackFooter(footer)), Framing(kPackFooterFrame),
       RoundTrip<PackFooter>(EncodePackFooter, decode_footer)},
      {"index", PayloadOf(kIndexFrame, EncodeIndex(example::OneTensorIndex())), Framing(kIndexFrame),
       RoundTrip<Index>(EncodeIndex, DecodeIndex)},
      {"catalog", PayloadOf(kCatalogFrame, EncodeCatalog(RichCatalog())), Framing(kCatalogFrame),
       RoundTrip<Catalog>(EncodeCatalog, DecodeCatalog)},
      {"packs", PayloadOf(kPacksFrame, EncodePacks(example::OnePack())), Framing(kPacksFrame), RoundTrip<Packs>(EncodePacks, DecodePacks)},
      ChunkTableTarget(),
  };
}

void Attack(const Target& target, int64_t run) {
  Random random(static_cast<uint64_t>(run));
  std::string payload = target.payload;
  for (size_t count = 1 + Below(random, 6); count > 0; --count) DamageOnce(random, payload);
  const std::string bytes = target.wrapped(payload);
  largest_allocation_bytes = 0;
  const absl::Status status = target.decoded(base::AsBytes(bytes));
  const size_t allocated = largest_allocation_bytes;
  if (!status.ok() && !absl::IsDataLoss(status) && !absl::IsUnimplemented(status))
    FAIL(target.name << ", run " << run << ": " << status.ToString());
  if (allocated > 64 * bytes.size() + 4096)
    FAIL(target.name << ", run " << run << ": " << allocated << " bytes for a file of " << bytes.size());
}

}  // namespace

TEST_CASE("Hostile bytes with fitting checksums are refused or mean what they say", "[fuzz]") {
  const Target target = GENERATE(from_range(Targets()));
  INFO(target.name);
  REQUIRE(target.decoded(base::AsBytes(target.wrapped(target.payload))).ok());
  for (int64_t run = 0; run < Runs(); ++run) Attack(target, run);
}

}  // namespace lamina::format
