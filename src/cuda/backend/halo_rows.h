// The kernels that move a halo's rows between tensors and messages.
#pragma once

#include <span>

#include "core/halo.h"
#include "cuda/device/cuda_call.h"

namespace lasp::cuda {

// Loads them, so that no later launch does so.
void load_halo_kernels();

// A tensor's rows and its messages in the workspace, on a stream.
struct HaloTensor {
  void *data;
  Layout layout;
  DType dtype;
  void *workspace;
  cudaStream_t stream;
};
// As HaloPasses has them.
void clear_rows(const HaloShape &shape, const HaloTensor &to, int64_t count);
void gather_rows(const HaloShape &shape, const HaloTensor &from, std::span<const HaloPart> parts);
void scatter_rows(const HaloShape &shape, const HaloTensor &to, std::span<const HaloPart> parts);
void add_rows(const HaloShape &shape, const HaloTensor &to, std::span<const HaloPart> parts);

}  // namespace lasp::cuda
