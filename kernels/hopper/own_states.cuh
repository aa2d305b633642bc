// The states of runs from zero, and nothing else: what a pass that is cut in runs, or split over ranks, needs
// first. It is bound by memory, so a block has whole states, 128 rows by up to 128 columns, and reads b and c once.
// (A block of linear_pass.cuh has 32 or 64 columns, and all of b.)
//
//   walkers, 2 warpgroups   64 rows of the state each:  R = total R + nearest sum_i b_i (write_i c_i)^T
//   producer                warp 0 copies b and c by TMA, warp 1 works out the decays of tokens
//
// With a decay tokens are weighed in registers, as the left operand b^T, in a high and a low part: so nothing
// passes through shared memory again. Barriers are those of linear_pass.cuh: full[s], empty[s], tail.
#pragma once

#include "producer.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper {

template <int kColumns>
struct OwnStatesLayout {
  static constexpr int kPanels = kColumns / 64;
  static constexpr int kB = 0, kC = 2 * kPanel, kStage = kC + kPanels * kPanel;
  static constexpr int kStages = 6;
  static constexpr int kDecay = kStages * kStage;
  static constexpr int kBarriers = kDecay + kStages * int(sizeof(ChunkDecay));
  static constexpr int kBytes = kBarriers + 8 * (2 * kStages + 1);
  static constexpr int kAlignment = 1024;
  static constexpr int kThreads = 3 * 128;
};

template <int kColumns>
struct OwnStatesBlock : RunBlock {
  using L = OwnStatesLayout<kColumns>;
  uint32_t base;
  unsigned char *memory;

  __device__ __forceinline__ OwnStatesBlock(const PassParams &p, unsigned char *shared, bool scalar)
      : RunBlock(p, kColumns, scalar) {
    base = (shared_address(shared) + L::kAlignment - 1) & ~(L::kAlignment - 1);
    memory = shared + (base - shared_address(shared));
  }
  __device__ __forceinline__ uint32_t stage(uint32_t s) const { return base + s * L::kStage; }
  __device__ __forceinline__ ChunkDecay &decay(uint32_t s) const {
    return reinterpret_cast<ChunkDecay *>(memory + L::kDecay)[s];
  }
  __device__ __forceinline__ uint32_t full(uint32_t s) const { return base + L::kBarriers + 8 * s; }
  __device__ __forceinline__ uint32_t empty(uint32_t s) const { return full(L::kStages + s); }
  __device__ __forceinline__ uint32_t tail() const { return full(2 * L::kStages); }
};

// The copy warp.
template <int kColumns>
__device__ __forceinline__ void copy_chunks(const PassParams &p, const OwnStatesBlock<kColumns> &block) {
  using L = OwnStatesLayout<kColumns>;
  const auto head_of = [&](int32_t heads) { return int32_t(int64_t(block.head) * heads / p.heads); };
  const int32_t b_head = head_of(p.b_heads), c_head = head_of(p.c_heads), row = int32_t(block.run.row);
  const uint32_t lane = threadIdx.x % 32;
  RingIndex<L::kStages> ring;
  for (int32_t n = 0; n < block.chunks; ++n, ring.next()) {
    const int32_t chunk = block.chunk(p, n), tokens = block.tokens(chunk);
    const uint32_t stage = block.stage(ring.stage), full = block.full(ring.stage);
    const uint32_t barrier = tokens < kChunk ? block.tail() : full;
    wait_round_before(block.empty(ring.stage), ring);
    if (lane == 0) {
      const int32_t token = int32_t(block.run.begin) + chunk * kChunk;
      barrier_expect(barrier, L::kStage);
#pragma unroll
      for (int i = 0; i < 2; ++i) tma_load(stage + i * kPanel, &p.b, barrier, 64 * i, token, b_head, row);
#pragma unroll
      for (int i = 0; i < L::kPanels; ++i)
        tma_load(stage + L::kC + i * kPanel, &p.c, barrier, block.column + 64 * i, token, c_head, row);
    }
    __syncwarp();
    if (tokens == kChunk) {
      if (lane > 0 && lane < kWarpArrivals) barrier_arrive(full);  // lane 0 has, with the bytes to come
      continue;
    }
    wait_this_round(barrier, RingIndex<1>());  // a run has one partial chunk at most
    for (int i = 0; i < 2 + L::kPanels; ++i) clear_rows(stage + i * kPanel, tokens, 128);
    fence_async_proxy();
    warp_arrive(full);
  }
}

// A walker's 64 rows.
template <typename T, int kColumns>
class OwnStatesWalker {
  using L = OwnStatesLayout<kColumns>;
  static constexpr int kCount = kColumns / 2;  // accumulators of a thread

 public:
  __device__ __forceinline__ OwnStatesWalker(const PassParams &p, const OwnStatesBlock<kColumns> &block, int group)
      : p_(p), block_(block), group_(group) {}

