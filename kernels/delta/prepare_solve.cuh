// N of a chunk from A, by four warps: blocks of 16 x 16 on the diagonal by substitution in float32; what is under
// them from these, as products of a high and a low part, down each column of blocks by one warp.
#pragma once

#include "layout.cuh"

namespace lasp::gpu::delta_hopper {

using mma::pack_rest;

constexpr int kSquare = 68;  // floats of a row of the matrix

__device__ __forceinline__ uint32_t transpose(uint32_t pairs) {
  uint32_t to;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pairs));
  return to;
}

// The accumulators of a 16 x 16 product as the left operand of the next, a high and a low part.
template <typename T>
__device__ __forceinline__ void split(const float (&x)[8], uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    high[i] = pack<T>(x[2 * i], x[2 * i + 1]);
    low[i] = pack_rest<T>(x[2 * i], x[2 * i + 1], high[i]);
  }
}

template <typename T>
struct Square {
  const float *a;     // [64][kSquare]
  const float *beta;  // [64]
  int r, q;           // of this lane

  // d += left B, with B[m][n] = a[row + n][column + m] beta[column + m]; as high and low parts.
  __device__ __forceinline__ void multiply(float (&d)[8], const float (&left)[8], int row, int column) const {
    uint32_t high[4], low[4];
    split<T>(left, high, low);
    const float2 b0 = *reinterpret_cast<const float2 *>(beta + column + 2 * q),
                 b1 = *reinterpret_cast<const float2 *>(beta + column + 2 * q + 8);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float *const from = a + (row + 8 * n + r) * kSquare + column + 2 * q;
      const float2 x = *reinterpret_cast<const float2 *>(from), y = *reinterpret_cast<const float2 *>(from + 8);
      const float x0 = x.x * b0.x, x1 = x.y * b0.y, y0 = y.x * b1.x, y1 = y.y * b1.y;
      const uint32_t h0 = pack<T>(x0, x1), h1 = pack<T>(y0, y1);
      const uint32_t l0 = pack_rest<T>(x0, x1, h0), l1 = pack_rest<T>(y0, y1, h1);
      float(&to)[4] = reinterpret_cast<float(&)[4]>(d[4 * n]);
      mma::multiply<T>(to, low, h0, h1);
      mma::multiply<T>(to, high, l0, l1);
      mma::multiply<T>(to, high, h0, h1);
    }
  }
};

// Matrix (row, column) of both tiles of a pair, as this warp holds it.
__device__ __forceinline__ void put(char *pair, int row, int column, int lane, uint32_t high, uint32_t low) {
  *reinterpret_cast<uint32_t *>(pair + PairTile<false>::at(row, column) + 4 * lane) = high;
  *reinterpret_cast<uint32_t *>(pair + PairTile<true>::at(row, column) + 4 * lane) = low;
}

// `square`: A, strictly lower, of which each warp has written its 16 rows; then it holds blocks of N. To a slot. By
// 128 threads.
template <typename T>
__device__ __forceinline__ void solve_square(float *square, const float *beta, char *to) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, r = lane / 4, q2 = 2 * (lane % 4);
  // The diagonal: a column a lane, twice over. N_ij = -(A_ij + sum over l < i of A_il beta_l N_lj).
  {
    const int j = lane % 16;
    float *const block = square + 16 * warp * kSquare + 16 * warp;
    float n[16], scaled[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = block[i * kSquare + j], other = 0;
#pragma unroll
      for (int l = 0; l < i; l += 4) {
        const float4 a = *reinterpret_cast<const float4 *>(block + i * kSquare + l);
        sum = fmaf(a.x, scaled[l], sum);
        if (l + 1 < i) other = fmaf(a.y, scaled[l + 1], other);
        if (l + 2 < i) sum = fmaf(a.z, scaled[l + 2], sum);
        if (l + 3 < i) other = fmaf(a.w, scaled[l + 3], other);
      }
      n[i] = -(sum + other);  // 0 on and over the diagonal
      scaled[i] = beta[16 * warp + i] * n[i];
    }
    __syncwarp();
    if (lane < 16)
#pragma unroll
      for (int i = 0; i < 16; ++i) block[i * kSquare + j] = n[i];
  }
  mma::sync_some<128>(1);

  // Down column `warp` of blocks, transposed: each is the left operand of those under it.
  const Square<T> a{square, beta, r, lane % 4};
  float column[4][8];
  {
    const float *const from = square + (16 * warp + q2) * kSquare + 16 * warp + r;  // N_jj transposed
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 2; ++e) column[0][4 * n + 2 * h + e] = from[(8 * n + e) * kSquare + 8 * h];
  }
#pragma unroll
  for (int down = 0; down < 4; ++down) {
    const int row = warp + down;
    if (row < 4) {
      if (down > 0) {
        float sum[8];
        const float *const from = square + (16 * row + q2) * kSquare + 16 * warp + r;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e) sum[4 * n + 2 * h + e] = from[(8 * n + e) * kSquare + 8 * h];
#pragma unroll
        for (int m = 0; m < down; ++m) a.multiply(sum, column[m], 16 * row, 16 * (warp + m));
        float(&found)[8] = column[down];
#pragma unroll
        for (int i = 0; i < 8; ++i) found[i] = sum[i];
        a.multiply(found, sum, 16 * row, 16 * row);
#pragma unroll
        for (int i = 0; i < 8; ++i) found[i] = -found[i];
      }
      uint32_t high[4], low[4];
      split<T>(column[down], high, low);
#pragma unroll
      for (int i = 0; i < 4; ++i)  // matrix (j half i % 2, i half i / 2)
        put(to + kPairN, 2 * row + i / 2, 2 * warp + i % 2, lane, transpose(high[i]), transpose(low[i]));
    }
  }
}

}  // namespace lasp::gpu::delta_hopper
