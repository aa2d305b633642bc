// Boxes of five-dimensional tensor maps: loads, stores and sums by the copy engine.
#pragma once

#include "ptx.cuh"

namespace lasp::gpu::hopper {

// Loads the box at (token, panel, head, row) of a map of panels (tensor_map.h), or from a column on; and stores
// one, of this thread's next group of bulk copies, or adds it to what is there.
__device__ __forceinline__ void tma_load_box(uint32_t to, const CUtensorMap *map, uint32_t barrier, int32_t token,
                                             int32_t panel, int32_t head, int32_t row, Keep keep,
                                             int32_t column = 0) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(token), "r"(panel), "r"(head), "r"(row), "l"(uint64_t(keep))
      : "memory");
}
__device__ __forceinline__ void tma_store_box(const CUtensorMap *map, uint32_t from, int32_t token, int32_t panel,
                                              int32_t head, int32_t row, Keep keep, int32_t column = 0) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5, %6}], [%1], "
      "%7;" ::"l"(map),
      "r"(from), "r"(column), "r"(token), "r"(panel), "r"(head), "r"(row), "l"(uint64_t(keep))
      : "memory");
}
__device__ __forceinline__ void tma_add_box(const CUtensorMap *map, uint32_t from, int32_t token, int32_t panel,
                                            int32_t head, int32_t row, int32_t column) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(
          map),
      "r"(from), "r"(column), "r"(token), "r"(panel), "r"(head), "r"(row)
      : "memory");
}

}  // namespace lasp::gpu::hopper
