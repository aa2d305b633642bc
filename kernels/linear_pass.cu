// The linear passes on tensor cores: those of the set that was chosen.
#include "device.cuh"
#include "hopper/channel_pass.h"
#include "hopper/linear_pass.h"
#include "mma/linear_pass.h"

namespace lasp::gpu {
namespace {

cudaError_t attribute_of_device(int *value, cudaDeviceAttr what) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error ? error : cudaDeviceGetAttribute(value, what, device);
}

}  // namespace

const char *linear_pass_refusal(KernelSet set, const LinearPass &pass) {
  if (set == KernelSet::kHopper && pass.decay == Decay::kChannel) return hopper::channel_refusal(pass);
  return set == KernelSet::kHopper ? hopper::refusal(pass) : mma::refusal(pass);
}

int32_t linear_pass_blocks(KernelSet set, const LinearPass &pass) {
  if (set == KernelSet::kHopper && pass.decay == Decay::kChannel) return hopper::channel_blocks_of(pass);
  return set == KernelSet::kHopper ? hopper::blocks_of(pass) : mma::blocks_of(pass);
}

int launch_linear_pass(KernelSet set, const LinearPass &pass, Stream stream) {
  if (pass.num_runs == 0 || pass.heads == 0) return cudaSuccess;
  if (set != KernelSet::kHopper) return mma::launch_linear_pass(pass, stream);
  if (pass.decay == Decay::kChannel) return hopper::launch_channel_pass(pass, stream);
  int multiprocessors = 0;
  if (const cudaError_t error = attribute_of_device(&multiprocessors, cudaDevAttrMultiProcessorCount)) return error;
  return hopper::launch_linear_pass(pass, hopper::choose_shape(pass, multiprocessors), stream);
}

// Each device loads those that are made for it.
int load_linear_pass_kernels() {
  int major = 0;
  if (const cudaError_t error = attribute_of_device(&major, cudaDevAttrComputeCapabilityMajor)) return error;
  if (major == 9) {
    if (const int error = hopper::load_linear_pass_kernels()) return error;
    if (const int error = hopper::load_channel_kernels()) return error;
  }
  return mma::load_linear_pass_kernels();
}

}  // namespace lasp::gpu
