#include "base/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "base/status.h"

namespace lamina {
namespace base {
namespace {

using Member =
    std::variant<std::string Options::*, bool Options::*, int32_t Options::*, int64_t Options::*, double Options::*, Mode Options::*>;

constexpr double kSecondsMax = 1e9;  // in nanoseconds it still fits 63 bits
constexpr double kNoBound = std::numeric_limits<double>::infinity();
constexpr double kOpenZero = std::numeric_limits<double>::denorm_min();  // the least number that is more than 0

struct Field {
  std::string_view name;
  Member member;
  std::string_view range;
  double min = -kNoBound;
  double max = kNoBound;
};

constexpr std::array kFields = {
    Field{"root", &Options::root, "an absolute path"},
    Field{"mode", &Options::mode, "train or read"},
    Field{"rank", &Options::rank, "0 or more and less than rank_count", 0},
    Field{"rank_count", &Options::rank_count, "1 or more", 1},
    Field{"local_rank_count", &Options::local_rank_count, "1 or more", 1},
    Field{"run_id", &Options::run_id, ""},
    Field{"expect_store", &Options::expect_store, ""},
    Field{"takeover", &Options::takeover, ""},
    Field{"keep", &Options::keep, "0 or more", 0},
    Field{"memory_bytes", &Options::memory_bytes, "0 to 2^46", 0, 0x1p46},
    Field{"failures_tolerated", &Options::failures_tolerated, "0 or more", 0},
    Field{"save_timeout_s", &Options::save_timeout_s, "0 to 1e9", 0, kSecondsMax},
    Field{"begin_timeout_s", &Options::begin_timeout_s, "more than 0, to 1e9", kOpenZero, kSecondsMax},
    Field{"exit_grace_s", &Options::exit_grace_s, "0 to 1e9", 0, kSecondsMax},
    Field{"beat_s", &Options::beat_s, "more than 0, to 1e9", kOpenZero, kSecondsMax},
    Field{"beat_timeout_s", &Options::beat_timeout_s, "more than beat_s, to 1e9", kOpenZero, kSecondsMax},
    Field{"restore_retry_s", &Options::restore_retry_s, "0 to 1e9", 0, kSecondsMax},
    Field{"gc_grace_s", &Options::gc_grace_s, "0 to 1e9", 0, kSecondsMax},
    Field{"abandoned_grace_s", &Options::abandoned_grace_s, "0 to 1e9", 0, kSecondsMax},
    Field{"restore_seconds_max", &Options::restore_seconds_max, "more than 0, to 1e9", kOpenZero, kSecondsMax},
    Field{"verdict_timeout_s", &Options::verdict_timeout_s, "more than 0, to 1e9", kOpenZero, kSecondsMax},
    Field{"saves_in_flight_max", &Options::saves_in_flight_max, "1 or 2", 1, 2},
    Field{"io_threads", &Options::io_threads, "1 to 64", 1, 64},
    Field{"coordination_dir", &Options::coordination_dir, "an absolute path, or empty"},
    Field{"coordination_prefix", &Options::coordination_prefix, ""},
};

// One conversion a type: to the type's name, to text, from a value.
const char* TypeName(const std::string&) { return "text"; }
const char* TypeName(Mode) { return "text"; }
const char* TypeName(bool) { return "bool"; }
const char* TypeName(double) { return "float"; }
const char* TypeName(int64_t) { return "int"; }
const char* TypeName(int32_t) { return "int"; }

std::string ToText(const std::string& value) { return value; }
std::string ToText(Mode value) { return value == Mode::kTrain ? "train" : "read"; }
std::string ToText(bool value) { return value ? "true" : "false"; }
template <typename Number>
std::string ToText(Number value) {
  std::array<char, 32> text;
  return std::string(text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr);
}

template <typename Number>
bool ParseNumber(const std::string& text, Number& target) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  target = value;
  return true;
}

bool Assign(std::string& target, const OptionValue& value) {
  const std::string* text = std::get_if<std::string>(&value);
  if (text != nullptr) target = *text;
  return text != nullptr;
}

bool Assign(Mode& target, const OptionValue& value) {
  const std::string* text = std::get_if<std::string>(&value);
  if (text == nullptr || (*text != "train" && *text != "read")) return false;
  target = *text == "train" ? Mode::kTrain : Mode::kRead;
  return true;
}

bool Assign(bool& target, const OptionValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) {
    target = *flag;
    return true;
  }
  const std::string* text = std::get_if<std::string>(&value);
  if (text == nullptr) return false;
  const bool yes = *text == "1" || *text == "true";
  if (!yes && *text != "0" && *text != "false") return false;
  target = yes;
  return true;
}

template <std::integral Integer>
bool Assign(Integer& target, const OptionValue& value) {
  if (const std::string* text = std::get_if<std::string>(&value)) return ParseNumber(*text, target);
  const int64_t* number = std::get_if<int64_t>(&value);
  if (number == nullptr || !std::in_range<Integer>(*number)) return false;
  target = static_cast<Integer>(*number);
  return true;
}

bool Assign(double& target, const OptionValue& value) {
  if (const std::string* text = std::get_if<std::string>(&value)) return ParseNumber(*text, target);
  if (const int64_t* whole = std::get_if<int64_t>(&value)) {
    target = static_cast<double>(*whole);
    return true;
  }
  const double* number = std::get_if<double>(&value);
  if (number != nullptr) target = *number;
  return number != nullptr;
}

std::string TextOf(const Options& options, const Field& field) {
  return std::visit([&](const auto member) { return ToText(options.*member); }, field.member);
}

std::string_view TypeOf(const Field& field) {
  return std::visit([](const auto member) { return TypeName(Options().*member); }, field.member);
}

std::string ExpectedText(const Field& field) {
  return field.range.empty() ? std::string(TypeOf(field)) : absl::StrCat(std::string(TypeOf(field)), ", ", std::string(field.range));
}

absl::Status BadOption(const Field& field, const std::string& value) {
  return absl::InvalidArgumentError(absl::StrCat("option ", std::string(field.name), " is '", value, "': expected ", ExpectedText(field)));
}

bool InRange(const Options& options, const Field& field) {
  return std::visit(
      [&](const auto member) {
        using Value = std::remove_cvref_t<decltype(options.*member)>;
        if constexpr (std::is_arithmetic_v<Value>) {
          const auto value = static_cast<double>(options.*member);
          return std::isfinite(value) && field.min <= value && value <= field.max;
        }
        return true;
      },
      field.member);
}

const Field& FieldOf(std::string_view name) { return *std::ranges::find(kFields, name, &Field::name); }

}  // namespace

