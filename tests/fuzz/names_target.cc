// Names in a root, as a listing shows them: read only when Lamina would have written them so, and never a way out of the root.
#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status.h"
#include "format/paths.h"
#include "fuzz/targets.h"
#include "tier/tier.h"

namespace lamina::fuzz {
namespace {

// A path as the operating system takes it: up to the first zero byte, component by component.
bool LeadsOut(std::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != std::string_view::npos) return true;
  for (std::string_view rest = path; !rest.empty();) {
    const std::string_view component = rest.substr(0, rest.find('/'));
    if (component == "..") return true;
    rest.remove_prefix(std::min(rest.size(), component.size() + 1));
  }
  return false;
}

absl::Status MustBe(std::string_view what, std::string_view found, const std::string& printed) {
  if (printed != found) return absl::InternalError(absl::StrCat(std::string(what), " is printed as ", printed));
  return tier::CheckName(printed);
}

absl::Status AttackNames(Bytes input) {
  const std::string_view name = base::AsText(input);
  if (tier::CheckName(name).ok() && LeadsOut(name)) return absl::InternalError("a name that leads out of the root is taken");
  if (const auto attempt = format::ParseAttemptPath(name)) {
    LAMINA_RETURN_IF_ERROR(MustBe("attempt", name, format::AttemptPath(*attempt)));
  }
  if (const auto writer = format::ParsePackName(name)) {
    const std::string path = format::PackPath({}, *writer);
    LAMINA_RETURN_IF_ERROR(MustBe("pack", name, path.substr(path.rfind('/') + 1)));
  }
  if (const auto number = format::ParseLogName(name)) {
    LAMINA_RETURN_IF_ERROR(MustBe("record", name, format::LogPath(*number).substr(format::kLogPrefix.size() + 1)));
  }
  if (const auto incarnation = format::ParseWriterLeaseName(name)) {
    LAMINA_RETURN_IF_ERROR(MustBe("lease", name, format::WriterLeasePath(*incarnation).substr(format::kWritersPrefix.size() + 1)));
  }
  return absl::OkStatus();
}

}  // namespace

Target NamesTarget() {
  return {"names",
          {"steps/000000000100/7-0", "steps/9223372036854775807/18446744073709551615-4294967295", "00003.pack", "4294967295.pack",
           "000000000042", "18446744073709551615", "7", "log/../../x"},
          AttackNames};
}

std::vector<Target> AllTargets() {
  std::vector<Target> all = FormatTargets();
  for (Target& target : MessageTargets()) all.push_back(std::move(target));
  all.push_back(NamesTarget());
  all.push_back(RootTarget());
  return all;
}

}  // namespace lamina::fuzz
