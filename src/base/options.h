// The options by name, for those who set them from text, from a dict or from the environment. The fields are in include/lamina/options.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "lamina/options.h"

namespace lamina::base {

// A value as its writer wrote it: an int may stand for a float, text for anything.
using OptionValue = std::variant<bool, int64_t, double, std::string>;

struct OptionInfo {
  std::string name;
  std::string type;           // "text", "bool", "int" or "float"
  std::string default_value;  // as text
  std::string range;          // "more than 0"; empty: any
};

// Every option, in the order of docs/options.md.
std::vector<OptionInfo> OptionList();

// Sets one option. InvalidArgument names the option, the value and what was expected; the range is left to Options::Validate.
absl::Status SetOption(Options& options, std::string_view name, const OptionValue& value);

}  // namespace lamina::base
