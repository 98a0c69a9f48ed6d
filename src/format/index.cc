#include "format/index.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/flat.h"
#include "format/index_generated.h"
#include "format/twice.h"

namespace lamina::format {
namespace {

using flatbuffers::FlatBufferBuilder;

constexpr size_t kRuleHeldBytes = 56;  // of a decoder's budget: docs/format.md, "FlatBuffers payloads"

absl::Status Bad(std::string_view what, uint64_t found, std::string_view expected) {
  return Damaged(kIndexFrame, what, absl::StrCat(found), expected);
}

uint64_t PayloadBytesMax(const Index& index) {
  uint64_t bytes = 1024 + sizeof(flat::PackReference) * index.packs.size() + sizeof(flat::TableReference) * index.tables.size();
  for (const RuleRecord& rule : index.rules) bytes += 64 + sizeof(uint32_t) * rule.scalars.size() + sizeof(uint64_t) * rule.inputs.size();
  return bytes;
}

flatbuffers::Offset<flat::Rule> BuildRule(FlatBufferBuilder& builder, const RuleRecord& rule) {
  const auto scalars = builder.CreateVector(rule.scalars);
  const auto inputs = builder.CreateVector(rule.inputs);
  const flat::RuleFacts facts(rule.rule, rule.version, rule.variant);
  return flat::CreateRule(builder, &facts, scalars, inputs);
}

void BuildIndex(FlatBufferBuilder& builder, const Index& index) {
  const auto packs = builder.CreateVectorOfStructs<flat::PackReference>(index.packs.size(), [&](size_t i, flat::PackReference* out) {
    const PackReference& pack = index.packs[i];
    *out = flat::PackReference(ToFlat(pack.attempt), ToFlat(pack.nonce), pack.writer, pack.tier);
  });
  const auto tables = builder.CreateVectorOfStructs<flat::TableReference>(index.tables.size(), [&](size_t i, flat::TableReference* out) {
    const TableReference& table = index.tables[i];
    *out = flat::TableReference(ToFlat(table.digest), table.offset, table.chunk_count, table.pack);
  });
  std::vector<flatbuffers::Offset<flat::Rule>> rules;
  for (const RuleRecord& rule : index.rules) rules.push_back(BuildRule(builder, rule));
  const auto rule_table = builder.CreateVector(rules);
  const flat::IndexFacts facts(ToFlat(index.store_id), ToFlat(index.nonce), ToFlat(index.attempt), index.writer);
  builder.Finish(flat::CreateIndex(builder, &facts, packs, tables, rule_table));
}

bool TakeTables(Budget& budget, const flat::Index& root, Index& index) {
  if (!budget.Reserve(root.packs(), index.packs) || !budget.Reserve(root.tables(), index.tables)) return false;
  ForEachStruct(root.packs(), [&](const flat::PackReference& pack) {
    index.packs.push_back(
        {.tier = pack.tier(), .attempt = FromFlat(pack.attempt()), .writer = pack.writer(), .nonce = FromFlat(pack.nonce())});
  });
  ForEachStruct(root.tables(), [&](const flat::TableReference& table) {
    index.tables.push_back(
        {.digest = FromFlat(table.digest()), .pack = table.pack(), .offset = table.offset(), .chunk_count = table.chunk_count()});
  });
  return true;
}

bool TakeRules(Budget& budget, const flat::Index& root, Index& index) {
  static_assert(sizeof(RuleRecord) <= kRuleHeldBytes);
  if (!budget.Reserve(root.rules(), index.rules, kRuleHeldBytes)) return false;
  if (root.rules() == nullptr) return true;
  for (const flat::Rule* rule : *root.rules()) {
    const flat::RuleFacts& facts = *rule->facts();
    RuleRecord& record = index.rules.emplace_back(
        RuleRecord{.rule = facts.rule(), .version = facts.version(), .variant = facts.variant(), .scalars = {}, .inputs = {}});
    if (!budget.Take(rule->scalars(), record.scalars) || !budget.Take(rule->inputs(), record.inputs)) return false;
  }
  return true;
}

absl::Status CheckPacks(const Index& index) {
  const PackReference own{.tier = 0, .attempt = index.attempt, .writer = index.writer, .nonce = index.nonce};
  if (index.packs.empty() || index.packs[0] != own) return Damaged(kIndexFrame, "pack 0", "another one", "the index's own");
  for (const PackReference& pack : index.packs) {
    // Of a later version, and no damage: nothing older is to be taken for this step.
    if (pack.tier != 0) return absl::UnimplementedError(absl::StrCat("index: tier ", pack.tier, " of a pack, the only known one is 0"));
    if (pack.attempt.step < 0) return Damaged(kIndexFrame, "step of a pack", absl::StrCat(pack.attempt.step), "0 or more");
    if (pack.attempt.incarnation == 0) return Bad("incarnation of a pack", 0, "1 or more");
  }
  if (const PackReference* twice = NamedTwice<PackReference>(index.packs)) {
    return Damaged(kIndexFrame, "list of packs", absl::StrCat("one with '", PackPath(twice->attempt, twice->writer), "' twice"),
                   "each once");
  }
  return absl::OkStatus();
}

absl::Status CheckTables(const Index& index) {
  for (const TableReference& table : index.tables) {
    if (table.pack >= index.packs.size()) return Bad("pack of a table", table.pack, absl::StrCat("less than ", index.packs.size()));
    if (table.chunk_count > kTableChunksMax) return Bad("number of chunks", table.chunk_count, absl::StrCat("at most ", kTableChunksMax));
    if (table.offset < kPackHeaderBytes || table.offset > kOffsetMax) return Bad("offset of a table", table.offset, "inside a pack");
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeIndex(const Index& index) {
  if (!Fits(PayloadBytesMax(index))) return {};
  FlatBufferBuilder builder;
  BuildIndex(builder, index);
  return FramedFlat(kIndexFrame, builder);
}

absl::StatusOr<Index> DecodeIndex(std::span<const std::byte> bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::span<const std::byte> payload, UnframedWhole(kIndexFrame, bytes));
  LAMINA_ASSIGN_OR_RETURN(const auto flat, FlatPayload<flat::Index>::Read(kIndexFrame, payload));
  const flat::Index& root = flat.root();
  Index index;
  index.store_id = FromFlat(root.facts()->store_id());
  index.attempt = FromFlat(root.facts()->attempt());
  index.writer = root.facts()->writer();
  index.nonce = FromFlat(root.facts()->nonce());
  Budget budget(payload.size());
  if (!TakeTables(budget, root, index) || !TakeRules(budget, root, index)) return OverBudget(kIndexFrame);
  LAMINA_RETURN_IF_ERROR(CheckPacks(index));
  LAMINA_RETURN_IF_ERROR(CheckTables(index));
  return index;
}

}  // namespace lamina::format
