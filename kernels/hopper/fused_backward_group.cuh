// Grouped heads: the blocks of a cluster work on the heads that share a head of k and v, in step, and so share the
// results dk and dv, which are sums over them. Each warp leaves its 16 rows of its own head's part in its boxes, as
// 16-bit numbers; of the warps of the same number in all blocks each adds up and stores some of the rows. Two
// barriers to a warp:
//
//   offered     the boxes of all blocks are full
//   taken       all blocks have read this one's
//
// The sum goes through no memory but the blocks' own, in float32 and in the order of the heads.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, int kMembers>
class GroupResults {
 public:
  __device__ __forceinline__ explicit GroupResults(const Block<kMembers> &block) : block_(block) {}

  static __device__ __forceinline__ void init_barriers(const Block<kMembers> &block) {
    for (int warp = 0; warp < kConsumers; ++warp)
      for (const uint32_t barrier : {offered(block, warp), taken(block, warp)}) barrier_init(barrier, kMembers);
  }

  // This warp has filled its boxes.
  __device__ __forceinline__ void offer() const {
    __syncwarp();
    if (lane() < kMembers) barrier_offer_cluster(cluster_address(offered(block_, warp()), lane()));
  }
  // Adds up and stores this block's share of what was offered last, after `collected` times: rows of 128 columns,
  // those before `tokens`, to `first` and on.
  __device__ __forceinline__ void collect(int32_t collected, T *first, int64_t stride, int32_t tokens) const {
    barrier_wait_cluster(offered(block_, warp()), RingIndex<1>::of(collected).odd_round);
    add(first, stride, tokens);
    __syncwarp();
    if (lane() < kMembers) barrier_arrive_cluster(cluster_address(taken(block_, warp()), lane()));
  }
  // Until the boxes may be filled again.
  __device__ __forceinline__ void wait_taken(int32_t collected) const {
    if (collected > 0) wait_this_round(taken(block_, warp()), RingIndex<1>::of(collected - 1));
  }

 private:
  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ uint32_t warp() { return threadIdx.x / 32; }
  static __device__ __forceinline__ uint32_t offered(const Block<kMembers> &block, uint32_t warp) {
    return block.base + Layout::kGroupBarriers + 16 * warp;
  }
  static __device__ __forceinline__ uint32_t taken(const Block<kMembers> &block, uint32_t warp) {
    return offered(block, warp) + 8;
  }

  // Four pieces of 16 bytes are on their way at once: of as many members, or of two for two places.
  __device__ __forceinline__ void add(T *first, int64_t stride, int32_t tokens) const {
    constexpr int kRows = kStoreRows / kMembers, kPieces = 8 / kMembers;  // of a block; of a lane
    constexpr int kFrom = kMembers < 4 ? kMembers : 4, kPlaces = 4 / kFrom;
    const uint32_t boxes = block_.base + Layout::kOut + 2 * warp() * Layout::kOutBox;
#pragma unroll
    for (int i = 0; i < kPieces; i += kPlaces) {
      float sum[kPlaces][8] = {};
      int32_t row[kPlaces], piece[kPlaces];
#pragma unroll
      for (int j = 0; j < kPlaces; ++j) {
        const int32_t at = lane() + 32 * (i + j);
        row[j] = int32_t(cluster_rank()) * kRows + at / 16, piece[j] = at % 16;
      }
#pragma unroll
      for (int m = 0; m < kMembers; m += kFrom) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int32_t r = row[j / kFrom], at = piece[j / kFrom];
          v[j] = load_cluster_16(cluster_address(boxes, m + j % kFrom) + at / 8 * Layout::kOutBox +
                                 tile_offset<64>(r, at % 8));
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t pairs[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float2 x = unpack<T>(pairs[k]);
            sum[j / kFrom][2 * k] += x.x, sum[j / kFrom][2 * k + 1] += x.y;
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kPlaces; ++j) {
        const float(&s)[8] = sum[j];
        store_global_16_if(row[j] < tokens, first + row[j] * stride + piece[j] * 8,
                           {pack<T>(s[0], s[1]), pack<T>(s[2], s[3]), pack<T>(s[4], s[5]), pack<T>(s[6], s[7])});
      }
    }
  }

  const Block<kMembers> &block_;
};

// Each head of k and v is one head's.
template <typename T, int kMembers>
requires(kMembers <= 1) class GroupResults<T, kMembers> {
 public:
  __device__ __forceinline__ explicit GroupResults(const Block<kMembers> &) {}
};

}  // namespace lasp::gpu::hopper::fused
