// The products of decay_products.cuh on the CUDA cores, and the sum of what the tiles have left.
#include "decay_products.cuh"

#include "products_float32.cuh"

namespace lasp::gpu {
namespace {

using namespace products;

// A token's parts of all tiles. Per head they are then to be summed: `totals` [B, H, T].
__global__ void decay_sums_kernel(int64_t first, DecayGradient p, float *totals) {
  const int64_t at = (first + blockIdx.x) * blockDim.x + threadIdx.x, item = at / p.run_tokens;
  if (item >= p.num_runs * p.heads) return;
  const Run &run = p.runs[item / p.heads];
  const int token = static_cast<int>(at % p.run_tokens), head = static_cast<int>(item % p.heads);
  if (token >= run.length) return;
  Parts parts(nullptr, p.run_tokens);
  parts.base = p.workspace + item * parts.floats();
  const int tiles = (run.length + kTokens - 1) / kTokens, tile = token / kTokens, t = token % kTokens;
  float sum = parts.own(tile)[t] + parts.through();
  for (int earlier = 0; earlier < tile; ++earlier) sum += parts.before(earlier);
  for (int later = tile + 1; later < tiles; ++later) {
    sum += parts.after(later) + parts.columns(Parts::pair(later, tile))[t];
    for (int earlier = 0; earlier < tile; ++earlier) sum += parts.all(Parts::pair(later, earlier));
  }
  if (totals != nullptr) {
    totals[(run.row * p.heads + head) * p.tokens + run.begin + token] = sum;
  } else {
    put_element(p.d_g, p.d_g_float32 ? DType::kFloat32 : p.decay_dtype,
                offset_of(p.d_g_strides, run.row, run.begin + token, head), sum, p.d_g_adds);
  }
}

}  // namespace

int64_t decay_products_workspace(const DecayGradient &p) {
  return p.num_runs * p.heads * Parts(nullptr, p.run_tokens).floats();
}

int launch_decay_products(const DecayGradient &p, float *totals, Stream stream) {
  const int error =
      mma::takes_decay_products(p) ? mma::launch_decay_products(p, stream) : products::launch<Float32>(p, stream);
  if (error) return error;
  constexpr int kSumThreads = 256;
  return launch_blocks(decay_sums_kernel, ceil_div(p.num_runs * p.heads * p.run_tokens, kSumThreads), kSumThreads,
                       0, stream, p, totals);
}

int load_decay_products() {
  const int error = mma::load_decay_products();
  return error ? error : load_kernels(decay_products_kernel<Float32>, decay_sums_kernel);
}

}  // namespace lasp::gpu
