#include "format/pack.h"

#include <catch2/catch.hpp>
#include <limits>

#include "damage.h"
#include "examples.h"

using namespace lamina;
using namespace lamina::format;

namespace {

const auto kFileBytes = static_cast<int64_t>(example::Footer().pack_bytes);

absl::Status DecodeHeader(std::span<const std::byte> bytes) { return DecodePackHeader(bytes).status(); }
absl::Status DecodeFooter(std::span<const std::byte> bytes) { return DecodePackFooter(bytes, kFileBytes).status(); }

}  // namespace

TEST_CASE("Header and footer of a pack read back as written", "[format]") {
  const PackHeader header{.store_id = {1, 2}, .attempt = {.step = 3, .incarnation = 4, .attempt = 5}, .writer = 6, .nonce = {7, 8}};
  const std::string bytes = EncodePackHeader(header);
  CHECK(bytes.size() == static_cast<size_t>(kPackHeaderBytes));
  const auto decoded = DecodePackHeader(base::AsBytes(bytes));
  REQUIRE(decoded.ok());
  CHECK(*decoded == header);
  const std::string footer_bytes = EncodePackFooter(example::Footer());
  CHECK(footer_bytes.size() == static_cast<size_t>(kPackFooterBytes));
  const auto footer = DecodePackFooter(base::AsBytes(footer_bytes), kFileBytes);
  REQUIRE(footer.ok());
  CHECK(*footer == example::Footer());
}

TEST_CASE("Damage to a pack's header or footer is noticed", "[format]") {
  RequireDamageIsNoticed(EncodePackHeader(example::Header()), DecodeHeader);
  RequireDamageIsNoticed(EncodePackFooter(example::Footer()), DecodeFooter);
}

TEST_CASE("A pack of a newer version is refused by name", "[format]") {
  RequireVersionsAreKept(EncodePackHeader(example::Header()), DecodeHeader);
  RequireVersionsAreKept(EncodePackFooter(example::Footer()), DecodeFooter);
}

TEST_CASE("A pack's header with a negative step is damage", "[format]") {
  PackHeader header = example::Header();
  header.attempt.step = -1;
  CHECK(absl::IsDataLoss(DecodeHeader(base::AsBytes(EncodePackHeader(header)))));
}

TEST_CASE("A footer whose index does not fill the file to its end is damage", "[format]") {
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  const auto refused = [](int64_t file_bytes, auto change) {
    PackFooter footer = example::Footer();
    change(footer);
    return absl::IsDataLoss(DecodePackFooter(base::AsBytes(EncodePackFooter(footer)), file_bytes).status());
  };
  CHECK(refused(kFileBytes + 1, [](PackFooter&) {}));
  CHECK(refused(kFileBytes - 1, [](PackFooter&) {}));
  CHECK(refused(0, [](PackFooter&) {}));
  CHECK(refused(-1, [](PackFooter&) {}));
  CHECK(refused(kFileBytes, [](PackFooter& f) { f.index_offset -= 1; }));
  CHECK(refused(kFileBytes, [](PackFooter& f) { f.index_bytes += 1; }));
  CHECK(refused(kFileBytes, [&](PackFooter& f) { f.index_offset = huge; }));
  CHECK(refused(kFileBytes, [&](PackFooter& f) { f.index_bytes = huge - f.index_offset; }));
  CHECK(refused(kFileBytes, [&](PackFooter& f) { f.index_offset = huge - 200, f.index_bytes = f.pack_bytes + 73; }));
  CHECK(refused(kFileBytes, [](PackFooter& f) { f.index_offset = 0, f.index_bytes = f.pack_bytes - kPackFooterBytes; }));
  CHECK(refused(int64_t{3} << 30, [](PackFooter& f) {
    f.pack_bytes = uint64_t{3} << 30;
    f.index_bytes = f.pack_bytes - kPackFooterBytes - f.index_offset;
  }));
}