std::vector<OptionInfo> OptionList() {
  std::vector<OptionInfo> list;
  list.reserve(std::size(kFields));
  for (const Field& field : kFields) {
    list.push_back({std::string(field.name), std::string(TypeOf(field)), TextOf(Options(), field), std::string(field.range)});
  }
  return list;
}

absl::Status SetOption(Options& options, std::string_view name, const OptionValue& value) {
  const auto field = std::ranges::find(kFields, name, &Field::name);
  if (field == kFields.end()) return absl::InvalidArgumentError(absl::StrCat("no option is named '", std::string(name), "'"));
  if (std::visit([&](const auto member) { return Assign(options.*member, value); }, field->member)) return absl::OkStatus();
  return BadOption(*field, std::visit([](const auto& held) { return ToText(held); }, value));
}

}  // namespace base

absl::Status Options::Validate() const {
  const auto bad = [this](std::string_view name) { return base::BadOption(base::FieldOf(name), base::TextOf(*this, base::FieldOf(name))); };
  for (const base::Field& field : base::kFields) {
    if (!base::InRange(*this, field)) return base::BadOption(field, base::TextOf(*this, field));
  }
  if (!root.starts_with('/')) return bad("root");
  if (!coordination_dir.empty() && !coordination_dir.starts_with('/')) return bad("coordination_dir");
  if (rank >= rank_count) return bad("rank");
  if (beat_timeout_s <= beat_s) return bad("beat_timeout_s");
  return absl::OkStatus();
}

absl::Status Options::FromEnvironment() {
  for (const base::Field& field : base::kFields) {
    std::string variable = absl::StrCat("LAMINA_", std::string(field.name));
    std::ranges::transform(variable, variable.begin(), [](char c) { return 'a' <= c && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
    // Before there are threads of ours; what else the process does to its environment is its own.
    const char* const text = std::getenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe)
    if (text == nullptr) continue;
    LAMINA_RETURN_IF_ERROR(base::Annotate(base::SetOption(*this, field.name, std::string(text)), variable));
  }
  return absl::OkStatus();
}

}  // namespace lamina
