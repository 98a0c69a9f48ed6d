#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "hooks/dispatcher.h"
#include "lamina/events.h"

namespace lamina {
namespace {

// Event kinds count from 0 without holes.
std::vector<EventKind> AllKinds() {
  std::vector<EventKind> kinds;
  for (uint8_t number = 0; std::string(EventName(static_cast<EventKind>(number))) != "unknown"; ++number) {
    kinds.push_back(static_cast<EventKind>(number));
  }
  return kinds;
}

TEST_CASE("Every event has a name of its own", "[hooks]") {
  std::set<std::string> names;
  for (const EventKind kind : AllKinds()) names.insert(EventName(kind));
  CHECK(AllKinds().back() == EventKind::kFenced);
  CHECK(names.size() == AllKinds().size());
  CHECK(names.contains("RestorePassedOver"));
}

TEST_CASE("docs/hooks.md lists every event in order and says which are kept", "[hooks]") {
  std::ifstream document(LAMINA_SOURCE_DIR "/docs/hooks.md");
  REQUIRE(document.good());
  std::vector<std::string> listed;
  bool in_events = false;
  for (std::string line; std::getline(document, line);) {
    in_events |= line == "## Events";
    if (in_events && line.starts_with("| `")) listed.push_back(line);
  }
  const std::vector<EventKind> kinds = AllKinds();
  REQUIRE(listed.size() == kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::string kept = hooks::MustBeDelivered(kinds[i]) ? "yes |" : "|";
    CHECK(listed[i].starts_with("| `" + std::string(EventName(kinds[i])) + "` | " + kept));
  }
}

}  // namespace
}  // namespace lamina
