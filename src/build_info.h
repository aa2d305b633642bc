// What this build is made of and what it finds at run time, for lasp_get_build_info.
#pragma once

#include <cstdint>

namespace lasp::build {

const char *compiler();
const char *flags();
const char *blas();  // implementation, version and core, as the library in the process says
int32_t cpu_count();

}  // namespace lasp::build
