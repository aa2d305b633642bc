// The backward kernel's arithmetic of one warpgroup: products of tiles and states, and what becomes of scores.
#pragma once

#include "fused_backward_layout.cuh"

namespace lasp::gpu::hopper::fused {

// y = a R^T of a tile and a rounded state, of whose rows only 64 count where y has 64 columns; kAcross: y = a R.
// kSum: over how many columns of a.
template <typename T, bool kAcross, int kSum, int kCount>
__device__ __forceinline__ void multiply_state(float (&y)[kCount], uint32_t tile, uint32_t state) {
  const uint64_t a = tile_descriptor<128>(tile), s = kAcross && kCount == 64
                                                         ? wide_descriptor(state, Layout::kStatePanel)
                                                         : tile_descriptor<128>(state);
#pragma unroll
  for (int k = 0; k < kSum / 16; ++k)
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
// kLaterColumns, else [later, earlier]. Without branches: the tensor cores wait for it. `apart`: the decayed
// scores of each token with itself are left out and put into `own`, of this thread's rows; a pair's rounded score
// is the same either way.
template <typename T, bool kLaterColumns>
__device__ __forceinline__ void round_scores(const ThreadPlace &at, const Decays &decays, float log2_scale,
                                             const float (&scores)[32], uint32_t (&rounded)[16], bool apart,
                                             float (&own)[2]) {
  const int32_t over = at.row - 16 * at.warp - at.column;  // row less column in a square of the diagonal
  const float by_row = kLaterColumns ? 0 : log2_scale;
  const float row[2] = {decays.sum[at.row] + by_row, decays.sum[at.row + 8] + by_row};
  float found[2] = {0, 0};
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    // Of the four 8 x 8 squares in a block on the diagonal one is all masked, one is not, and two share it.
    const bool before = kLaterColumns ? block > at.warp : block < at.warp, diagonal = block == at.warp;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float2 column = *reinterpret_cast<const float2 *>(decays.sum + 16 * block + 2 * i + at.column);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int right = i / 4, low = j / 2;
        const float c = j % 2 ? column.y : column.x;
        const int32_t ahead = kLaterColumns ? j % 2 - over : over - j % 2;  // later less earlier token
        const bool kept = right == low ? ahead >= int(apart) : (right != 0) == kLaterColumns;
        const float difference = kLaterColumns ? c + log2_scale - row[low] : row[low] - c;
        x[i + j] = scores[8 * block + i + j] * exp2_fast(before || (diagonal && kept) ? difference : -INFINITY);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[4 * block + i] = pack<T>(x[2 * i], x[2 * i + 1]);
    if (apart)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        found[r] =
            select(diagonal, select(over > 0, scores[8 * block + 6 * r + 1], scores[8 * block + 6 * r]), found[r]);
  }
  // Of each row one lane of its quad holds the diagonal.
  if (apart)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      own[r] = __shfl_sync(~0u, found[r], (threadIdx.x & 28) + threadIdx.x % 32 / 8) *
               exp2_fast(decays.sum[at.row + 8 * r] + log2_scale - decays.sum[at.row + 8 * r]);
}

}  // namespace lasp::gpu::hopper::fused
