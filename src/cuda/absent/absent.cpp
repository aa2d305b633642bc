// What a build without CUDA has in place of the rest of cuda/: refusals.
#include "base/build_info.h"
#include "base/status.h"
#include "comm/transport.h"
#include "engine/device.h"

namespace lasp {

struct NcclGroup {};

std::unique_ptr<Device> make_cuda_device(Comm &, const lasp_context_options &, const WaitPolicy &) {
  throw fail(LASP_ERROR_NOT_BUILT, "device = LASP_DEVICE_CUDA: this build has no CUDA backend");
}

std::unique_ptr<Device> make_assumed_cuda_device(Comm &, const lasp_placement &) {
  throw fail(LASP_ERROR_NOT_BUILT, "placement.device = LASP_DEVICE_CUDA: this build has no CUDA backend");
}

NcclEnd make_nccl_transport(struct ncclComm *, const lasp_nccl_functions *) {
  throw fail(LASP_ERROR_NOT_BUILT, "nccl: this build has no NCCL transport (it comes with the CUDA backend)");
}

namespace build {

bool has_cuda() { return false; }
const char *cuda() { return "absent: this build has no CUDA backend (nvcc was not found, or LASP_WITH_CUDA=OFF)"; }
const char *nccl() { return "absent: the NCCL transport comes with the CUDA backend"; }

}  // namespace build
}  // namespace lasp
