// A stretch walked back from the gradient of the state after it, where decay is per channel: the chain of
// gradients.cu with keys and queries that the preparation has scaled. It writes dv and d_beta, and leaves what the
// gradients of q, k and g are found from (channel_gradients.cuh, channel_finish.cu).
#include "channel_gradients.cuh"
#include "gradients_rows.cuh"
#include "passes.h"

namespace lasp::gpu::delta_hopper::channel {
namespace {

using namespace hopper;
using gradients::Block, gradients::Copies, gradients::Results, gradients::Rows, gradients::store_transposed,
    gradients::sync_walkers;
// Where what lies in shared memory: as there, with `read` in the place of scores, and in that of two chunks' keys
// one chunk's `write`, high and low.
namespace at = gradients;
constexpr int kRead = at::kScores;
constexpr int kBlockThreads = at::kThreads;

struct ChannelCopies : Copies {
  template <typename Sums>
  __device__ __forceinline__ void run(const Slots &slots, const Stretches &kept, Sums &rows) const {
    const int64_t item = place.index * p.heads + place.head;
    for (int n = 0; n < place.chunks; ++n) {
      const int c = place.chunks - 1 - n;
      const char *const slot = slots.at(slots.first_of(place.index, 0, place.run) + c, p.heads, place.head);
      if (n > 1) rows.put(n - 2);
      wait_empty(block.buffer_k(n), n);
      if (n > 0) hopper::barrier_wait(block.empty(block.buffer_k(n - 1)), (n - 1) / 2 & 1);
      bytes(block.buffer_k(n), at::kK, slot + kWriteHigh, 2 * kImage);
      bytes(block.buffer_k(n), at::kFactors + n % 2 * kFactorBytes, slot + kFactors, kFactorBytes);
      done(block.buffer_k(n));
      wait_empty(at::kBufferPairs, n);
      bytes(at::kBufferPairs, at::kN, slot + kPairN, kPair);
      bytes(at::kBufferPairs, at::kP, slot + kPairP, kPair);
      done(at::kBufferPairs);
      wait_empty(at::kBufferDO, n);
      tensor(at::kBufferDO, at::kDO, p.d_o, maps.columns, n);
      done(at::kBufferDO, n);
      wait_empty(at::kBufferQ, n);
      bytes(at::kBufferQ, at::kQ, slot + kQuery, kImage);
      bytes(at::kBufferQ, kRead, slot + kReadHigh, kImage);
      done(at::kBufferQ);
      wait_empty(at::kBufferE, n);
      bytes(at::kBufferE, at::kE, kept.tokens_of(item, c), Stretches::kTokenBytes);
      done(at::kBufferE);
      wait_empty(at::kBufferS, n);
      bytes(at::kBufferS, at::kS, kept.states_of(item, c), Stretches::kStateBytes);
      done(at::kBufferS);
    }
    copies_wait<0>();
    for (int n = max(place.chunks - 2, 0); n < place.chunks; ++n) rows.put(n);
  }
};

template <typename T, bool kDirect>
struct Walker : Results<T, false, kDirect> {
  using Base = Results<T, false, kDirect>;
  using Base::p, Base::place, Base::block, Base::half, Base::warp, Base::lane;
  using Base::shared, Base::row, Base::column, Base::store_d_v, Base::put_d_v;
  const Left &left;
  float s[64];

