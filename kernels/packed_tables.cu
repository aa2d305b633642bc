// The tables of a packing, by one block, and the small kernels around them.
#include <cstring>

#include "device.cuh"
#include "packed_tables_build.h"

namespace lasp::gpu {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

constexpr int kBlocks = 64, kFields = sizeof(PackedTotals) / sizeof(int64_t);
static_assert(sizeof(PackedTotals) == kFields * sizeof(int64_t) && kFields * kWarps <= kThreads);

struct SharedMemory {
  TableShared tables;
  int64_t of_warps[kFields][kWarps], totals[kFields];
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
  __device__ void sync() const { __syncthreads(); }
  __device__ TableShared &shared() const { return memory.tables; }

  // `join` of x of all lower lanes and this one; and of the lower ones alone, of none: `none`.
  template <int kWidth, class Join>
  static __device__ int64_t up_to(int64_t x, Join join) {
    for (int step = 1; step < kWidth; step *= 2) {
      const int64_t lower = __shfl_up_sync(~0u, x, step, kWidth);
      if (threadIdx.x % kWidth >= step) x = join(lower, x);
    }
    return x;
  }
  template <int kWidth>
  static __device__ int64_t below(int64_t up_to, int64_t none) {
    const int64_t lower = __shfl_up_sync(~0u, up_to, 1, kWidth);
    return threadIdx.x % kWidth == 0 ? none : lower;
  }

  __device__ int64_t highest_before(int64_t x) const {
    const auto higher = [](int64_t a, int64_t b) { return a > b ? a : b; };
    const int64_t of_warp = up_to<32>(x, higher);
    if (threadIdx.x % 32 == 31) memory.of_warps[0][threadIdx.x / 32] = of_warp;
    __syncthreads();
    int64_t highest = below<32>(of_warp, INT64_MIN);
    for (int w = 0; w < int(threadIdx.x / 32); ++w) highest = higher(highest, memory.of_warps[0][w]);
    __syncthreads();
    return highest;
  }

  // Warps first; then a row of kWarps lanes for each field.
  __device__ PackedTotals sum_before(const PackedTotals &mine, PackedTotals *total) const {
    const auto sum = [](int64_t a, int64_t b) { return a + b; };
    PackedTotals before;
    const auto *from = reinterpret_cast<const int64_t *>(&mine);
    auto *to = reinterpret_cast<int64_t *>(&before), *all = reinterpret_cast<int64_t *>(total);
#pragma unroll
    for (int i = 0; i < kFields; ++i) {
      const int64_t of_warp = up_to<32>(from[i], sum);
      if (threadIdx.x % 32 == 31) memory.of_warps[i][threadIdx.x / 32] = of_warp;
      to[i] = below<32>(of_warp, 0);
    }
    __syncthreads();
    const int field = threadIdx.x / kWarps, warp = threadIdx.x % kWarps;
    const int64_t of_row = up_to<kWarps>(field < kFields ? memory.of_warps[field][warp] : 0, sum);
    const int64_t base = below<kWarps>(of_row, 0);
    if (field < kFields) {
      memory.of_warps[field][warp] = base;
      if (warp == kWarps - 1) memory.totals[field] = of_row;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kFields; ++i) to[i] += memory.of_warps[i][threadIdx.x / 32], all[i] = memory.totals[i];
    return before;
  }
};

__global__ void __launch_bounds__(kThreads) packed_tables_kernel(const __grid_constant__ PackedTables p) {
  __shared__ __align__(16) unsigned char memory[sizeof(SharedMemory)];
  DeviceBlock block{reinterpret_cast<SharedMemory &>(memory)};
  TableBuilder<DeviceBlock>(p, blockIdx.y, block).build();
}

// A kernel's parameters hold 4 KB everywhere.
constexpr int kPutBytes = 3584;
struct Offsets {
  alignas(16) unsigned char bytes[kPutBytes];
};
__global__ void put_offsets_kernel(unsigned char *to, const __grid_constant__ Offsets from, int32_t bytes) {
  for (int i = threadIdx.x * 4; i < bytes; i += blockDim.x * 4)
    *reinterpret_cast<int32_t *>(to + i) = *reinterpret_cast<const int32_t *>(from.bytes + i);
}

__global__ void zero_padding_kernel(int64_t first, ZeroPadding p) {
  const ZeroPadding::Part &part = p.parts[blockIdx.y];
  const int64_t begin = p.live[kLivePadding], per_token = int64_t{part.heads} * part.dim;
  const int64_t count = (p.tokens - begin) * per_token;
  for (int64_t at = (first + blockIdx.x) * blockDim.x + threadIdx.x; at < count;
       at += int64_t{gridDim.x} * blockDim.x) {
    const int64_t token = begin + at / per_token, head = at % per_token / part.dim, d = at % part.dim;
    const int64_t element = token * part.token + head * part.head + d;
    if (part.bytes == 4)
      static_cast<float *>(part.data)[element] = 0;
    else
      static_cast<uint16_t *>(part.data)[element] = 0;
  }
}

}  // namespace

int launch_packed_tables(const PackedTables &p, Stream stream) {
  packed_tables_kernel<<<dim3(kBlocks, static_cast<unsigned>(p.num_cuts)), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

int launch_put_offsets(void *to, const void *offsets, bool wide, int64_t count, Stream stream) {
  const int64_t bytes = count * (wide ? 8 : 4);
  for (int64_t at = 0; at < bytes; at += kPutBytes) {
    Offsets part;
    const auto size = static_cast<int32_t>(std::min<int64_t>(kPutBytes, bytes - at));
    std::memcpy(part.bytes, static_cast<const char *>(offsets) + at, static_cast<size_t>(size));
    put_offsets_kernel<<<1, 256, 0, stream>>>(static_cast<unsigned char *>(to) + at, part, size);
    if (const cudaError_t error = cudaGetLastError()) return error;
  }
  return cudaSuccess;
}

int launch_zero_padding(const ZeroPadding &p, Stream stream) {
  if (p.count == 0 || p.tokens == 0) return cudaSuccess;
  zero_padding_kernel<<<dim3(128, static_cast<unsigned>(p.count)), 256, 0, stream>>>(0, p);
  return cudaGetLastError();
}

int load_packed_tables() { return load_kernels(packed_tables_kernel, put_offsets_kernel, zero_padding_kernel); }

}  // namespace lasp::gpu
