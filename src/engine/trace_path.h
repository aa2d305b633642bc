// The file that LASP_TRACE names for one context.
#pragma once

#include <cstdint>
#include <string>

namespace lasp {

// %r is the rank, %p the process, %% a percent sign. The second context of this process that would have the same
// file has "-2" before the extension, and so on. Throws Error: another %, or several ranks with one file.
std::string trace_path(const char *pattern, int32_t rank, int32_t nranks);

}  // namespace lasp
