// Copies by the copy engine, and products with pairs of tiles as they lie in a slot. Whole chunks of tensors whose
// rows begin on 16 bytes go this way, and all that a slot has; other chunks are copied by threads (Copier).
#pragma once

#include "../hopper/boxes.cuh"
#include "../hopper/tensor_map.h"
#include "walk.cuh"

namespace lasp::gpu::delta_hopper {

// Boxes of 64 columns and as many rows of the tensors that a walk reads.
struct TensorMaps {
  CUtensorMap k, q, columns;  // columns: v or do
  int32_t fits;               // 0: copy by threads
};
// A map of its slices alone, for walks that read nothing else of a tensor.
struct ColumnsMap {
  CUtensorMap columns;
  int32_t fits;
};
inline bool encode_boxes(CUtensorMap &map, const Tensor &t, const DeltaInputs &p, uint32_t rows) {
  return p.tokens <= INT32_MAX - kChunk && p.batch <= INT32_MAX && hopper::tensor_map_fits(t, p.batch, p.tokens) &&
         hopper::encode_columns_map(map, t, p.batch, p.tokens, p.dtype, rows);
}
// `columns` has boxes of whole chunks; k and q are cut in boxes of `rows`. A walk without outputs has no q.
inline void encode_maps(TensorMaps &maps, const DeltaInputs &p, const Tensor &columns, bool has_q, uint32_t rows) {
  maps.fits = columns.data && encode_boxes(maps.k, p.k, p, rows) &&
              (!has_q || encode_boxes(maps.q, p.q, p, rows)) && encode_boxes(maps.columns, columns, p, kChunk);
}
inline ColumnsMap encode_columns(const DeltaInputs &p, const Tensor &columns) {
  ColumnsMap map{};
  map.fits = columns.data && encode_boxes(map.columns, columns, p, kChunk);
  return map;
}

// Copies that one thread begins; each counts its bytes off `barrier`, which was told of them before.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_bulk(uint32_t to, const char *from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// Copies shared memory to global memory, as a group of bulk copies of its own. wait_stored(): until all such groups
// of this thread have read their shared memory, which may then be written again.
__device__ __forceinline__ void store_bulk(char *to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void wait_stored() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// A box of rows of a chunk, `first` the first, of all of K's columns, to its two panels. kFlip as Copier has it.
template <int kFlip>
__device__ __forceinline__ void copy_rows(uint32_t to, const CUtensorMap &map, uint32_t barrier, int32_t token,
                                          int32_t head, int32_t row, int first) {
#pragma unroll
  for (int panel = 0; panel < 2; ++panel)
    hopper::tma_load_box(to + panel * kPanel + (first ^ kFlip) * 128, &map, barrier, token + first, 0, head, row,
                         hopper::Keep::kNormal, panel * 64);
}
// The whole chunk by boxes of kRows rows.
template <int kRows, int kFlip>
__device__ __forceinline__ void copy_boxes(uint32_t to, const CUtensorMap &map, uint32_t barrier, int32_t token,
                                           int32_t head, int32_t row) {
  static_assert(kFlip % kRows == 0);
#pragma unroll
  for (int first = 0; first < kChunk; first += kRows) copy_rows<kFlip>(to, map, barrier, token, head, row, first);
}
// The 64 columns of the block's slice of a whole chunk of a tensor's head, or as many zeros.
__device__ __forceinline__ void copy_box(uint32_t to, const ColumnsMap &map, uint32_t barrier, int32_t head,
                                         const DeltaInputs &p, const Place &place, int chunk, bool zeros = false) {
  const auto token = zeros ? int32_t(p.tokens) : int32_t(place.run.begin + chunk * kChunk);  // behind the last one
  hopper::tma_load_box(to, &map.columns, barrier, token, 0, head, int32_t(place.run.row), hopper::Keep::kNormal,
                       place.slice * kSlice);
}

// A tile's 8 x 8 matrices, unswizzled: bytes from one to the next in the direction of 16 tokens that are summed
// over, and in the other.
__device__ __forceinline__ uint64_t lattice_descriptor(uint32_t address, uint32_t summed, uint32_t other) {
  return (uint64_t(address & 0x3ffff) >> 4) | uint64_t(summed / 16) << 16 | uint64_t(other / 16) << 32;
}
// y^T += L x^T: y and x by tokens in flipped order, L one of a pair's tiles. Accumulators of a part of y must be
// its first, which is what the flip is for.
template <typename T, bool kLow>
__device__ __forceinline__ void multiply_lower_of(float (&y)[32], const uint32_t (&x)[16], uint32_t pair) {
  using Tile = PairTile<kLow>;
  const uint64_t tile = lattice_descriptor(pair + Tile::at(6, 0), Tile::kColumnStep, Tile::kRowStep);
  multiply<T, 64, false>(y, x + 12, tile, true);
  multiply<T, 48, false>(y, x + 8, hopper::advance(tile, 2 * Tile::kColumnStep), true);
  multiply<T, 32, false>(y, x + 4, hopper::advance(tile, 4 * Tile::kColumnStep), true);
  multiply<T, 16, false>(y, x, hopper::advance(tile, 6 * Tile::kColumnStep), true);
}
// y^T += L^T x^T, or =; y and x by tokens in order.
template <typename T, bool kLow>
__device__ __forceinline__ void multiply_upper_of(float (&y)[32], const uint32_t (&x)[16], uint32_t pair,
                                                  bool accumulate = true) {
  using Tile = PairTile<kLow>;
  const uint64_t tile = lattice_descriptor(pair + Tile::at(6, 0), Tile::kRowStep, Tile::kColumnStep);
  multiply<T, 64, true>(y, x + 12, tile, accumulate);
  multiply<T, 48, true>(y, x + 8, hopper::advance(tile, 2 * Tile::kRowStep), true);
  multiply<T, 32, true>(y, x + 4, hopper::advance(tile, 4 * Tile::kRowStep), true);
  multiply<T, 16, true>(y, x, hopper::advance(tile, 6 * Tile::kRowStep), true);
}
// The product with the sum of the pair's tiles; x as a high and a low part.
template <typename T>
__device__ __forceinline__ void multiply_lower(float (&y)[32], const uint32_t (&x)[16], const uint32_t (&x_low)[16],
                                               uint32_t pair) {
  multiply_lower_of<T, false>(y, x_low, pair);
  multiply_lower_of<T, true>(y, x, pair);
  multiply_lower_of<T, false>(y, x, pair);
}
template <typename T>
__device__ __forceinline__ void multiply_upper(float (&y)[32], const uint32_t (&x)[16], const uint32_t (&x_low)[16],
                                               uint32_t pair) {
  multiply_upper_of<T, false>(y, x_low, pair);
  multiply_upper_of<T, true>(y, x, pair);
  multiply_upper_of<T, false>(y, x, pair);
}

}  // namespace lasp::gpu::delta_hopper
