// Products of matrices over 64 tokens of a head, for the gradients of decays (decay_products.cuh,
// channel_products.cuh). How they are found is `Products`, on the CUDA cores (products_float32.cuh) or by tensor
// cores (mma/products.cuh); a block has 128 threads:
//
//   Product   64 x 64 over the block's threads, with at(i, j)
//   kRows, kColumns, row(i), column(j)   what a thread owns of a product
//   group()   which of kGroups sets of rows; kLanes neighbouring lanes share it
//   Pairs, Tiles, RowTiles   operands in shared memory: of `tokens`; of `states` and `tokens`; of `state_rows`
//   tokens    product += x y^T, of two tiles' tokens
//   states    Q S_0 and K dS_E for 64 columns of V; returns this thread's part of <S_0, dS_E>
//   add_rows  sums[i] += product's row . x[token, columns]
//   state_rows   dO S_0^T and V dS_E^T for 64 rows of the states, and a part of each row of S_0 times that of dS_E
//   kStateRows, state_row(i)   the rows of which a thread has a part; kRowLanes neighbouring lanes share them
#pragma once

#include "device.cuh"

namespace lasp::gpu::products {

constexpr int kThreads = 128, kTokens = 64;

// The tokens of a tile.
struct TileRange {
  int64_t row, begin;
  int count, head;
};
__device__ inline TileRange tile_range(const Run &run, int head, int tile) {
  return {run.row, run.begin + tile * kTokens, min(kTokens, run.length - tile * kTokens), head};
}

__device__ inline float sum_lanes(float x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

}  // namespace lasp::gpu::products
