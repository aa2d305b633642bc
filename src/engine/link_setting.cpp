#include "engine/link_setting.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/status.h"

namespace lasp {
namespace {

std::string known_names() {
  std::string names;
  for (const LinkNumber &number : kLinkNumbers) names += (names.empty() ? "" : ", ") + std::string(number.name);
  return names;
}

}  // namespace

bool GivenLink::replace(Link &there) const {
  for (size_t i = 0; i < kLinkNumbers.size(); ++i)
    if (given[i]) there.*kLinkNumbers[i].value = link.*kLinkNumbers[i].value;
  return given[0] || given[1];
}

GivenLink parse_link(const char *text) {
  GivenLink parsed;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = rest.find(',');
    const std::string item(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = item.find('=');
    size_t at = 0;
    while (at < kLinkNumbers.size() && item.substr(0, equals) != kLinkNumbers[at].name) ++at;
    if (equals == std::string::npos || at == kLinkNumbers.size())
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "LASP_LINK = %s: \"%s\" is not name=number with one of %s", text,
                 item.c_str(), known_names().c_str());
    const LinkNumber &number = kLinkNumbers[at];
    double value = 0;  // from_chars knows no locale
    const char *const begin = item.data() + equals + 1, *const end = item.data() + item.size();
    const auto [last, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || last != end || !std::isfinite(value) || value < 0 ||
        (value == 0 && !number.may_be_zero))
      throw fail(LASP_ERROR_INVALID_ARGUMENT, "LASP_LINK = %s: %s = \"%s\": must be a number, finite and %s", text,
                 number.name, begin, number.may_be_zero ? "not negative" : "positive");
    if (parsed.given[at]) throw fail(LASP_ERROR_INVALID_ARGUMENT, "LASP_LINK = %s: %s twice", text, number.name);
    parsed.given[at] = true;
    parsed.link.*number.value = value;
  }
  return parsed;
}

GivenLink link_by_environment() {
  const char *const text = secure_getenv("LASP_LINK");
  return parse_link(text == nullptr ? "" : text);
}

}  // namespace lasp
