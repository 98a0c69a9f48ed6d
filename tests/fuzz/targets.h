// What the fuzzers attack: one target for each reader of bytes that others wrote. The same targets run under libFuzzer (main.cc), and
// under a plain mutator that any compiler builds (targets_test.cc).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lamina::fuzz {

using Bytes = std::span<const std::byte>;

struct Target {
  std::string name;                // also of its folder in corpus/
  std::vector<std::string> seeds;  // sound inputs
  // Reads hostile bytes. Not OK is a finding: a status that no caller expects, or what was read cannot be written and read again.
  absl::Status (*attack)(Bytes input);
};

// Those of the format, of the messages between ranks, of names and paths, and of a whole root.
std::vector<Target> FormatTargets();
std::vector<Target> MessageTargets();
Target NamesTarget();
Target RootTarget();
absl::Status CheckSoundRoot();  // that the root which RootTarget edits reads back whole

std::vector<Target> AllTargets();

// The bytes with frame at `begin`, whose payload ends at `end`, made to fit: magic, version, length and checksums. Bytes that cannot hold
// a frame stay as they are.
void RepairFrame(std::string& bytes, size_t begin, size_t end, std::string_view magic);

}  // namespace lamina::fuzz
