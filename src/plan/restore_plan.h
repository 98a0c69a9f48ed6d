// Which stored boxes and chunks a rank reads to fill its targets. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "format/catalog.h"
#include "format/chunk.h"
#include "plan/description.h"

namespace lamina::plan {

// Elements of a stored box that go to one box of a target.
struct TargetPart {
  int32_t entry = 0;  // of the targets
  int32_t box = 0;    // of that entry
  Box common;         // global indices; inside both boxes
};

// One stored box that this rank needs something of.
struct BoxRead {
  int32_t tensor = 0;      // in Catalog::tensors; where the bytes are, aliases resolved
  int32_t stored_box = 0;  // in that tensor's boxes
  std::vector<TargetPart> parts;
};

// Ordered by (writer, table). Targets that are aliases of one another are filled once for each memory they name. InvalidArgument, with
// base::kMismatchDetail, naming *all* targets that the catalog lacks (the first 20 with the nearest name) or has with another dtype or
// global shape.
absl::StatusOr<std::vector<BoxRead>> PlanRestore(const format::Catalog& catalog, std::span<const EntryDescription> targets);

// Whether the chunk of the elements [element_begin, element_begin + element_count) of `stored` holds any element of `common`; others need
// not be read.
bool ChunkTouches(const Box& stored, int64_t element_begin, int64_t element_count, const Box& common);

// Splits the elements [element_begin, element_begin + element_count) of `stored` that lie in `common` into runs; calls visit(chunk_element,
// target_element, count) with row-major ordinals relative to the chunk's start and to `target_box`, in their order, runs as long as they
// can be.
void ForEachRunOfChunk(const Box& stored, int64_t element_begin, int64_t element_count, const Box& common, const Box& target_box,
                       const std::function<void(int64_t chunk_element, int64_t target_element, int64_t count)>& visit);

// The known name most like `name`, for messages; empty when none is near. At most half of `name` may have to be edited.
// O(names × differing length²), bounded to the first 20,000 names.
std::string NearestName(std::string_view name, std::span<const std::string_view> known);

}  // namespace lamina::plan
