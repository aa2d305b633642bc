// Which tensor-core kernel takes a linear pass: hopper/ where it serves, on compute capability 9.0; else mma/.
#include "device.cuh"
#include "hopper/linear_pass.h"
#include "mma/linear_pass.h"

namespace lasp::gpu {
namespace {

struct Device {
  int multiprocessors = 0, compute_capability = 0;
};
cudaError_t current_device(Device *to) {
  int device = 0, major = 0, minor = 0;
  cudaError_t status = cudaGetDevice(&device);
  const auto ask = [&](int *value, cudaDeviceAttr what) {
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(value, what, device);
  };
  ask(&to->multiprocessors, cudaDevAttrMultiProcessorCount);
  ask(&major, cudaDevAttrComputeCapabilityMajor);
  ask(&minor, cudaDevAttrComputeCapabilityMinor);
  to->compute_capability = 10 * major + minor;
  return status;
}

}  // namespace

bool linear_pass_supported(const LinearPass &pass, int32_t compute_capability, const char **why) {
  const char *reason = hopper::refusal(pass, compute_capability);
  if (reason) reason = mma::refusal(pass, compute_capability);
  if (why) *why = reason;
  return !reason;
}

int32_t linear_pass_blocks(const LinearPass &pass) {
  Device device;
  const bool known = current_device(&device) == cudaSuccess;
  return known && hopper::serves_shape(pass, device.compute_capability) ? hopper::blocks_of(pass)
                                                                        : mma::blocks_of(pass);
}

int launch_linear_pass(const LinearPass &pass, Stream stream) {
  if (pass.num_runs == 0 || pass.heads == 0) return cudaSuccess;
  Device device;
  if (const cudaError_t error = current_device(&device)) return error;
  if (hopper::refusal(pass, device.compute_capability)) return mma::launch_linear_pass(pass, stream);
  return hopper::launch_linear_pass(pass, hopper::choose_shape(pass, device.multiprocessors), stream);
}

// Each device loads those that are made for it.
int load_linear_pass_kernels() {
  Device device;
  if (const cudaError_t error = current_device(&device)) return error;
  if (device.compute_capability == 90)
    if (const int error = hopper::load_linear_pass_kernels()) return error;
  return mma::load_linear_pass_kernels();
}

}  // namespace lasp::gpu
