// What this build is made of and what it finds at run time, for lasp_get_build_info.
#pragma once

#include <cstdint>

namespace lasp::build {

const char *compiler();
const char *flags();
const char *blas();  // implementation, version and core, as the library in the process says
int32_t cpu_count();
// In cuda/, or in cuda/absent/ for builds without it. They call nothing of CUDA.
bool has_cuda();
const char *cuda();  // toolkit and architectures, or why the backend is absent
const char *nccl();  // the version found in the process, or why there is none

}  // namespace lasp::build
