// Which devices the compiled code runs on.
#include <charconv>

#include "cuda/device/device.h"

namespace lasp {
namespace {

// "90a-real": machine code for 9.0 alone. "80-real": for 8.0 to 8.9. "80-virtual": code that the driver can still
// compile for anything from 8.0 on. Without a suffix: both.
bool serves(std::string_view entry, int32_t capability) {
  int32_t number = 0;
  const char *end = entry.data() + entry.size();
  const auto [rest, error] = std::from_chars(entry.data(), end, number);
  if (error != std::errc()) return false;
  std::string_view suffix(rest, static_cast<size_t>(end - rest));
  if (suffix.starts_with('a')) return capability == number;
  const bool same_family = capability / 10 == number / 10 && capability >= number;
  if (suffix.starts_with('f')) return same_family;
  return suffix == "-real" ? same_family : capability >= number;
}

}  // namespace

bool architecture_served(std::string_view architectures, int32_t capability) {
  while (!architectures.empty()) {
    const size_t length = architectures.find_first_of("; ");
    if (serves(architectures.substr(0, length), capability)) return true;
    architectures = length == std::string_view::npos ? std::string_view() : architectures.substr(length + 1);
  }
  return false;
}

}  // namespace lasp
