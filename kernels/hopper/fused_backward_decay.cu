// The last kernel of the backward pass: the gradient of the log decay from the terms that the walk has left, token
// by token, or summed over a head's tokens in a fixed order.
#include <cooperative_groups.h>

#include "../device.cuh"
#include "fused_backward_internal.h"
#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {
namespace {

namespace cg = cooperative_groups;

// Of tile `tile`: a token's A, B and C below, two tokens a lane, and the lane's part of what passes over the chunk.
struct ChunkTerms {
  float a[2], b[2], c[2], through;
  __device__ __forceinline__ ChunkTerms(const Params &p, const Run &run, int32_t head, int32_t chunk,
                                        int32_t tile) {
    const int32_t lane = threadIdx.x % 32;
    const bool by_group = p.form == kPaired;  // a warpgroup has worked on all of a head
    const int64_t size = p.batch * p.heads * p.tokens;
    const float *const row = p.terms + tile * p.terms_size + (run.row * p.heads + head) * p.tokens + run.begin;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t token = chunk * kChunk + 2 * lane + i;
      const bool there = token < run.length;
      const auto part = [&](int which) { return there ? row[which * size + token] : 0.0f; };
      a[i] = part(kQueryHalves) + (by_group ? 0.0f : part(kQueryHalves + 1));
      b[i] = part(kFromAfter);
      // B is summed in another order than all of k . dk, so their difference has an error of B's float32. Of most
      // tokens it counts for nothing: decay leaves less of B than of the rest. The last token has no rest.
      const bool last = token + 1 == min((chunk + 1) * kChunk, run.length);
      c[i] = last ? 0.0f : part(kFromAll) - b[i];
    }
    const float *const passing = p.through + tile * p.through_size +
                                 ((int64_t{run.checkpoint} * kStretch + chunk) * p.heads + head) * kConsumers;
    through = lane < (by_group ? kConsumers / 2 : kConsumers) ? passing[lane] : 0.0f;
  }
};

// With X = Lambda <S_0, dS_E> and the sums A = q . dq, B (k . dk from the gradient after the chunk) and C (the rest
// of k . dk), A and C without a token's pair with itself: d_g[t] = X + sum_{i >= t} (A - C)_i + sum_{j < t} B_j.
// Pairs of tokens that are both at or after t cancel: they are the same rounded score times the same dot product.
// Summed over the tiles of the launch, and with what those before have left: in `sums`, but by the last launch in
// d_g. A warp takes every kWarps-th chunk of a (run, head), two tokens a lane.
constexpr int kWarps = 16;
struct Result {
  void *d_g;
  DType type;
  Strides strides;
  bool adds, first, last;  // of the launches of a pass
};
__global__ void gather_terms(Params p, Result to) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x % p.heads;
  const Run run = p.runs[blockIdx.x / p.heads];
  float *const sums = p.sums + (run.row * p.heads + head) * p.tokens + run.begin;
  for (int32_t chunk = warp; chunk * kChunk < run.length; chunk += kWarps) {
    float d_g[2] = {0, 0};
    for (int32_t tile = 0; tile < p.num_tiles; ++tile) {
      const ChunkTerms terms(p, run, head, chunk, tile);
      const float after[2] = {terms.a[0] - terms.c[0], terms.a[1] - terms.c[1]};
      float later = after[0] + after[1], earlier = terms.b[0] + terms.b[1], through = terms.through;
      for (int step = 1; step < 32; step *= 2) {
        through += __shfl_xor_sync(~0u, through, step);
        const float down = __shfl_down_sync(~0u, later, step), up = __shfl_up_sync(~0u, earlier, step);
        if (lane + step < 32) later += down;
        if (lane >= step) earlier += up;
      }
      earlier = __shfl_up_sync(~0u, earlier, 1);
      later = __shfl_down_sync(~0u, later, 1);
      const float before = lane == 0 ? 0.0f : earlier, last = (lane == 31 ? 0.0f : later) + after[1];
      d_g[0] += through + (last + after[0]) + before, d_g[1] += through + last + (before + terms.b[0]);
    }
    for (int i = 0; i < 2; ++i) {
      const int32_t token = chunk * kChunk + 2 * lane + i;
      if (token >= run.length) continue;
      const float sum = to.first ? d_g[i] : sums[token] + d_g[i];
      if (to.last)
        put_element(to.d_g, to.type, offset_of(to.strides, run.row, run.begin + token, head), sum, to.adds);
      else
        sums[token] = sum;
    }
  }
}

// Summed over the tokens of a head, a chunk of n tokens has n X + sum (t + 1) (A - C)_t + sum (n - 1 - t) B_t. In
// float64, for the shares are many and of either sign. A head has a cluster, each run kShares warps of it or more.
constexpr int kBlocks = 8, kAllWarps = kBlocks * kWarps, kShares = 16;
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kWarps * 32)
    sum_terms_of_head(Params p, int64_t num_runs, float *to, bool adds) {
  __shared__ double of_warps[kWarps], of_block;
  const cg::cluster_group cluster = cg::this_cluster();
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x / kBlocks;
  const int64_t shares = num_runs * kShares < kAllWarps ? kAllWarps / num_runs : kShares;
  double sum = 0;
  for (int64_t at = blockIdx.x % kBlocks * kWarps + warp; at < num_runs * shares; at += kAllWarps) {
    const int64_t index = quotient(at, shares);
    const Run run = p.runs[index];
#pragma unroll 4
    for (int32_t chunk = int32_t(at - index * shares); chunk < (run.length + kChunk - 1) / kChunk;
         chunk += int32_t(shares)) {
      const int32_t count = min(kChunk, run.length - chunk * kChunk);
      for (int32_t tile = 0; tile < p.num_tiles; ++tile) {
        const ChunkTerms terms(p, run, head, chunk, tile);
        sum += double(count) * terms.through;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int32_t t = 2 * lane + i;  // beyond the run all terms are zero
          sum += double(t + 1) * (terms.a[i] - terms.c[i]) + double(count - 1 - t) * terms.b[i];
        }
      }
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) of_warps[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    of_block = 0;
    for (int i = 0; i < kWarps; ++i) of_block += of_warps[i];
  }
  cluster.sync();
  if (cluster.block_rank() == 0 && threadIdx.x == 0) {
    double all = adds ? to[head] : 0.0f;
    for (int i = 0; i < kBlocks; ++i) all += *cluster.map_shared_rank(&of_block, i);
    to[head] = float(all);
  }
  cluster.sync();  // until then the blocks' sums are there
}

}  // namespace

int gather_decay_gradient(const Params &params, const FusedBackward &p, Stream stream) {
  const bool first = params.diagonal == 0, last = params.diagonal + 1 == params.most_tiles;
  if (p.decay == Decay::kHead) {
    sum_terms_of_head<<<dim3(unsigned(p.heads * kBlocks)), dim3(kWarps * 32), 0, stream>>>(
        params, p.num_runs, static_cast<float *>(p.d_g), p.d_g_adds || !first);
  } else {
    const DType type = p.d_g_float32 ? DType::kFloat32 : p.decay_dtype;
    gather_terms<<<dim3(unsigned(p.num_runs * p.heads)), dim3(kWarps * 32), 0, stream>>>(
        params, {p.d_g, type, p.d_g_strides, p.d_g_adds, first, last});
  }
  return cudaGetLastError();
}

int load_decay_gradient_kernels() { return load_kernels(gather_terms, sum_terms_of_head); }

}  // namespace lasp::gpu::hopper::fused
