// The host side of the mma linear pass: which tensors it takes and how a pass is cut.
#include "linear_pass.h"

#include "find_kernel.cuh"

namespace lasp::gpu::mma {
namespace {

Kind kind_of(const LinearPass &pass) {
  if (pass.decay != Decay::kChannel) return Kind::kToken;
  // A channel is a row of the state [K, V]: a column where the pass sees the state transposed.
  return pass.state_transposed ? Kind::kRows : Kind::kColumns;
}

// How many columns at a time. Of columns that decay a block of 128 takes less than half the time of one of 256,
// which has half of its rows of y, too. No more than two pieces: each rounds y once more, and adding once again.
int32_t piece_of(const LinearPass &pass) {
  const bool halves = kind_of(pass) == Kind::kColumns && result_of(pass) == Result::kRounded;
  return halves && pass.a.dim <= kMostColumns ? 128 : kMostColumns;
}
int32_t padded_columns(int32_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : kMostColumns; }
int32_t most_warps(int32_t a_dim) { return a_dim <= 128 ? kStateWarps<128> : kStateWarps<256>; }

Kernel kernel_for(const LinearPass &pass) {
  const bool bfloat16 = pass.dtype == DType::kBFloat16;
  const auto find = result_of(pass) == Result::kGradient
                        ? (bfloat16 ? find_gradient_kernel_bfloat16 : find_gradient_kernel_float16)
                        : (bfloat16 ? find_kernel_bfloat16 : find_kernel_float16);
  return find(padded_columns(pass.a.dim), kind_of(pass));
}

// Whether every row lies on 16 bytes.
bool copies(const void *data, const Strides &strides, int64_t batch, int64_t tokens, int64_t heads, int64_t bytes) {
  const auto fits = [&](int64_t stride, int64_t extent) { return extent <= 1 || stride * bytes % 16 == 0; };
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && fits(strides.batch, batch) && fits(strides.token, tokens) &&
         fits(strides.head, heads);
}

// Columns [first, first + count) of the state. y is a sum over columns.
PassParams cut_columns(const LinearPass &pass, int32_t first, int32_t count) {
  PassParams params;
  static_cast<LinearPass &>(params) = pass;
  params.whole_columns = pass.a.dim;
  params.adds = first > 0;
  const auto from = [](const void *data, int64_t bytes) {
    return data ? const_cast<char *>(static_cast<const char *>(data) + bytes) : nullptr;
  };
  for (Tensor *x : {&params.a, &params.b}) x->dim = count, x->data = from(x->data, int64_t{first} * 2);
  const int64_t state = int64_t{first} * (pass.state_transposed ? 1 : pass.y.dim);
  if (pass.state_in) params.state_in += state;
  if (pass.state_out) params.state_out += state;
  if (pass.edge_state) params.edge_state += state;
  if (kind_of(pass) == Kind::kColumns)
    params.g = from(pass.g, first * (pass.decay_dtype == DType::kFloat32 ? 4 : 2));
  return params;
}

// stages: 0 for as many as fit.
int launch_columns(PassParams params, int32_t stages, Stream stream) {
  const Kernel kernel = kernel_for(params);
  const auto bytes = [&](int32_t count) { return kernel.fixed_bytes + count * kernel.stage_bytes; };
  if (stages == 0) {
    int device = 0, most = 0;
    if (const cudaError_t error = cudaGetDevice(&device)) return error;
    if (const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
      return error;
    for (stages = kMostStages; stages > kLeastStages && bytes(stages) > most;) --stages;
  }
  params.stages = stages;
  params.slices = static_cast<int32_t>(ceil_div(params.y.dim, 16 * most_warps(params.a.dim)));
  params.slice_warps = static_cast<int32_t>(ceil_div(ceil_div(params.y.dim, 16), params.slices));
  return launch_blocks(kernel.function, params.num_runs * params.heads * params.slices,
                       32 * params.slice_warps + kProducerThreads, static_cast<size_t>(bytes(stages)), stream,
                       params);
}

}  // namespace

const char *refusal(const LinearPass &pass) {
  if (pass.checkpoints) return "the tensor-core kernels for any architecture keep no checkpoints";
  const auto fits = [&](const Tensor &t) { return copies(t.data, t.strides, pass.batch, pass.tokens, t.heads, 2); };
  const bool rounded = result_of(pass) == Result::kRounded;
  if (!fits(pass.b) || !fits(pass.c) || (pass.y.data && (!fits(pass.a) || (rounded && !fits(pass.y)))))
    return "the tensor-core kernels want tensors and strides that are multiples of 16 bytes";
  if (pass.y_adds && !pass.y_float32 && pass.a.dim > kMostColumns)
    return "the tensor-core kernels round a sum over so many channels twice";
  if (pass.decay == Decay::kChannel && !copies(pass.g, pass.g_strides, pass.batch, pass.tokens, pass.heads,
                                               pass.decay_dtype == DType::kFloat32 ? 4 : 2))
    return "the tensor-core kernels want a decay per channel and strides that are multiples of 16 bytes";
  return nullptr;
}

int64_t least_shared_bytes(const LinearPass &pass) {
  const Kernel kernel = kernel_for(pass);
  return kernel.fixed_bytes + kLeastStages * kernel.stage_bytes;
}

int32_t blocks_of(const LinearPass &pass) {
  return static_cast<int32_t>(ceil_div(pass.y.dim, 16 * most_warps(std::min(pass.a.dim, piece_of(pass)))));
}

// A state with more columns than a warp has registers for goes by pieces, the widest last.
int launch_linear_pass(const LinearPass &pass, int32_t stages, Stream stream) {
  if (pass.a.dim % 8 != 0 || pass.y.dim % 8 != 0 || pass.a.dim > 2 * kMostColumns) return cudaErrorInvalidValue;
  const int32_t first = std::max(0, pass.a.dim - piece_of(pass));
  if (first > 0)
    if (const int error = launch_columns(cut_columns(pass, 0, first), stages, stream)) return error;
  return launch_columns(cut_columns(pass, first, pass.a.dim - first), stages, stream);
}

int launch_linear_pass(const LinearPass &pass, Stream stream) { return launch_linear_pass(pass, 0, stream); }

int load_linear_pass_kernels() {
  for (const auto find :
       {find_kernel_bfloat16, find_kernel_float16, find_gradient_kernel_bfloat16, find_gradient_kernel_float16}) {
    for (const int32_t dim : {64, 128, 256}) {
      for (const Kind kind : {Kind::kToken, Kind::kColumns, Kind::kRows}) {
        const Kernel kernel = find(dim, kind);
        if (const int error = load_kernel(
                kernel.function, static_cast<size_t>(kernel.fixed_bytes + kMostStages * kernel.stage_bytes)))
          return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace lasp::gpu::mma