  // R before chunk n to R after it. Leaves R and dv in shared memory, and sums of Z E.
  __device__ __forceinline__ void walk(int n) {
    const uint32_t beta = block.factors(n) + kBeta, whole = block.factors(n) + kWhole;
    float y[32], w[32];
    uint32_t d_o[16], x[16], x_low[16];
    {
      uint32_t high[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) high[i] = pack<T>(s[2 * i], s[2 * i + 1]);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        store_transposed(transposed_at(shared(at::kR) + half * kDim * 128, j), high + 4 * j);
      block.wait_full(block.buffer_k(n), n);
      wgmma_begin();
      multiply_rows<T>(y, high, shared(at::kK), false);
      multiply_rows<T>(y, high, shared(at::kK) + kImage, true);
      wgmma_commit();
      block.wait_full(at::kBufferDO, n, place.by_threads);
      block.wait_full(at::kBufferPairs, n);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices_transposed(reinterpret_cast<uint32_t(&)[4]>(d_o[4 * j]),
                                 transposed_at(shared(at::kDO) + half * kPanel, j));
      wgmma_begin();
      multiply_upper_of<T, false>(w, d_o, shared(at::kP), false);
      multiply_upper_of<T, true>(w, d_o, shared(at::kP));
      wgmma_commit();
      wgmma_wait<0>(y);
      pin(w);
      block.free(block.buffer_k(n));
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) y[i] += w[i];
    by_token(beta, [&](int i, float2 f) {
      w[i] = f.x * y[i], w[i + 1] = f.y * y[i + 1], w[i + 2] = f.x * y[i + 2], w[i + 3] = f.y * y[i + 3];
    });
    split<T, 32>(w, x, x_low);
    wgmma_begin();
    multiply_upper<T>(y, x, x_low, shared(at::kN));
    wgmma_commit();
    float sum[32];
    block.wait_full(at::kBufferQ, n);
    wgmma_begin();
    delta_hopper::multiply_tokens<T>(sum, d_o, shared(at::kQ), false);
    wgmma_commit();
    wgmma_wait<1>(y);
    block.free(at::kBufferPairs);
    block.wait_full(at::kBufferE, n);
    this->add_beta_gradient(y, n);
    barrier_arrive(block.sums_full(n));
    by_token(beta, [&](int i, float2 f) { y[i] *= f.x, y[i + 1] *= f.y, y[i + 2] *= f.x, y[i + 3] *= f.y; });
    if constexpr (kDirect) put_d_v(y, n);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t d_v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) d_v[i] = pack<T>(p.scale * y[8 * j + 2 * i], p.scale * y[8 * j + 2 * i + 1]);
      store_transposed(transposed_at(shared(at::kDV) + half * kPanel, j), d_v);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = pack<T>(-y[2 * i], -y[2 * i + 1]);
    wgmma_begin();
    delta_hopper::multiply_tokens<T>(sum, x, shared(kRead), true);
    wgmma_commit();
    wgmma_wait<0>(sum);
    add<0>(sum, whole);
    wgmma_begin();
    delta_hopper::multiply_tokens<T>(sum, d_o, shared(at::kQ) + kPanel, false);
    delta_hopper::multiply_tokens<T>(sum, x, shared(kRead) + kPanel, true);
    wgmma_commit();
    wgmma_wait<0>(sum);
    block.free(at::kBufferQ);
    add<32>(sum, whole + 256);
  }
  template <int kFirst>
  __device__ __forceinline__ void add(const float (&sum)[32], uint32_t whole) {
    by_token(whole, [&](int i, float2 f) {
      s[kFirst + i] = fmaf(f.x, s[kFirst + i], sum[i]),
                 s[kFirst + i + 1] = fmaf(f.y, s[kFirst + i + 1], sum[i + 1]);
      s[kFirst + i + 2] = fmaf(f.x, s[kFirst + i + 2], sum[i + 2]);
      s[kFirst + i + 3] = fmaf(f.y, s[kFirst + i + 3], sum[i + 3]);
    });
  }

