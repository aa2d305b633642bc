// Two heads of v that share a head of q and k: two blocks of a cluster work on them, in step, and dq and dk are
// sums over both. The block of the first head finishes dq, that of the second dk: each leaves its part of the
// other's tensor in its shared memory, where R was, in float32. A thread reads what the thread of the same number
// left.
//
//   offered[warp]  that warp of the other block has left its part
//   taken          all warps of the other block have read this one's
#pragma once

#include "gradients_layout.cuh"

namespace lasp::gpu::delta_hopper::gradients {

struct Pair {
  const Block &block;
  const uint32_t warp, lane;  // of the eight walking warps

  __device__ __forceinline__ explicit Pair(const Block &of)
      : block(of), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ static uint32_t other() { return hopper::cluster_rank() ^ 1; }
  // Which gradient this block finishes: 0: dq, 1: dk.
  __device__ __forceinline__ static int finishes() { return int(hopper::cluster_rank()); }

  // mine += the other block's part of it; `theirs` is this block's part of what the other finishes. When all
  // walkers of this block have read R for the last time.
  __device__ __forceinline__ void add(float (&mine)[32], const float (&theirs)[32], int n) const {
    const uint32_t at = block.shared + kR + 16 * threadIdx.x;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      store_shared_16(at + i * 16 * kWalkers,
                      uint4{__float_as_uint(theirs[4 * i]), __float_as_uint(theirs[4 * i + 1]),
                            __float_as_uint(theirs[4 * i + 2]), __float_as_uint(theirs[4 * i + 3])});
    __syncwarp();
    if (lane == 0) hopper::barrier_offer_cluster(hopper::cluster_address(block.offered(warp), other()));
    hopper::barrier_wait_cluster(block.offered(warp), n & 1);
    const uint32_t from = hopper::cluster_address(at, other());
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 x = hopper::load_cluster_16(from + i * 16 * kWalkers);
      mine[4 * i] += __uint_as_float(x.x), mine[4 * i + 1] += __uint_as_float(x.y);
      mine[4 * i + 2] += __uint_as_float(x.z), mine[4 * i + 3] += __uint_as_float(x.w);
    }
    __syncwarp();
    if (lane == 0) hopper::barrier_arrive_cluster(hopper::cluster_address(block.taken(), other()));
  }
  // Until R may be written again.
  __device__ __forceinline__ void wait_taken(int n) const { hopper::barrier_wait(block.taken(), n & 1); }
};

}  // namespace lasp::gpu::delta_hopper::gradients
