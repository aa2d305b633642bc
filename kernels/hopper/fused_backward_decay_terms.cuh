// What the walk of the backward kernel leaves for the gradient of the decay (see DecayTerm and
// fused_backward_decay.cu), and the rounded states that wait for the way back because of it.
#pragma once

#include "fused_backward_products.cuh"
#include "fused_backward_store.cuh"

namespace lasp::gpu::hopper::fused {

template <typename T, int kMembers>
class DecayTerms : protected ResultStore<T, kMembers> {
 protected:
  using Base = Consumer<kMembers>;
  using Base::p_, Base::block_, Base::at_, Base::lane;
  static constexpr int kPieces = columns_of(kMembers) / 16;  // of 16 bytes, a thread's part of a rounded state
  __device__ __forceinline__ DecayTerms(const Params &p, const Block<kMembers> &block)
      : ResultStore<T, kMembers>(p, block) {}

  // ---- Where a rounded state waits for the way back, as the threads hold it: that before a chunk in the chunk's
  // rows of dk and dv, which get their results later. A warp's part of the state is as large as its 16 rows of
  // either. (Of grouped heads and of tiles in the workspace: there such rows are one head's of
  // several, or of other dimensions, and may hold results already.) That before a stretch's last chunk does not
  // wait.
  __device__ __forceinline__ uint4 *kept(int32_t chunk) const {
    if constexpr (kMembers != 1)
      return static_cast<uint4 *>(p_.kept) +
             ((item_of_kept() * kKept + chunk % kStretch) * kConsumers + threadIdx.x / 32) * kPieces * kept_step() +
             lane();
    const Strides &strides = at_.group ? p_.d_v_strides : p_.d_k_strides;
    const int64_t token = int64_t{block_.begin} + chunk * kChunk + 16 * at_.warp + lane() / 16;
    T *const first = static_cast<T *>(at_.group ? p_.d_v : p_.d_k) + int64_t{block_.row} * strides.batch +
                     block_.head * strides.head + token * strides.token;
    return reinterpret_cast<uint4 *>(first) + lane() % 16;
  }
  __device__ __forceinline__ int64_t kept_step() const {  // two tokens, in 16 bytes
    if constexpr (kMembers != 1) return 32;
    return (at_.group ? p_.d_v_strides.token : p_.d_k_strides.token) / 4;
  }
  __device__ __forceinline__ void keep(bool keeps, int32_t chunk, const uint32_t (&pairs)[4 * kPieces]) const {
    uint4 *to = kept(chunk);
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      store_global_16_if(keeps, to, {pairs[4 * j], pairs[4 * j + 1], pairs[4 * j + 2], pairs[4 * j + 3]}),
          to += kept_step();
  }
  // Zero where nothing was kept.
  __device__ __forceinline__ void load_kept(bool there, int32_t chunk, uint32_t (&pairs)[4 * kPieces]) const {
    const uint4 *from = kept(chunk);
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const uint4 v = load_global_16_if(there, from);
      from += kept_step();
      pairs[4 * j] = v.x, pairs[4 * j + 1] = v.y, pairs[4 * j + 2] = v.z, pairs[4 * j + 3] = v.w;
    }
  }

  // ---- Sums

  // This thread's part of <S, dS>.
  static __device__ __forceinline__ float inner_product(const uint32_t (&state)[4 * kPieces],
                                                        const float (&gradient)[8 * kPieces]) {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4 * kPieces; ++i) {
      const float2 s = unpack<T>(state[i]);
      part[i % 4] = fmaf(s.x, gradient[2 * i], fmaf(s.y, gradient[2 * i + 1], part[i % 4]));
    }
    return (part[0] + part[1]) + (part[2] + part[3]);
  }
  // For each of two rows of a tile its dot product with the first columns of y, kElements of them in this thread:
  // in all lanes of its quad.
  template <int kElements, int kCount>
  __device__ __forceinline__ float2 dot_rows(uint32_t tile, const float (&y)[kCount]) const {
    float dots[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kElements / 4; j += 2) add_dots(tile, j, y, dots);
    return sum_dots(dots);
  }
  // The same by pieces of 16 columns: elements 4j to 4j + 7 of y (j even).
  template <int kCount>
  __device__ __forceinline__ void add_dots(uint32_t tile, int j, const float (&y)[kCount], float (&dots)[4]) const {
    float2 x[4];
    load_pairs(tile, j, x);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      dots[i] = fmaf(x[i].x, y[4 * j + 2 * i], fmaf(x[i].y, y[4 * j + 2 * i + 1], dots[i]));
  }
  static __device__ __forceinline__ float2 sum_dots(const float (&dots)[4]) {
    return {add_quad(dots[0] + dots[2]), add_quad(dots[1] + dots[3])};
  }
  // A piece of y += each row's factor times that of a tile.
  template <int kCount>
  __device__ __forceinline__ void add_rows(uint32_t tile, int j, const float (&factor)[2],
                                           float (&y)[kCount]) const {
    float2 x[4];
    load_pairs(tile, j, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float &even = y[4 * j + 2 * i], &odd = y[4 * j + 2 * i + 1];
      even = fmaf(factor[i % 2], x[i].x, even), odd = fmaf(factor[i % 2], x[i].y, odd);
    }
  }

  // ---- To memory

  // Of what passes over the chunk, this warp's part.
  __device__ __forceinline__ void store_through(bool there, int32_t chunk, float sum) const {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (there && lane() == 0)
      p_.through[tile() * p_.through_size +
                 ((int64_t{block_.checkpoint} * kStretch + chunk) * p_.heads + block_.head_of(at_.group)) *
                     kConsumers +
                 (heads_of(kMembers) > 1 ? at_.warp : threadIdx.x / 32)] = p_.scale * sum;
  }
  __device__ __forceinline__ void store(DecayTerm term, int32_t chunk, float2 of_rows) const {
    if (lane() % 4 != 0) return;
    float *const to = p_.terms + tile() * p_.terms_size +
                      ((term * p_.batch + block_.row) * p_.heads + block_.head_of(at_.group)) * p_.tokens +
                      block_.begin + chunk * kChunk + at_.row;
    const int32_t tokens = block_.tokens(chunk) - at_.row;
    if (tokens > 0) to[0] = of_rows.x;
    if (tokens > 8) to[8] = of_rows.y;
  }

  static __device__ __forceinline__ int64_t item_of_kept() {
    return kMembers <= kTiled ? int64_t{blockIdx.x} * gridDim.y + blockIdx.y : int64_t{blockIdx.x};
  }

 private:
  // Of those that a launch has, this block's.
  static __device__ __forceinline__ int64_t tile() { return kMembers <= kTiled ? blockIdx.y : 0; }
  // Of a tile, the pairs that lie where y's elements 4j to 4j + 7 do (j even).
  __device__ __forceinline__ void load_pairs(uint32_t tile, int j, float2 (&pairs)[4]) const {
    uint32_t m[4];
    load_matrices(m, (tile + j / 8 * kPanel + 16 * at_.warp * 128 + at_.rows) ^ j % 8 << 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = unpack<T>(m[i]);
  }
  static __device__ __forceinline__ float add_quad(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
};

}  // namespace lasp::gpu::hopper::fused
