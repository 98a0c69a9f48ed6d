// Damages encoded files in all the small ways. For the tests of every decoder.
#pragma once

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "format/chunk.h"
#include "format/frame.h"

namespace lamina::format {

// Every flipped bit and every shorter or longer file is DataLoss. `decode` takes bytes and returns a status.
template <typename Decode>
void RequireDamageIsNoticed(std::string bytes, const Decode& decode) {
  REQUIRE(decode(base::AsBytes(bytes)).ok());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const char mask = static_cast<char>(1 << (bit % 8));
    bytes[bit / 8] ^= mask;
    const absl::Status status = decode(base::AsBytes(bytes));
    bytes[bit / 8] ^= mask;
    if (absl::IsDataLoss(status)) continue;
    FAIL("bit " << bit << " flipped: " << status.ToString());
  }
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::string cut(bytes, 0, length);  // a block of its own, so that a sanitizer sees a read beyond it
    if (!absl::IsDataLoss(decode(base::AsBytes(cut)))) FAIL("cut to " << length << " bytes");
  }
  CHECK(absl::IsDataLoss(decode(base::AsBytes(bytes + '\0'))));
}

// The frame at the front of `bytes` with another value at `offset` and a checksum that fits.
template <typename T>
std::string WithFrameField(std::string bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
  const uint64_t checksum = Checksum64(base::AsBytes(bytes).first(56));
  std::memcpy(bytes.data() + 56, &checksum, sizeof(checksum));
  return bytes;
}

// A newer version and an unknown required feature are refused by name; an optional feature is ignored.
template <typename Decode>
void RequireVersionsAreKept(const std::string& bytes, const Decode& decode) {
  const auto status_of = [&](const std::string& changed) { return decode(base::AsBytes(changed)); };
  const absl::Status newer = status_of(WithFrameField<uint32_t>(bytes, 8, 999));
  CHECK(absl::IsUnimplemented(newer));
  CHECK_THAT(std::string(newer.message()), Catch::Contains("version 999") && Catch::Contains("newest known version is 0"));
  const absl::Status feature = status_of(WithFrameField<uint64_t>(bytes, 16, 0x40));
  CHECK(absl::IsUnimplemented(feature));
  CHECK_THAT(std::string(feature.message()), Catch::Contains("0000000000000040"));
  CHECK(status_of(WithFrameField<uint64_t>(bytes, 24, 0x40)).ok());
}

}  // namespace lamina::format
