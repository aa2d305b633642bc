// d_beta and d_g of a chunk, from the sums that the walkers leave in shared memory. Two of the producer warps put
// them in memory, so that no walker waits for it.
#pragma once

#include "gradients_pairs.cuh"
#include "gradients_results.cuh"

namespace lasp::gpu::delta_hopper::gradients {

// kShares: of d_beta, one for each warp or one in all. kColumns: the other block of the cluster may have columns of
// the same head.
template <bool kDecay, bool kDirect, int kShares, bool kColumns = false>
struct Rows {
  const DeltaGradients &p;
  const Place &place;
  const Block &block;
  float *const partial;  // d_g per head of each stretch, by its checkpoint, which this launch may add to
  const bool adds;
  float all = 0;  // d_g of the chunks of a stretch, per head

  // By a producer warp, when the walkers have left chunk n of the walk.
  __device__ __forceinline__ void put(int n) {
    const int warp = threadIdx.x % kProducers / 32;
    if (warp < 2 || (kColumns && Pair::is_second_of_columns(place))) return;
    hopper::barrier_wait(block.sums_full(n), block.use(n));
    if (kColumns && place.of_columns) hopper::barrier_wait_cluster(block.summed(n), block.use(n));
    const int chunk = place.chunks - 1 - n;
    if (warp == 2) put_beta(block.sums(n), chunk);
    if (warp == 3 && kDecay && p.d_g) put_decay(block.sums(n), chunk);
    if (kColumns && place.of_columns) Pair{block}.take_sums(n);
  }

 private:
  static __device__ __forceinline__ void put_number(void *data, DType type, int64_t at, float x, bool adds) {
    if constexpr (kDirect) {
      put_element(data, type, at, x, adds);
    } else {
      store_element(data, type, at, x);
    }
  }
  // A share of them, with that of the other columns.
  __device__ __forceinline__ float load_share(uint32_t from) const {
    float x = load_float(from);
    if (kColumns && place.of_columns) x += hopper::load_cluster_float(hopper::cluster_address(from, 1));
    return x;
  }
  __device__ __forceinline__ void put_beta(uint32_t sums, int chunk) const {
    const int count = place.run.length - chunk * kChunk;
    const int64_t token = place.run.begin + chunk * kChunk;
#pragma unroll
    for (int i = threadIdx.x % 32; i < kChunk; i += 32) {
      float x = 0;
#pragma unroll
      for (int w = 0; w < kShares; ++w) x += load_share(sums + 256 * w + 4 * i);
      if (i < count)
        put_number(p.d_beta, p.d_beta_dtype, offset_of(p.d_beta_strides, place.run.row, token + i, place.head),
                   p.scale * x, p.d_beta_adds);
    }
  }
  __device__ __forceinline__ void put_decay(uint32_t sums, int chunk) {
    const uint32_t rows = sums + kBetaSums;
    const int lane = threadIdx.x % 32, count = place.run.length - chunk * kChunk;
    const int64_t token = place.run.begin + chunk * kChunk;
    float2 x;  // of tokens 2 lane and 2 lane + 1
    x.x = load_share(rows + 8 * lane) + load_share(rows + 256 + 8 * lane);
    x.y = load_share(rows + 8 * lane + 4) + load_share(rows + 256 + 8 * lane + 4);
    if (lane == 31)
#pragma unroll
      for (int w = 0; w < 8; ++w) x.y += load_share(rows + kRowSums + 4 * w);
    x.x += x.y;
    float sum = x.x;  // from token 2 lane on
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float later = __shfl_down_sync(~0u, sum, step);
      if (lane + step < 32) sum += later;
    }
    const float first = sum, second = sum - x.x + x.y;
    const int i = 2 * lane;
    if (p.decay == Decay::kHead) return add_up((i < count ? first : 0) + (i + 1 < count ? second : 0), chunk);
    const auto put = [&](int row, float y) {
      if (row < count)
        put_number(p.d_g, kDirect && p.d_g_float32 ? DType::kFloat32 : p.decay_dtype,
                   offset_of(p.d_g_strides, place.run.row, token + row, place.head), y, p.d_g_adds);
    };
    put(i, first), put(i + 1, second);
  }
  // What this lane's tokens add to d_g per head.
  __device__ __forceinline__ void add_up(float of_tokens, int chunk) {
    all += sum_warp(of_tokens);
    const int stretch = chunk >> place.log2_of_stretch;
    if (stretch << place.log2_of_stretch != chunk) return;
    float &to = partial[(int64_t{place.run.checkpoint} + stretch) * p.heads + place.head];
    if (threadIdx.x % 32 == 0) to = adds ? to + all : all;
    all = 0;
  }
};

}  // namespace lasp::gpu::delta_hopper::gradients
