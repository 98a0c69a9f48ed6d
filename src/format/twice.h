// Finds a pack that a list names twice. For the sources of this folder.
#pragma once

#include <algorithm>
#include <span>
#include <tuple>
#include <vector>

namespace lamina::format {

// Null when no two references have one `attempt` and `writer`. Takes 8 bytes a reference.
template <typename Reference>
const Reference* NamedTwice(std::span<const Reference> references) {
  std::vector<const Reference*> sorted;
  sorted.reserve(references.size());
  for (const Reference& reference : references) sorted.push_back(&reference);
  const auto key = [](const Reference* reference) { return std::tie(reference->attempt, reference->writer); };
  std::sort(sorted.begin(), sorted.end(), [&](const Reference* a, const Reference* b) { return key(a) < key(b); });
  const auto twice =
      std::adjacent_find(sorted.begin(), sorted.end(), [&](const Reference* a, const Reference* b) { return key(a) == key(b); });
  return twice == sorted.end() ? nullptr : *twice;
}

}  // namespace lamina::format
