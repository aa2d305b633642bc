// Thin wrappers of the Hopper instructions that CUDA C++ has no name for: mbarriers, the bulk tensor copy engine
// (TMA), clusters, stmatrix, and the proxy fence between ordinary stores and what the tensor cores and TMA read.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "../tensor_core.cuh"

namespace lasp::gpu::hopper {

// ---- mbarriers. A barrier is 8 bytes of shared memory, named by its shared address.

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// `barrier` is an address of the cluster's shared window (see cluster_address). It says that reads are done, no
// more: with release semantics at cluster scope it would wait for this thread's stores to global memory.
__device__ __forceinline__ void barrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Returns when the phase of that parity is complete.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- Clusters

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
// Where `address` of this block lies in block `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// Hand-over of shared memory between blocks: what this thread has written, or has seen written, to its block's
// before the arrival is visible to whom has waited. The fences concern shared memory alone: others would wait for
// this thread's stores to global memory, too.
__device__ __forceinline__ void barrier_offer_cluster(uint32_t barrier) {
  asm volatile(
      "fence.release.sync_restrict::shared::cta.cluster;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
      : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "wait: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}\n"
      "fence.acquire.sync_restrict::shared::cluster.cluster;" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ uint4 load_cluster_16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float load_cluster_float(uint32_t from) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- TMA

// Loads the box at (column, token, head, row) and counts its bytes off `barrier`.
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int32_t column,
                                         int32_t token, int32_t head, int32_t row) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(token), "r"(head), "r"(row)
      : "memory");
}
// The same into each block of `blocks` (a mask), at the same address and on the same barrier of each.
__device__ __forceinline__ void tma_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                                   int32_t column, int32_t token, int32_t head, int32_t row,
                                                   uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(token), "r"(head), "r"(row), "h"(blocks)
      : "memory");
}
// How long the second cache should keep what passes through it.
enum class Keep : uint64_t { kNormal = 0x1000000000000000, kBriefly = 0x12f0000000000000 };
// Makes this thread's ordinary stores to shared memory visible to the tensor cores and TMA, after a barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Orders this thread's ordinary accesses to global memory before later copies by TMA to the same place.
__device__ __forceinline__ void fence_async_proxy_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- Registers

template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Four 8x8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(m0), "r"(m1),
               "r"(m2), "r"(m3)
               : "memory");
}
__device__ __forceinline__ void store_global_16(void *to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
// Without a branch, which costs the compiler registers.
__device__ __forceinline__ void store_global_16_if(bool there, void *to, uint4 v) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(uint32_t(there))
               : "memory");
}
__device__ __forceinline__ uint4 load_global_16_if(bool there, const void *from) {
  uint4 v;
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"(uint32_t(there))
      : "memory");
  return v;
}

}  // namespace lasp::gpu::hopper
