#include "format/store_header.h"

#include <catch2/catch.hpp>

#include "damage.h"
#include "examples.h"

using namespace lamina::format;

namespace {

absl::Status Decode(std::span<const std::byte> bytes) { return DecodeStoreHeader(bytes).status(); }

}  // namespace

TEST_CASE("LAMINA reads back as written", "[format]") {
  const std::string bytes = EncodeStoreHeader(example::Store());
  CHECK(bytes.size() == 96);
  const auto header = DecodeStoreHeader(lamina::base::AsBytes(bytes));
  REQUIRE(header.ok());
  CHECK(*header == example::Store());
}

TEST_CASE("Damage to LAMINA is noticed", "[format]") { RequireDamageIsNoticed(EncodeStoreHeader(example::Store()), Decode); }

TEST_CASE("LAMINA of a newer version is refused by name", "[format]") {
  RequireVersionsAreKept(EncodeStoreHeader(example::Store()), Decode);
}

TEST_CASE("LAMINA with another fingerprint algorithm is refused", "[format]") {
  std::string payload(32, '\0');
  payload[24] = 2;
  const absl::Status status = Decode(lamina::base::AsBytes(Framed(kStoreFrame, payload)));
  CHECK(absl::IsUnimplemented(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("fingerprint algorithm 2"));
}

TEST_CASE("LAMINA with a payload of another length is damage", "[format]") {
  for (const size_t length : {0, 31, 33}) {
    CHECK(absl::IsDataLoss(Decode(lamina::base::AsBytes(Framed(kStoreFrame, std::string(length, '\0'))))));
  }
}

TEST_CASE("A file of another kind is not LAMINA", "[format]") {
  const absl::Status status = Decode(lamina::base::AsBytes(Framed(kPacksFrame, std::string(32, '\0'))));
  CHECK(absl::IsDataLoss(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("magic"));
}
