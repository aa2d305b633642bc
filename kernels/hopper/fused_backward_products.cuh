// The backward kernel's arithmetic of one warpgroup: products of tiles and states, and what becomes of scores.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

// y = a R^T of a tile and a rounded state, of whose rows only 64 count where y has 64 columns; kAcross: y = a R. Of
// the sum over kSum columns of a, quarter `part`.
template <typename T, bool kAcross, int kSum, int kCount>
__device__ __forceinline__ void multiply_state(float (&y)[kCount], uint32_t tile, uint32_t state, int part) {
  const uint64_t a = tile_descriptor<128>(tile), s = kAcross && kCount == 64
                                                         ? wide_descriptor(state, Layout::kStatePanel)
                                                         : tile_descriptor<128>(state);
#pragma unroll
  for (int k = part * kSum / 64; k < (part + 1) * kSum / 64; ++k)
    wgmma<T, false, kAcross>(y, advance(a, k / 4 * kPanel + k % 4 * 32),
                             advance(s, kAcross ? k * 16 * 128 : k / 4 * Layout::kStatePanel + k % 4 * 32), k > 0);
}
// y += a b, 64 tokens of the tile b summed over.
template <typename T, int kCount>
__device__ __forceinline__ void multiply_tokens(float (&y)[kCount], const uint32_t (&a)[16], uint64_t b) {
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) wgmma<T, true>(y, a + 4 * k, advance(b, k * 16 * 128));
}
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&y)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) y[i] *= factor[i / 2 % 2];
}
template <int kCount>
__device__ __forceinline__ void scale_by(float (&state)[kCount], float factor) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) state[i] *= factor;
}

// `x` or `y`, both of them in registers: of two elements of an array the compiler would choose an address.
__device__ __forceinline__ float select(bool which, float x, float y) {
  float z;
  asm("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
      : "=f"(z)
      : "f"(x), "f"(y), "r"(int(which)));
  return z;
}

// Rounds scores into the left operand of a product with 64 rows of tokens: those of a pair of tokens times `scale`
// and exp2 of the decay between them, 0 where the later token is not later. Scores are [earlier, later] where
// kLaterColumns, else [later, earlier]. By blocks of 16 columns, without branches: products run meanwhile. kApart:
// the decayed scores of each token with itself are left out and put into `own`, of this thread's rows; a pair's
// rounded score is the same either way.
template <typename T, bool kLaterColumns, bool kApart>
class ScoreRounding {
 public:
  __device__ __forceinline__ ScoreRounding(const ThreadPlace &at, const Decays &decays, float log2_scale)
      : at_(at), decays_(decays), log2_scale_(log2_scale) {
    const float by_row = kLaterColumns ? 0 : log2_scale;
    row_[0] = decays.sum[at.row] + by_row, row_[1] = decays.sum[at.row + 8] + by_row;
  }
  __device__ __forceinline__ void block(int block, const float (&scores)[32], uint32_t (&rounded)[16]) {
    const int32_t over = this->over();
    // Of the four 8 x 8 squares in a block on the diagonal one is all masked, one is not, and two share it.
    const bool before = kLaterColumns ? block > at_.warp : block < at_.warp, diagonal = block == at_.warp;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float2 column = *reinterpret_cast<const float2 *>(decays_.sum + 16 * block + 2 * i + at_.column);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int right = i / 4, low = j / 2;
        const float c = j % 2 ? column.y : column.x;
        const int32_t ahead = kLaterColumns ? j % 2 - over : over - j % 2;  // later less earlier token
        const bool kept = right == low ? ahead >= int(kApart) : (right != 0) == kLaterColumns;
        const float difference = kLaterColumns ? c + log2_scale_ - row_[low] : row_[low] - c;
        x[i + j] = scores[8 * block + i + j] * exp2_fast(before || (diagonal && kept) ? difference : -INFINITY);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[4 * block + i] = pack<T>(x[2 * i], x[2 * i + 1]);
    if constexpr (kApart)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        found_[r] =
            select(diagonal, select(over > 0, scores[8 * block + 6 * r + 1], scores[8 * block + 6 * r]), found_[r]);
  }
  // When all blocks are done. Of each row one lane of its quad holds the diagonal.
  __device__ __forceinline__ void get_own(float (&own)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      own[r] = __shfl_sync(~0u, found_[r], (threadIdx.x & 28) + threadIdx.x % 32 / 8) *
               exp2_fast(decays_.sum[at_.row + 8 * r] + log2_scale_ - decays_.sum[at_.row + 8 * r]);
  }

 private:
  // Row less column in a square of the diagonal.
  __device__ __forceinline__ int32_t over() const { return at_.row - 16 * at_.warp - at_.column; }

  const ThreadPlace &at_;
  const Decays &decays_;
  const float log2_scale_;
  float row_[2], found_[2] = {0, 0};
};

}  // namespace lasp::gpu::hopper::fused
