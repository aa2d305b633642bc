// Which release a tool is of, and which library it runs with.
#pragma once

#include <string>

namespace tools {

std::string header_version();  // of lasp.h when the tool was compiled: 0.2.0
std::string version_line(
    const std::string &tool);  // "lasp-info 0.2.0, liblasp 0.2.0, ABI 2", the library's as loaded

}  // namespace tools
