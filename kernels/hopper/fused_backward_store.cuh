// How results leave the backward kernel: each consumer warp rounds its 16 rows into its two boxes of shared memory,
// [16 rows, 64 columns] each, and they go to memory while the next step computes. Per chunk:
//
//   begin     waits until the boxes are free again
//   put       rounds a warp's rows into a box, 16 columns at a time
//   finish    rows of a partial chunk: stored at once, by the warp; grouped dk and dv: offered to the cluster
//   send      whole boxes: by TMA, behind the fence of the next publication; grouped dk and dv: collected
//
// On the way forward both groups have dq, 64 columns each; on the way back group 0 has dk, group 1 dv. With a head
// to each group (kPaired) each has all three.
#pragma once

#include "fused_backward_group.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, int kMembers>
class ResultStore : protected Consumer<kMembers> {
  using Base = Consumer<kMembers>;
  static constexpr bool kGrouped = kMembers > 1, kTiles = kMembers == kTiled || kMembers == kNarrow,
                        kPair = kMembers == kPaired;

 protected:
  using Base::p_, Base::block_, Base::at_, Base::lane;
  __device__ __forceinline__ ResultStore(const Params &p, const Block<kMembers> &block)
      : Base(p, block), results_(block) {}

  // Chunks after `back` have been walked back, too.
  __device__ __forceinline__ void begin_store(int32_t back) const {
    if constexpr (kGrouped) results_.wait_taken(block_.chunks - 1 - back);
    wait_stores();
    __syncwarp();
  }
  // Until TMA has read all boxes that were sent.
  static __device__ __forceinline__ void wait_stores() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
  // Elements 4j to 4j + 7 of y (j even): 16 columns of box `to`.
  template <int kCount>
  __device__ __forceinline__ void put(const float (&y)[kCount], int j, int to) const {
    uint32_t m[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = pack<T>(y[4 * j + 2 * i], y[4 * j + 2 * i + 1]);
    store_matrices((box(to) + at_.rows) ^ j % 8 << 4, m[0], m[1], m[2], m[3]);
  }
  __device__ __forceinline__ void finish_store(int32_t chunk, bool back) const {
    if constexpr (kGrouped)
      if (back) return results_.offer();
    const int32_t tokens = block_.tokens(chunk) - 16 * at_.warp;
    if (tokens >= kStoreRows || tokens <= 0) return;
    __syncwarp();
    if constexpr (kPair) {
      store_rows(back ? p_.d_k : p_.d_q, back ? p_.d_k_strides : p_.d_q_strides, chunk, tokens, 0, p_.dim_k, 0);
      if (back) store_rows(p_.d_v, p_.d_v_strides, chunk, tokens, 0, p_.dim_v, 1);
      return;
    }
    const bool to_d_v = back && at_.group;
    const int32_t first = kDim * (to_d_v ? block_.tile_v() : block_.tile_k()) + (back ? 0 : 64 * at_.group);
    int32_t columns = back ? kDim : 64;
    if constexpr (kTiles) columns = min(columns, (to_d_v ? p_.dim_v : p_.dim_k) - first);
    bool adds = false;
    if constexpr (kTiles) adds = block_.adds(p_, to_d_v);
    store_rows(back ? (to_d_v ? p_.d_v : p_.d_k) : p_.d_q,
               back ? (to_d_v ? p_.d_v_strides : p_.d_k_strides) : p_.d_q_strides, chunk, tokens, first, columns, 0,
               adds);
  }
  // The results of a chunk (-1: of none). The caller has fenced its stores to shared memory.
  __device__ __forceinline__ void send(int32_t chunk, bool back) const {
    if constexpr (kGrouped)
      if (back) return collect(chunk);
    if (chunk < 0 || block_.tokens(chunk) - 16 * at_.warp < kStoreRows || lane() != 0) return;
    const int32_t token = block_.begin + chunk * kChunk + 16 * at_.warp;
    if constexpr (kPair) {
      const int32_t head = block_.head_of(at_.group);
      tma_store_box(back ? &p_.d_k_to : &p_.d_q_to, box(0), token, 0, head, block_.row, Keep::kBriefly);
      if (back) tma_store_box(&p_.d_v_to, box(1), token, 0, head, block_.row, Keep::kBriefly);
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      return;
    }
    const CUtensorMap *const to = back ? (at_.group ? &p_.d_v_to : &p_.d_k_to) : &p_.d_q_to;
    const int32_t panel = 2 * (back && at_.group ? block_.tile_v() : block_.tile_k()) + (back ? 0 : int(at_.group));
    bool adds = false;
    if constexpr (kTiles) adds = block_.adds(p_, back && at_.group);
    constexpr bool kByColumns = by_columns(kMembers);
#pragma unroll
    for (int i = 0; i < (kByColumns ? 2 : 1); ++i) {
      if (i > 0 && !back) break;
      const int32_t column = kByColumns ? 64 * (panel + i) : 0;
      if (adds) {
        tma_add_box(to, box(i), token, kByColumns ? 0 : panel, block_.head, block_.row, column);
      } else {
        tma_store_box(to, box(i), token, kByColumns ? 0 : panel, block_.head, block_.row, Keep::kBriefly, column);
      }
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

 private:
  // Rows of a partial chunk, from box `from` on, to columns `column` and on.
  __device__ __forceinline__ void store_rows(void *data, const Strides &strides, int32_t chunk, int32_t tokens,
                                             int32_t column, int32_t columns, int from, bool adds = false) const {
    T *const first = static_cast<T *>(data) + int64_t{block_.row} * strides.batch +
                     block_.head_of(at_.group) * strides.head +
                     (int64_t{block_.begin} + chunk * kChunk + 16 * at_.warp) * strides.token + column;
#pragma unroll 1
    for (int32_t at = lane(); at < tokens * 16; at += 32) {
      const int32_t row = at / 8 % tokens, i = at / 8 / tokens;
      if (64 * i + at % 8 * 8 >= columns) continue;
      T *const to = first + row * strides.token + 64 * i + at % 8 * 8;
      uint4 v = load_shared_16(box(from + i) + tile_offset<64>(row, at % 8));
      if constexpr (kTiles)
        if (adds) v = sum(v, *reinterpret_cast<const uint4 *>(to));
      store_global_16(to, v);
    }
  }
  static __device__ __forceinline__ uint32_t sum(uint32_t x, uint32_t y) {
    const float2 a = unpack<T>(x), b = unpack<T>(y);
    return pack<T>(a.x + b.x, a.y + b.y);
  }
  static __device__ __forceinline__ uint4 sum(const uint4 &x, const uint4 &y) {
    return {sum(x.x, y.x), sum(x.y, y.y), sum(x.z, y.z), sum(x.w, y.w)};
  }
  __device__ __forceinline__ uint32_t box(int i) const {
    return block_.base + Layout::kOut + (2 * (threadIdx.x / 32) + i) * Layout::kOutBox;
  }
  __device__ __forceinline__ void collect(int32_t chunk) const {
    if (chunk < 0) return;
    const Strides &strides = at_.group ? p_.d_v_strides : p_.d_k_strides;
    T *const first = static_cast<T *>(at_.group ? p_.d_v : p_.d_k) + int64_t{block_.row} * strides.batch +
                     block_.head / kMembers * strides.head +
                     (int64_t{block_.begin} + chunk * kChunk + 16 * at_.warp) * strides.token;
    results_.collect(block_.chunks - 1 - chunk, first, strides.token, block_.tokens(chunk) - 16 * at_.warp);
  }

  GroupResults<T, kMembers> results_;
};

}  // namespace lasp::gpu::hopper::fused
