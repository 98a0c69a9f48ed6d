#include "format/paths.h"

#include <catch2/catch.hpp>
#include <limits>

using namespace lamina::format;

TEST_CASE("Paths are made of numbers", "[format]") {
  const AttemptId id{.step = 100, .incarnation = 7, .attempt = 0};
  CHECK(AttemptPath(id) == "steps/000000000100/7-0");
  CHECK(PackPath(id, 3) == "steps/000000000100/7-0/00003.pack");
  CHECK(CatalogPath(id) == "steps/000000000100/7-0/catalog");
  CHECK(PacksPath(id) == "steps/000000000100/7-0/packs");
  CHECK(LogPath(42) == "log/000000000042");
  CHECK(WriterLeasePath(7) == "writers/7");
  CHECK(SignOfLifePath(7, 3) == "writers/7.3");
  CHECK(ReaderLeasePath("9a") == "readers/9a");
  CHECK(ProbePath("9a") == "probe/9a");
}

TEST_CASE("Numbers that outgrow their digits print wider and still parse", "[format]") {
  const AttemptId id{.step = 1'234'567'890'123, .incarnation = 1, .attempt = 2};
  CHECK(AttemptPath(id) == "steps/1234567890123/1-2");
  CHECK(PackPath(id, 123456) == "steps/1234567890123/1-2/123456.pack");
  CHECK(ParseAttemptPath(AttemptPath(id)) == id);
  CHECK(ParsePackName("123456.pack") == 123456U);
  CHECK(ParseLogName("1234567890123") == 1'234'567'890'123U);
}

TEST_CASE("Parsers invert the printers at the ends of each range", "[format]") {
  const AttemptId largest{.step = std::numeric_limits<int64_t>::max(),
                          .incarnation = std::numeric_limits<uint64_t>::max(),
                          .attempt = std::numeric_limits<uint32_t>::max()};
  const AttemptId first{.step = 0, .incarnation = 1, .attempt = 0};
  CHECK(ParseAttemptPath(AttemptPath(first)) == first);
  CHECK(ParseAttemptPath(AttemptPath(largest)) == largest);
  CHECK(ParseLogName("18446744073709551615") == std::numeric_limits<uint64_t>::max());
  CHECK(ParseSignOfLifeName(SignOfLifePath(7, 0).substr(8)) == 7U);
  CHECK(ParseSignOfLifeName("18446744073709551615.2147483647") == std::numeric_limits<uint64_t>::max());
  CHECK(ParsePackName("4294967295.pack") == std::numeric_limits<uint32_t>::max());
  CHECK(ParseWriterLeaseName("18446744073709551615") == std::numeric_limits<uint64_t>::max());
}

TEST_CASE("Parsers refuse what no printer makes", "[format]") {
  for (const std::string_view path : {"",
                                      "steps",
                                      "steps/",
                                      "steps/000000000100",
                                      "steps/000000000100/7",
                                      "steps/000000000100/7-",
                                      "steps/000000000100/-0",
                                      "steps/100/7-0",
                                      "steps/0000000000100/7-0",
                                      "steps/+00000000100/7-0",
                                      "steps/-00000000100/7-0",
                                      "steps/ 00000000100/7-0",
                                      "steps/000000000100/07-0",
                                      "steps/000000000100/0-0",
                                      "steps/000000000100/7-00",
                                      "steps/000000000100/+7-0",
                                      "steps/000000000100/7-+0",
                                      "steps/000000000100/7-0/",
                                      "steps/000000000100/7-0 ",
                                      "/steps/000000000100/7-0",
                                      "steps/9223372036854775808/7-0",
                                      "steps/000000000100/18446744073709551616-0",
                                      "steps/000000000100/7-4294967296",
                                      "steps/00000000010x/7-0"}) {
    INFO(path);
    CHECK_FALSE(ParseAttemptPath(path).has_value());
  }
  for (const std::string_view name :
       {"", "42", "000000000000", "00000000042", "0000000000042", "+00000000042", "-00000000042", " 00000000042", "00000000042 ",
        "00000000004x", "18446744073709551616", ".tmp-000000000042", "000000000042.pack"}) {
    INFO(name);
    CHECK_FALSE(ParseLogName(name).has_value());
    CHECK_FALSE(ParseWriterLeaseName(std::string(name).append("-")).has_value());
  }
  for (const std::string_view name : {"", ".pack", "3.pack", "000003.pack", "00003", "00003.pack ", "+0003.pack", "4294967296.pack"}) {
    INFO(name);
    CHECK_FALSE(ParsePackName(name).has_value());
  }
  CHECK(IsNonce("0123456789abcdef"));
  for (const std::string_view name : {"", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF", "notes", "0123456789abcde/"}) {
    CHECK_FALSE(IsNonce(name));
  }
  for (const std::string_view name : {"", "0", "07", "+7", "7 ", "7.tmp", "-7"}) CHECK_FALSE(ParseWriterLeaseName(name).has_value());
  for (const std::string_view name : {"", "7", "7.", ".3", "0.3", "07.3", "7.03", "7.-3", "7.3 ", "7.3.3", "7.2147483648"}) {
    CHECK_FALSE(ParseSignOfLifeName(name).has_value());
  }
}
