// The tables of a packing, by one block, and the small kernels around them.
#include "device.cuh"
#include "packed_tables_build.h"
#include "warp_sums.cuh"
#include "zero_padding.cuh"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

constexpr int kBlocks = 64, kFields = sizeof(PackedTotals) / sizeof(int32_t);
static_assert(sizeof(PackedTotals) == kFields * sizeof(int32_t) && kFields * kWarps <= kThreads);

struct SharedMemory {
  TableShared tables;
  int64_t highest[kWarps];
  int32_t of_warps[kFields][kWarps];
};

// One thread block as TableBuilder wants it.
struct DeviceBlock {
  SharedMemory &memory;
  __device__ int64_t thread() const { return threadIdx.x; }
  __device__ int64_t threads() const { return kThreads; }
  __device__ int64_t block() const { return blockIdx.x; }
  __device__ int64_t blocks() const { return kBlocks; }
  __device__ int64_t warp() const { return threadIdx.x / 32; }
  __device__ int64_t warps() const { return kWarps; }
  __device__ int64_t lane() const { return threadIdx.x % 32; }
  __device__ int64_t lanes() const { return 32; }
  __device__ bool clears() const { return true; }
  __device__ void sync() const { __syncthreads(); }
  __device__ TableShared &shared() const { return memory.tables; }

  __device__ int64_t highest_before(int64_t x) const {
    const auto higher = [](int64_t a, int64_t b) { return a > b ? a : b; };
    const int64_t of_warp = up_to<32>(x, higher);
    if (threadIdx.x % 32 == 31) memory.highest[threadIdx.x / 32] = of_warp;
    __syncthreads();
    int64_t highest = below<32>(of_warp, INT64_MIN);
    LASP_ROLLED for (int w = 0; w < int(threadIdx.x / 32); ++w) highest = higher(highest, memory.highest[w]);
    return highest;
  }

  // Warps first; then a row of kWarps lanes for each field.
  __device__ PackedTotals sum_before(const PackedTotals &mine) const {
    const auto sum = [](int32_t a, int32_t b) { return a + b; };
    PackedTotals before;
    const auto *from = reinterpret_cast<const int32_t *>(&mine);
    auto *to = reinterpret_cast<int32_t *>(&before);
#pragma unroll
    for (int i = 0; i < kFields; ++i) {
      const int32_t of_warp = up_to<32>(from[i], sum);
      if (threadIdx.x % 32 == 31) memory.of_warps[i][threadIdx.x / 32] = of_warp;
      to[i] = below<32>(of_warp, 0);
    }
    __syncthreads();
    const int field = threadIdx.x / kWarps, warp = threadIdx.x % kWarps;
    const int32_t of_row = up_to<kWarps>(field < kFields ? memory.of_warps[field][warp] : 0, sum);
    const int32_t base = below<kWarps>(of_row, 0);
    if (field < kFields) {
      memory.of_warps[field][warp] = base;
      if (warp == kWarps - 1) reinterpret_cast<int32_t *>(&memory.tables.total)[field] = of_row;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kFields; ++i) to[i] += memory.of_warps[i][threadIdx.x / 32];
    return before;
  }
};

__global__ void __launch_bounds__(kThreads) packed_tables_kernel(const __grid_constant__ PackedTables p) {
  __shared__ __align__(16) unsigned char memory[sizeof(SharedMemory)];
  DeviceBlock block{reinterpret_cast<SharedMemory &>(memory)};
  TableBuilder<DeviceBlock>(p, p.offsets, blockIdx.y, block).build();
}

// A kernel's parameters hold 4 KB everywhere.
struct GivenOffsets {
  static constexpr int kMost = 700;
  int32_t at[kMost];
};
static_assert(sizeof(PackedTables) + sizeof(GivenOffsets) <= 4096);

__global__ void __launch_bounds__(kThreads)
    given_tables_kernel(const __grid_constant__ PackedTables p, const __grid_constant__ GivenOffsets offsets) {
  __shared__ __align__(16) unsigned char memory[sizeof(SharedMemory)];
  DeviceBlock block{reinterpret_cast<SharedMemory &>(memory)};
  TableBuilder<DeviceBlock>(p, offsets.at, blockIdx.y, block).build();
}

__global__ void put_offsets_kernel(int32_t *to, const __grid_constant__ GivenOffsets from, int32_t count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from.at[i];
}

__global__ void zero_padding_kernel(int64_t first, const __grid_constant__ ZeroPadding p) {
  zero_tokens(p.parts[blockIdx.y], p.live[kLivePadding + blockIdx.z] + first + blockIdx.x, p.ends[blockIdx.z],
              gridDim.x);
}

dim3 grid_of(const PackedTables &p) { return dim3(kBlocks, static_cast<unsigned>(p.num_cuts)); }

}  // namespace

int launch_packed_tables(const PackedTables &p, const ZeroPadding &padding, Stream stream) {
  if (const int few = launch_few_tables(p, padding, stream); few != kTooManyTables) return few;
  packed_tables_kernel<<<grid_of(p), kThreads, 0, stream>>>(p);
  if (const cudaError_t error = cudaGetLastError()) return error;
  return launch_zero_padding(padding, stream);
}

int launch_packed_tables(const PackedTables &p, const int32_t *offsets, int32_t *place, Stream stream) {
  if (const int few = launch_few_tables(p, offsets, stream); few != kTooManyTables) return few;
  const int64_t count = p.sequences + 1;
  GivenOffsets given;
  for (int64_t at = 0; at < count; at += GivenOffsets::kMost) {
    const auto size = static_cast<int32_t>(std::min<int64_t>(GivenOffsets::kMost, count - at));
    std::copy_n(offsets + at, size, given.at);
    if (count <= GivenOffsets::kMost)
      given_tables_kernel<<<grid_of(p), kThreads, 0, stream>>>(p, given);
    else
      put_offsets_kernel<<<1, 256, 0, stream>>>(place + at, given, size);
    if (const cudaError_t error = cudaGetLastError()) return error;
  }
  if (count <= GivenOffsets::kMost) return cudaSuccess;
  PackedTables of_place = p;
  of_place.offsets = place;
  return launch_packed_tables(of_place, ZeroPadding(), stream);
}

int launch_zero_padding(const ZeroPadding &p, Stream stream) {
  if (p.count == 0 || p.num_ranges == 0) return cudaSuccess;
  const dim3 blocks(128, static_cast<unsigned>(p.count), static_cast<unsigned>(p.num_ranges));
  zero_padding_kernel<<<blocks, 256, 0, stream>>>(0, p);
  return cudaGetLastError();
}

int load_packed_tables() {
  if (const int error = load_carried_tables()) return error;
  if (const int error = load_few_tables()) return error;
  return load_kernels(packed_tables_kernel, given_tables_kernel, put_offsets_kernel, zero_padding_kernel);
}

}  // namespace lasp::gpu
