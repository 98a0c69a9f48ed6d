#include <algorithm>
#include <numeric>

#include "plan/restore_plan.h"

namespace lamina::plan {
namespace {

constexpr size_t kNamesMax = 20'000;
constexpr size_t kLengthMax = 512;  // of what differs; longer names are near only by their common ends

// The number of edits that make `a` into `b`, or some number of at least `limit` when there are as many.
size_t Edits(std::string_view a, std::string_view b, size_t limit) {
  const auto prefix = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  a.remove_prefix(static_cast<size_t>(prefix));
  b.remove_prefix(static_cast<size_t>(prefix));
  const auto suffix = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin();
  a.remove_suffix(static_cast<size_t>(suffix));
  b.remove_suffix(static_cast<size_t>(suffix));
  const size_t at_least = std::max(a.size(), b.size()) - std::min(a.size(), b.size());
  if (at_least >= limit || std::min(a.size(), b.size()) > kLengthMax) return limit;
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
    if (*std::min_element(row.begin(), row.end()) >= limit) return limit;
  }
  return row.back();
}

}  // namespace

std::string NearestName(std::string_view name, std::span<const std::string_view> known) {
  std::string_view nearest;
  size_t fewest = name.size() / 2 + 1;  // more edits than half the name make another name
  for (const std::string_view candidate : known.first(std::min(known.size(), kNamesMax))) {
    const size_t edits = Edits(name, candidate, fewest);
    if (edits >= fewest) continue;
    fewest = edits;
    nearest = candidate;
  }
  return std::string(nearest);
}

}  // namespace lamina::plan
