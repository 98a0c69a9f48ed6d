// A save without tensors: one pack of text, a catalog of text, a true list of packs. For tests of the log.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/catalog.h"
#include "format/version.h"
#include "tier/log.h"

namespace lamina::testing {

// What the pack of an attempt holds: no two are alike.
inline std::string BytesOf(const format::AttemptId& attempt) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) absl::StrAppend(&bytes, format::AttemptPath(attempt), " part ", i, "\n");
  return bytes;
}

inline absl::Status WriteObject(tier::Tier& tier, const std::string& name, std::string_view bytes) {
  LAMINA_ASSIGN_OR_RETURN(const std::unique_ptr<tier::ObjectWriter> writer, tier.CreateObject(name));
  const size_t half = bytes.size() / 2;
  LAMINA_RETURN_IF_ERROR(writer->Append(base::AsBytes(bytes.substr(0, half))));
  LAMINA_RETURN_IF_ERROR(writer->Append(base::AsBytes(bytes.substr(half))));
  return writer->Finish();
}

inline format::ReachedPack PackOf(const format::AttemptId& attempt) {
  const uint64_t bytes = BytesOf(attempt).size();
  return {.attempt = attempt, .writer = 0, .nonce = {1, 2}, .pack_bytes = bytes, .live_bytes = bytes};
}

// Everything of a save but its commit. The step also needs the packs of `bases`, which are sorted and older.
inline absl::StatusOr<tier::CommitRequest> WriteAttempt(tier::Tier& tier, const format::StoreHeader& store,
                                                        const format::AttemptId& attempt, uint64_t parent,
                                                        const std::vector<format::AttemptId>& bases = {}) {
  LAMINA_RETURN_IF_ERROR(tier.Prepare(format::AttemptPath(attempt)));
  LAMINA_RETURN_IF_ERROR(WriteObject(tier, format::PackPath(attempt, 0), BytesOf(attempt)));
  format::Packs packs{.store_id = store.store_id, .attempt = attempt, .packs = {}};
  for (const format::AttemptId& base : bases) packs.packs.push_back(PackOf(base));
  packs.packs.push_back(PackOf(attempt));
  const std::string packs_bytes = format::EncodePacks(packs);
  const std::string catalog = absl::StrCat("catalog of ", format::AttemptPath(attempt));
  LAMINA_RETURN_IF_ERROR(WriteObject(tier, format::CatalogPath(attempt), catalog));
  LAMINA_RETURN_IF_ERROR(WriteObject(tier, format::PacksPath(attempt), packs_bytes));
  return tier::CommitRequest{.attempt = attempt,
                             .parent = parent,
                             .catalog_digest = format::Checksum128(base::AsBytes(catalog)),
                             .packs_digest = format::Checksum128(base::AsBytes(packs_bytes)),
                             .state_bytes = packs.packs.size() * BytesOf(attempt).size(),
                             .stored_bytes = BytesOf(attempt).size()};
}

inline absl::StatusOr<uint64_t> SaveTiny(tier::Tier& tier, tier::Log& log, const format::StoreHeader& store,
                                         const format::AttemptId& attempt, uint64_t parent,
                                         const std::vector<format::AttemptId>& bases = {}) {
  LAMINA_ASSIGN_OR_RETURN(const tier::CommitRequest request, WriteAttempt(tier, store, attempt, parent, bases));
  return log.Commit(request);
}

// OK when the step reads back whole: catalog, list of packs, and each pack that it names.
inline absl::Status CheckStep(tier::Tier& tier, const format::StepEntry& step) {
  LAMINA_ASSIGN_OR_RETURN(const std::string catalog, tier::ReadWhole(tier, format::CatalogPath(step.attempt), format::kMetadataBytesMax));
  LAMINA_ASSIGN_OR_RETURN(const std::string packs_bytes, tier::ReadWhole(tier, format::PacksPath(step.attempt), format::kMetadataBytesMax));
  if (format::Checksum128(base::AsBytes(catalog)) != step.catalog_digest) return absl::DataLossError("catalog");
  if (format::Checksum128(base::AsBytes(packs_bytes)) != step.packs_digest) return absl::DataLossError("packs");
  LAMINA_ASSIGN_OR_RETURN(const format::Packs packs, format::DecodePacks(base::AsBytes(packs_bytes)));
  for (const format::ReachedPack& pack : packs.packs) {
    const std::string name = format::PackPath(pack.attempt, pack.writer);
    LAMINA_ASSIGN_OR_RETURN(const std::string bytes, tier::ReadWhole(tier, name, format::kMetadataBytesMax));
    if (bytes != BytesOf(pack.attempt)) return absl::DataLossError(name);
  }
  return absl::OkStatus();
}

// CheckStep of every step that the record does not call dropped.
inline absl::Status CheckSteps(tier::Tier& tier, const format::LogRecord& record) {
  for (const format::StepEntry& step : record.steps) {
    if (step.state == format::StepState::kDropped) continue;
    LAMINA_RETURN_IF_ERROR(base::Annotate(CheckStep(tier, step), format::AttemptPath(step.attempt)));
  }
  return absl::OkStatus();
}

// Steps of the line, newest first.
inline std::vector<int64_t> LineSteps(const format::LogRecord& record) {
  std::vector<int64_t> steps;
  for (const format::StepEntry& step : tier::LineOf(record)) steps.push_back(step.attempt.step);
  return steps;
}

}  // namespace lamina::testing
