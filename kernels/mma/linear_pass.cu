// The host side of the mma linear pass: what it supports and how a pass is cut.
#include "linear_pass.h"

#include "find_kernel.cuh"

namespace lasp::gpu::mma {
namespace {

Kind kind_of(const LinearPass &pass) {
  if (pass.decay != Decay::kChannel) return Kind::kToken;
  // A channel is a row of the state [K, V]: a column where the pass sees the state transposed.
  return pass.state_transposed ? Kind::kRows : Kind::kColumns;
}

constexpr int32_t kMostColumns = 256, kMostRows = 512;
int32_t padded_columns(int32_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : kMostColumns; }
int32_t most_warps(int32_t a_dim) { return a_dim <= 128 ? kStateWarps<128> : kStateWarps<256>; }

Kernel kernel_for(const LinearPass &pass) {
  const auto find = pass.dtype == DType::kBFloat16 ? find_kernel_bfloat16 : find_kernel_float16;
  return find(padded_columns(pass.a.dim), kind_of(pass));
}

// Shared memory that a block may have, bytes.
int64_t most_shared(int32_t compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87: return 163 * 1024;
    case 86:
    case 89: return 99 * 1024;
    default: return (compute_capability < 120 ? 227 : 99) * 1024;
  }
}

// Whether every row lies on 16 bytes.
bool copies(const void *data, const Strides &strides, int64_t batch, int64_t tokens, int64_t heads, int64_t bytes) {
  const auto fits = [&](int64_t stride, int64_t extent) { return extent <= 1 || stride * bytes % 16 == 0; };
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && fits(strides.batch, batch) && fits(strides.token, tokens) &&
         fits(strides.head, heads);
}

}  // namespace

const char *refusal(const LinearPass &pass, int32_t compute_capability) {
  if (compute_capability < 80) return "the tensor-core kernels are for compute capability 8.0 and later";
  if (pass.dtype == DType::kFloat32) return "the tensor-core kernels compute bfloat16 and float16";
  if (pass.checkpoints) return "the tensor-core kernels for any architecture keep no checkpoints";
  if (pass.a.dim % 8 || pass.a.dim <= 0 || pass.a.dim > kMostColumns)
    return "the tensor-core kernels want a first dimension of a multiple of 8 up to 256";
  if (pass.y.dim % 8 || pass.y.dim <= 0 || pass.y.dim > kMostRows)
    return "the tensor-core kernels want a second dimension of a multiple of 8 up to 512";
  const auto fits = [&](const Tensor &t) { return copies(t.data, t.strides, pass.batch, pass.tokens, t.heads, 2); };
  if (!fits(pass.b) || !fits(pass.c) || (pass.y.data && (!fits(pass.a) || !fits(pass.y))))
    return "the tensor-core kernels want tensors and strides that are multiples of 16 bytes";
  if (pass.decay == Decay::kChannel && !copies(pass.g, pass.g_strides, pass.batch, pass.tokens, pass.heads,
                                               pass.decay_dtype == DType::kFloat32 ? 4 : 2))
    return "the tensor-core kernels want a decay per channel and strides that are multiples of 16 bytes";
  const Kernel kernel = kernel_for(pass);
  if (kernel.fixed_bytes + kLeastSlots * kernel.slot_bytes > most_shared(compute_capability))
    return "the tensor-core kernel of these dimensions needs more shared memory than the device has";
  return nullptr;
}

int32_t blocks_of(const LinearPass &pass) {
  return static_cast<int32_t>(ceil_div(pass.y.dim, 16 * most_warps(pass.a.dim)));
}

int launch_linear_pass(const LinearPass &pass, int32_t slots, Stream stream) {
  const Kernel kernel = kernel_for(pass);
  PassParams params;
  static_cast<LinearPass &>(params) = pass;
  params.slots = slots;
  params.slices = blocks_of(pass);
  params.slice_warps = static_cast<int32_t>(ceil_div(ceil_div(pass.y.dim, 16), params.slices));
  return launch_blocks(kernel.function, pass.num_runs * pass.heads * params.slices,
                       32 * params.slice_warps + kFeedThreads,
                       static_cast<size_t>(kernel.fixed_bytes + slots * kernel.slot_bytes), stream, params);
}

int launch_linear_pass(const LinearPass &pass, Stream stream) {
  int device = 0, most = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
    return error;
  const Kernel kernel = kernel_for(pass);
  int32_t slots = kMostSlots;
  while (slots > kLeastSlots && kernel.fixed_bytes + slots * kernel.slot_bytes > most) --slots;
  return launch_linear_pass(pass, slots, stream);
}

int load_linear_pass_kernels() {
  for (const auto find : {find_kernel_bfloat16, find_kernel_float16}) {
    for (const int32_t dim : {64, 128, 256}) {
      for (const Kind kind : {Kind::kToken, Kind::kColumns, Kind::kRows}) {
        const Kernel kernel = find(dim, kind);
        if (const int error = load_kernel(kernel.function,
                                          static_cast<size_t>(kernel.fixed_bytes + kMostSlots * kernel.slot_bytes)))
          return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace lasp::gpu::mma