  template <bool kDecays>
  __device__ __forceinline__ void run() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) state_[i] = 0;
    RingIndex<L::kStages> ring;
    for (int32_t n = 0; n < block_.chunks; ++n, ring.next()) {
      wait_this_round(block_.full(ring.stage), ring);
      step<kDecays>(block_.stage(ring.stage), block_.decay(ring.stage));
      warp_arrive(block_.empty(ring.stage));
    }
    store();
  }

 private:
  __device__ __forceinline__ static uint64_t right(uint32_t c) {
    if constexpr (kColumns == 128) return wide_descriptor(c, kPanel);
    return tile_descriptor<128>(c);
  }

  template <bool kDecays>
  __device__ __forceinline__ void step(uint32_t stage, const ChunkDecay &decay) {
    const uint32_t b = stage + L::kB + group_ * kPanel;
    const uint64_t c = right(stage + L::kC);
    // The sum over a chunk is the tensor cores', that over chunks is IEEE float32.
    float sum[kCount];
    if constexpr (!kDecays) {
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma<T, true, true>(sum, advance(tile_descriptor<128>(b), k * 2048), advance(c, k * 2048), k > 0);
      wgmma_commit();
      wgmma_wait<0>(sum);
#pragma unroll
      for (int i = 0; i < kCount; ++i) state_[i] += sum[i];
    } else {
      const float total = decay.total, nearest = decay.nearest;
      uint32_t high[4][4], low[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) weigh(high[k], low[k], b, k, decay);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[i] = 0;
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma<T, true>(sum, high[k], advance(c, k * 2048));
        wgmma<T, true>(sum, low[k], advance(c, k * 2048));
      }
      wgmma_commit();
      wgmma_wait<0>(sum);
#pragma unroll
      for (int i = 0; i < kCount; ++i) state_[i] = fmaf(total, state_[i], nearest * sum[i]);
    }
  }

  // Tokens 16 k to 16 k + 15 of b^T, times their decays.
  __device__ __forceinline__ void weigh(uint32_t (&high)[4], uint32_t (&low)[4], uint32_t b, int k,
                                        const ChunkDecay &decay) const {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    uint32_t raw[4];
    load_matrices_transposed(raw, b + tile_offset<64>(16 * k + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 factor = reinterpret_cast<const float2 *>(decay.write)[8 * k + 4 * (i / 2) + lane % 4];
      const float2 x = unpack<T>(raw[i]);
      high[i] = pack<T>(factor.x * x.x, factor.y * x.y);
      const float2 h = unpack<T>(high[i]);
      low[i] = pack<T>(fmaf(factor.x, x.x, -h.x), fmaf(factor.y, x.y, -h.y));
    }
  }

  __device__ __forceinline__ void store() const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    float *const to = p_.state_out + block_.state * p_.state_size + block_.column * p_.state_column;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int32_t row = 64 * group_ + 16 * warp + lane / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + lane % 4 * 2;
      if (row >= p_.a_dim) continue;  // of 128 rows the state may have fewer
      *reinterpret_cast<float2 *>(to + row * p_.state_row + column) = {p_.out_scale * state_[i],
                                                                       p_.out_scale * state_[i + 1]};
    }
  }

  const PassParams &p_;
  const OwnStatesBlock<kColumns> &block_;
  const int group_;
  float state_[kCount];
};

template <typename T, bool kScalar, int kColumns>
__global__ void __launch_bounds__(OwnStatesLayout<kColumns>::kThreads, 1)
    own_states_kernel(const __grid_constant__ PassParams p) {
  extern __shared__ unsigned char shared[];
  using L = OwnStatesLayout<kColumns>;
  const OwnStatesBlock<kColumns> block(p, shared, kScalar);
  if (block.chunks == 0) return;
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0), group = warp / 4;
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < L::kStages; ++s) {
      barrier_init(block.full(s), 2 * kWarpArrivals);
      barrier_init(block.empty(s), 8 * kWarpArrivals);
    }
    barrier_init(block.tail(), 1);
    barrier_init_fence();
  }
  __syncthreads();
  if (group < 2) {
    OwnStatesWalker<T, kColumns> walker(p, block, group);
    p.decay == Decay::kNone ? walker.template run<false>() : walker.template run<true>();
  } else {
    if (warp == 8) copy_chunks(p, block);
    if (warp == 9) DecayWarp<T, kScalar, OwnStatesBlock<kColumns>>(p, block).run();
  }
}

template <typename T, bool kScalar, int kColumns>
int enqueue_own_states(const PassParams &params, int64_t blocks, Stream stream) {
  using L = OwnStatesLayout<kColumns>;
  constexpr auto kKernel = own_states_kernel<T, kScalar, kColumns>;
  constexpr int kBytes = L::kBytes + L::kAlignment;
  static_assert(kBytes <= 227 * 1024);
  if (const cudaError_t status = cudaFuncSetAttribute(reinterpret_cast<const void *>(kKernel),
                                                      cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes))
    return status;
  if (blocks == 0) return cudaSuccess;
  kKernel<<<unsigned(blocks), L::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

template <typename T>
int enqueue_own_states_typed(const PassParams &params, int32_t columns, int64_t blocks, Stream stream) {
  const bool scalar = params.decay == Decay::kScalar;
  if (columns == 128)
    return (scalar ? enqueue_own_states<T, true, 128> : enqueue_own_states<T, false, 128>)(params, blocks, stream);
  return (scalar ? enqueue_own_states<T, true, 64> : enqueue_own_states<T, false, 64>)(params, blocks, stream);
}

}  // namespace lasp::gpu::hopper
