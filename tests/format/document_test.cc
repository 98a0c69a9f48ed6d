// docs/format.md and the code say the same: its dumps, numbers and schemas are compared with what the code makes.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "examples.h"

using namespace lamina;
using namespace lamina::format;

namespace {

std::string ReadRepositoryFile(const std::string& path) {
  std::ifstream file(LAMINA_SOURCE_DIR "/" + path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  REQUIRE_FALSE(text.str().empty());
  return text.str();
}

void RequireInDocument(const std::string& text) {
  static const std::string document = ReadRepositoryFile("docs/format.md");
  INFO(text);
  REQUIRE(document.find(text) != std::string::npos);
}

std::string Block(const std::string& text) { return "```\n" + text + "```\n"; }

}  // namespace

TEST_CASE("The document has the schemas in full", "[format]") {
  for (const char* name : {"common", "log_record", "index", "catalog", "packs"}) {
    RequireInDocument(Block(ReadRepositoryFile(std::string("src/format/") + name + ".fbs")));
  }
}

TEST_CASE("The document has the bytes of a root with one step", "[format]") {
  const std::string record = EncodeLogRecord(example::Commit());
  const std::string pack = example::Pack();
  RequireInDocument(Block(example::Dump(EncodeStoreHeader(example::Store()))));
  RequireInDocument(Block(example::Dump(pack.substr(0, kPackHeaderBytes))));
  RequireInDocument(Block(example::Dump(example::RawChunk())));
  RequireInDocument(Block(example::Dump(example::Table())));
  RequireInDocument(Block(example::Dump(EncodeIndex(example::OneTensorIndex()))));
  RequireInDocument(Block(example::Dump(EncodePackFooter(example::Footer()))));
  RequireInDocument(Block(example::Dump(EncodeCatalog(example::OneTensorCatalog()))));
  RequireInDocument(Block(example::Dump(EncodePacks(example::OnePack()))));
  RequireInDocument(Block(example::Dump(record.substr(0, record.size() / 2))));
}

TEST_CASE("The document has the fingerprints of known bytes", "[format]") {
  for (const size_t bytes : {0, 1, 16384, 16385, 1048576}) {
    const std::string pattern = example::Pattern(bytes);
    RequireInDocument("| " + std::to_string(bytes) + " | `" + ToString(Fingerprint(base::AsBytes(pattern), 0)) + "` | `" +
                      ToString(Fingerprint(base::AsBytes(pattern), example::kSeed)) + "` |\n");
  }
}

TEST_CASE("The document has the dtypes by number, name and width", "[format]") {
  for (uint8_t number = 1; DTypeFromNumber(number); ++number) {
    const DType dtype = *DTypeFromNumber(number);
    RequireInDocument("| " + std::to_string(number) + " | " + std::string(DTypeName(dtype)) + " | " + std::to_string(DTypeBytes(dtype)) +
                      " ");
  }
}

TEST_CASE("A pack reads from end to start as the document says", "[format]") {
  const std::string pack = example::Pack();
  const auto bytes = base::AsBytes(pack);
  CHECK(pack.size() == 4624);
  const auto header = DecodePackHeader(bytes.first(kPackHeaderBytes));
  const auto footer = DecodePackFooter(bytes.last(kPackFooterBytes), static_cast<int64_t>(pack.size()));
  REQUIRE((header.ok() && footer.ok()));
  const auto index_bytes = bytes.subspan(footer->index_offset, footer->index_bytes);
  CHECK(Checksum128(index_bytes) == footer->index_digest);
  const auto index = DecodeIndex(index_bytes);
  REQUIRE(index.ok());
  const TableReference& table = index->tables.at(0);
  const auto chunks = DecodeChunkTable(bytes.subspan(table.offset, table.chunk_count * sizeof(ChunkRecord)), table, 1, 16, 4);
  REQUIRE(chunks.ok());
  const ChunkRecord& chunk = chunks->at(0);
  const auto raw = bytes.subspan(chunk.offset, chunk.stored_bytes);
  CHECK(base::AsText(raw) == example::RawChunk());
  CHECK(Fingerprint(raw, example::kSeed) == chunk.fingerprint);
}
