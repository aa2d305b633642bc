// lasp_version, lasp_get_build_info.
#include <lasp/lasp.h>

#include "base/build_info.h"
#include "structs.h"

#define LASP_TEXT_(x) #x
#define LASP_TEXT(x) LASP_TEXT_(x)

using namespace lasp;

lasp_status lasp_version(int32_t *major, int32_t *minor, int32_t *patch, int32_t *abi) {
  if (major != nullptr) *major = LASP_VERSION_MAJOR;
  if (minor != nullptr) *minor = LASP_VERSION_MINOR;
  if (patch != nullptr) *patch = LASP_VERSION_PATCH;
  if (abi != nullptr) *abi = LASP_ABI;
  return LASP_OK;
}

lasp_status lasp_get_build_info(lasp_build_info *info) {
  return guarded([&] {
    lasp_build_info i = LASP_BUILD_INFO_INIT;
    i.version = LASP_TEXT(LASP_VERSION_MAJOR) "." LASP_TEXT(LASP_VERSION_MINOR) "." LASP_TEXT(LASP_VERSION_PATCH);
    i.compiler = build::compiler();
    i.flags = build::flags();
    i.blas = build::blas();
    i.cuda = build::cuda();
    i.nccl = build::nccl();
    i.has_cuda = build::has_cuda() ? 1 : 0;
    i.has_nccl = i.has_cuda;  // they come together
    i.cpu_count = build::cpu_count();
    write_struct(info, i, "info");
  });
}
