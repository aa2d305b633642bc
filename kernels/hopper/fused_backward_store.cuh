// How results leave the backward kernel: each consumer warp rounds its 16 rows into its two boxes of shared memory,
// [16 rows, 64 columns] each, and they go to memory while the next step computes. Per chunk:
//
//   begin     waits until the boxes are free again
//   put       rounds a warp's rows into a box
//   finish    rows of a partial chunk: stored at once, by the warp; grouped dk and dv: offered to the cluster
//   send      whole boxes: by TMA, behind the fence of the next publication; grouped dk and dv: collected
//
// On the way forward both groups have dq, 64 columns each; on the way back group 0 has dk, group 1 dv.
#pragma once

#include "fused_backward_group.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, int kMembers>
class ResultStore : protected Consumer<kMembers> {
  using Base = Consumer<kMembers>;
  static constexpr bool kGrouped = kMembers > 1;

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
  __device__ __forceinline__ void put_box(const float (&y)[32], int to_box) const {
    const uint32_t to = box(to_box);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = pack<T>(y[4 * j + 2 * i], y[4 * j + 2 * i + 1]);
      store_matrices((to + at_.rows) ^ j << 4, m[0], m[1], m[2], m[3]);
    }
  }
  __device__ __forceinline__ void finish_store(int32_t chunk, bool back) const {
    if constexpr (kGrouped)
      if (back) return results_.offer();
    const int32_t tokens = block_.tokens(chunk) - 16 * at_.warp;
    if (tokens >= kStoreRows || tokens <= 0) return;
    __syncwarp();
    const Strides &strides = back ? (at_.group ? p_.d_v_strides : p_.d_k_strides) : p_.d_q_strides;
    T *const first = static_cast<T *>(back ? (at_.group ? p_.d_v : p_.d_k) : p_.d_q) +
                     int64_t{block_.row} * strides.batch + block_.head * strides.head +
                     (int64_t{block_.begin} + chunk * kChunk + 16 * at_.warp) * strides.token +
                     (back ? 0 : 64 * at_.group) + kDim * (back && at_.group ? block_.tile_v() : block_.tile_k());
    const int32_t panels = panels_of_rows(back);
#pragma unroll 1
    for (int32_t at = lane(); at < tokens * 8 * panels; at += 32) {
      const int32_t row = at / 8 % tokens, i = at / 8 / tokens;
      T *const to = first + row * strides.token + 64 * i + at % 8 * 8;
      uint4 v = load_shared_16(box(i) + tile_offset<64>(row, at % 8));
      if constexpr (kMembers == kTiled)
        if (block_.adds(p_, back && at_.group)) v = sum(v, *reinterpret_cast<const uint4 *>(to));
      store_global_16(to, v);
    }
  }
  // The results of a chunk (-1: of none). The caller has fenced its stores to shared memory.
  __device__ __forceinline__ void send(int32_t chunk, bool back) const {
    if constexpr (kGrouped)
      if (back) return collect(chunk);
    if (chunk < 0 || block_.tokens(chunk) - 16 * at_.warp < kStoreRows || lane() != 0) return;
    const CUtensorMap *const to = back ? (at_.group ? &p_.d_v_to : &p_.d_k_to) : &p_.d_q_to;
    const int32_t token = block_.begin + chunk * kChunk + 16 * at_.warp;
    const int32_t panel = 2 * (back && at_.group ? block_.tile_v() : block_.tile_k()) + (back ? 0 : int(at_.group));
    bool adds = false;
    if constexpr (kMembers == kTiled) adds = block_.adds(p_, back && at_.group);
    if (adds) {
      tma_add_panels(to, box(0), token, panel, block_.head, block_.row);
    } else {
      tma_store_panels(to, box(0), token, panel, block_.head, block_.row, Keep::kBriefly);
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

 private:
  // Panels of 64 columns in this group's rows of results that are the tensor's.
  __device__ __forceinline__ int32_t panels_of_rows(bool back) const {
    if constexpr (kMembers == kTiled) {
      const int32_t k = block_.panels(p_.dim_k, block_.k);
      return !back ? int(at_.group) < k : at_.group ? block_.panels(p_.dim_v, block_.v) : k;
    }
    return back ? 2 : 1;
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