  // The first half's is do E^T, the second's dv E^T.
  __device__ __forceinline__ void score(char *to, int n) {
    const uint32_t a = shared(half ? at::kDV : at::kDO), e = shared(at::kE), beta = block.factors(n) + kBeta;
    float y[32];
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      wgmma<T, false, false>(y, advance(tile_descriptor<128>(a + i / 4 * kPanel), i % 4 * 32),
                             advance(tile_descriptor<128>(e + i / 4 * kPanel), i % 4 * 32), i > 0);
    wgmma_commit();
    wgmma_wait<0>(y);
    to += half ? Left::kScoresK : Left::kScoresQ;
    const float factor = half ? -1.0f : p.scale;
    const int own = row(), first_column = column();
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j / 2 <= warp) {
        const int c = 8 * j + first_column;
        const float2 f = load_pair(beta + 4 * c);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int i = own + 8 * r - half;  // the last column that counts
          const float first = c <= i ? factor * f.x * y[4 * j + 2 * r] : 0,
                      second = c + 1 <= i ? factor * f.y * y[4 * j + 2 * r + 1] : 0;
          const uint32_t high = pack<T>(first, second);
          char *const matrix = to + (tile_block(warp, j / 2) * 4 + 2 * r + j % 2) * 128 + 4 * lane;
          *reinterpret_cast<uint32_t *>(matrix) = high;
          *reinterpret_cast<uint32_t *>(matrix + kTile) = pack_rest<T>(first, second, high);
        }
      }
  }

  // tokens times this half's rows of a state, to `to`; the factor of row r of this lane's two.
  template <typename Factor>
  __device__ __forceinline__ void product(uint32_t tokens, uint32_t state, char *to, Factor factor) {
    float y[32];
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      wgmma<T, false, false>(
          y, advance(tile_descriptor<128>(tokens + i / 4 * kPanel), i % 4 * 32),
          advance(tile_descriptor<128>(state + i / 4 * kDim * 128 + half * 64 * 128), i % 4 * 32), i > 0);
    wgmma_commit();
    wgmma_wait<0>(y);
    const float f[2] = {factor(0), factor(1)};
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<uint2 *>(to + Left::at(8 * half + j, warp)) =
          uint2{transpose_pairs(pack<T>(f[0] * y[4 * j], f[0] * y[4 * j + 1])),
                transpose_pairs(pack<T>(f[1] * y[4 * j + 2], f[1] * y[4 * j + 3]))};
  }

  // scale 2^G_C <S, R> of each channel: half of V's columns a thread.
  __device__ __forceinline__ void share(char *to, int n) {
    const int channel = threadIdx.x / 2, panel = threadIdx.x % 2;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t where = panel * kDim * 128 + swizzled(channel, i);
      const uint4 x = load_shared_16(shared(at::kS) + where), y = load_shared_16(shared(at::kR) + where);
      const uint32_t xs[] = {x.x, x.y, x.z, x.w}, ys[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 a = unpack<T>(xs[w]), b = unpack<T>(ys[w]);
        sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (panel == 0)
      reinterpret_cast<float *>(to + Left::kShare)[channel] =
          p.scale * load_float(block.factors(n) + kWhole + 4 * channel) * sum;
  }

  __device__ __forceinline__ void run(int32_t columns) {
    gradients::load_over_scale<T>(s, p, place, columns, half);
    const int64_t item = place.index * p.heads + place.head;
    for (int n = 0; n < place.chunks; ++n) {
      walk(n);
      fence_async_proxy();
      sync_walkers();  // R and dv are there
      if constexpr (!kDirect) store_d_v(n, shared(at::kDV));
      char *const to = left.of(item, place.chunks - 1 - n);
      score(to, n);
      product(shared(at::kE), shared(at::kR), to + Left::kW,
              [&](int r) { return p.scale * load_float(block.factors(n) + kBeta + 4 * (row() + 8 * r)); });
      block.free(at::kBufferE);
      block.wait_full(at::kBufferS, n);
      product(shared(at::kDO), shared(at::kS), to + Left::kX, [&](int) { return p.scale; });
      block.free(at::kBufferDO);
      product(shared(at::kDV), shared(at::kS), to + Left::kY, [&](int) { return -1.0f; });
      share(to, n);
      block.free(at::kBufferS);
      wait_stored();   // dv
      sync_walkers();  // nobody reads R and dv any more
    }
  }
};

template <typename T, bool kDirect>
__global__ void __launch_bounds__(kBlockThreads, 1)
    walk_back(const int64_t first, const DeltaGradients p, const Slots slots, const Stretches kept, const Left left,
              const __grid_constant__ gradients::GradientMaps maps) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ Place place;  // not in registers, of which walkers have none to spare
  Place mine;
  const int64_t b = first + blockIdx.x;
  mine.slice = 0, mine.head = int32_t(b % p.heads), mine.index = b / p.heads;
  if (!start_run(p, p.filter, mine)) return;
  mine.boxed = mine.run.length / kChunk;
  mine.by_threads = mine.chunks - (maps.inputs.fits ? mine.boxed : 0);
  if (threadIdx.x == 0) place = mine;
  const Block block{shared_address(shared)};
  block.begin();
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
  if (warp < at::kWalkers / 32) {
    take_registers<at::kWalkerRegisters>();
    Walker<T, kDirect>{{p, place, block, maps, warp / 4, warp % 4, int(threadIdx.x % 32)}, left, {}}.run(
        slots.columns);
  } else {
    give_registers<at::kProducerRegisters>();
    Rows<false, kDirect, 8> rows{p, place, block, nullptr, false};
    ChannelCopies{{p, place, block, maps.inputs}}.run(slots, kept, rows);
  }
}

template <typename T>
int launch(const DeltaGradients &p, const Slots &slots, const Stretches &kept, const Left &left, Stream stream) {
  gradients::GradientMaps maps = gradients::encode_results(p);
  maps.inputs.fits = encode_boxes(maps.inputs.columns, p.d_o, p, kChunk);
  return launch_blocks(gradients::writes_directly(p) ? walk_back<T, true> : walk_back<T, false>,
                       p.num_runs * p.heads, kBlockThreads, at::kBytes, stream, p, slots, kept, left, maps);
}

}  // namespace

int launch_walk_back(const DeltaGradients &p, const Slots &slots, const Stretches &kept, const Left &left,
                     Stream stream) {
  return p.dtype == DType::kBFloat16 ? launch<__nv_bfloat16>(p, slots, kept, left, stream)
                                     : launch<__half>(p, slots, kept, left, stream);
}

int64_t walk_back_shared_bytes() { return at::kBytes; }

int load_walk_back() {
  for (const auto kernel : {walk_back<__nv_bfloat16, false>, walk_back<__nv_bfloat16, true>,
                            walk_back<__half, false>, walk_back<__half, true>})
    if (const int error = load_kernel(kernel, at::kBytes)) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta_hopper::channel
