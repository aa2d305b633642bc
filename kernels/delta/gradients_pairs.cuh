// Two heads of v that share a head of q and k, or two groups of 128 columns of one head: two blocks of a cluster
// work on them, in step, and dq and dk are sums over both. The first block finishes dq, the second dk: each leaves
// its part of the other's tensor in its shared memory, where R was, in float32. A thread reads what the thread of
// the same number left. Of one head d_beta and d_g are sums, too, which the first block finishes.
//
//   offered[warp]  that warp of the other block has left its part
//   taken          all warps of the other block have read this one's
//   summed         of the first block: all warps of the other have left their shares of d_beta and d_g
//   sums_taken     of the second block: the first has read these
#pragma once

#include <algorithm>

#include "gradients_layout.cuh"

namespace lasp::gpu::delta_hopper::gradients {

// launch_blocks of clusters of two.
template <typename... Parameters, typename... Arguments>
int launch_pairs(void (*kernel)(int64_t, Parameters...), int64_t blocks, int threads, size_t shared, Stream stream,
                 const Arguments &...arguments) {
  constexpr int64_t kMost = 0x7ffffffe;  // of a grid of pairs
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(threads), config.dynamicSmemBytes = shared, config.stream = stream;
  config.attrs = &cluster, config.numAttrs = 1;
  for (int64_t first = 0; first < blocks; first += kMost) {
    config.gridDim = dim3(unsigned(std::min(kMost, blocks - first)));
    if (const int error = cudaLaunchKernelEx(&config, kernel, first, arguments...)) return error;
  }
  return cudaSuccess;
}

struct Pair {
  const Block &block;

  // In a way that keeps the compiler from holding addresses in registers from chunk to chunk.
  static __device__ __forceinline__ uint32_t this_thread() {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
  }
  __device__ __forceinline__ static uint32_t other() { return hopper::cluster_rank() ^ 1; }
  // dk; or dq.
  __device__ __forceinline__ static bool finishes_keys() { return hopper::cluster_rank() != 0; }

  // mine += the other block's part of it; `theirs` is this block's part of what the other finishes. When all
  // walkers of this block have read R for the last time.
  __device__ __forceinline__ void add(float (&mine)[32], const float (&theirs)[32], int n) const {
    const uint32_t thread = this_thread(), warp = thread / 32, at = block.shared + kR + 16 * thread;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      store_shared_16(at + i * 16 * kWalkers,
                      uint4{__float_as_uint(theirs[4 * i]), __float_as_uint(theirs[4 * i + 1]),
                            __float_as_uint(theirs[4 * i + 2]), __float_as_uint(theirs[4 * i + 3])});
    __syncwarp();
    if (thread % 32 == 0) hopper::barrier_offer_cluster(hopper::cluster_address(block.offered(warp), other()));
    hopper::barrier_wait_cluster(block.offered(warp), n & 1);
    const uint32_t from = hopper::cluster_address(at, other());
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 x = hopper::load_cluster_16(from + i * 16 * kWalkers);
      mine[4 * i] += __uint_as_float(x.x), mine[4 * i + 1] += __uint_as_float(x.y);
      mine[4 * i + 2] += __uint_as_float(x.z), mine[4 * i + 3] += __uint_as_float(x.w);
    }
    __syncwarp();
    if (thread % 32 == 0) hopper::barrier_arrive_cluster(hopper::cluster_address(block.taken(), other()));
  }
  // Where the pair has one head, the first block finishes d_beta and d_g.
  __device__ __forceinline__ static bool is_second_of_columns(const Place &place) {
    return place.of_columns && hopper::cluster_rank() != 0;
  }
  // By the second: this warp's shares of chunk n's d_beta and d_g are there.
  __device__ __forceinline__ void offer_sums(int n) const {
    __syncwarp();
    if (this_thread() % 32 == 0) hopper::barrier_offer_cluster(hopper::cluster_address(block.summed(n), 0));
  }
  // This warp of the first block has read them; and until the second block may replace those of two chunks before.
  __device__ __forceinline__ void take_sums(int n) const {
    __syncwarp();
    if (this_thread() % 32 == 0) hopper::barrier_arrive_cluster(hopper::cluster_address(block.sums_taken(n), 1));
  }
  __device__ __forceinline__ void wait_sums(const Place &place, int n) const {
    if (is_second_of_columns(place) && n > 1) hopper::barrier_wait(block.sums_taken(n), block.use(n - 2));
  }
  // Until R may be written again.
  __device__ __forceinline__ void wait_taken(int n) const { hopper::barrier_wait(block.taken(), n & 1); }
};

}  // namespace lasp::gpu::delta_hopper::gradients
