// The walking warpgroups of the channel pass: 64 columns of y and of the state each. The state is held as R^T [64,
// a.dim], float32 accumulators in registers for the whole run; rounded as they lie they are the left operand of
// y^T = R^T a^T.
#pragma once

#include "../add_global.cuh"
#include "boxes.cuh"
#include "channel_layout.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper::channel {

// The copies of a chunk, by one lane.
template <int kDim>
__device__ __forceinline__ void load_chunk(const Params &p, const Block<kDim> &block, int32_t n) {
  using L = Layout<kDim>;
  const uint32_t s = n % L::kStages, stage = block.stage(s), full = block.full(s);
  const int32_t token = block.first + block.begin(p, n), row = block.row;
  const auto head = [&](int32_t heads) { return int32_t(int64_t(block.head) * heads / p.heads); };
  const bool wide = p.decay_dtype == DType::kFloat32;
  barrier_expect(full, 2 * L::kTile + kWalkers * kBoxPanel + kTokens * kDim * (wide ? 4 : 2));
  tma_load(stage + L::kG, &p.g, full, 0, token, block.head, row);
  tma_load_box(stage + L::kB, &p.b, full, token, 0, head(p.b_heads), row, Keep::kNormal);
  tma_load_box(stage + L::kA, &p.a, full, token, 0, head(p.a_heads), row, Keep::kNormal);
  tma_load_box(stage + L::kC, &p.c, full, token, block.slice * kWalkers, head(p.c_heads), row, Keep::kNormal);
}

template <typename T, int kDim>
class Walker {
  using L = Layout<kDim>;
  static constexpr int kCount = kDim / 2;  // accumulators of the state

 public:
  __device__ __forceinline__ Walker(const Params &p, const Block<kDim> &block, int group)
      : p_(p),
        block_(block),
        group_(group),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x % 128 / 32),
        column_(block.slice * kSlice + group * kWalkerColumns) {}

  __device__ __forceinline__ void run() {
    load();
    const bool copies = __shfl_sync(~0u, int(threadIdx.x) < 32, 0);
    RingIndex<L::kStages> ring;
    for (int32_t n = 0; n < block_.chunks; ++n) {
      take(n, ring);
      // The stage of the chunk before, which the other walker has most likely left, too.
      if (copies && n > 0 && n - 1 + L::kStages < block_.chunks) {
        const auto before = RingIndex<L::kStages>::of(n - 1);
        wait_this_round(block_.empty(before.stage), before);
        if (lane_ == 0) load_chunk(p_, block_, n - 1 + L::kStages);
        __syncwarp();
      }
      ring.next();
    }
    wait_this_round(block_.ready(ring.stage), ring);
    decay(block_.beside(ring.stage) + L::kBefore);
    store();
  }

 private:
  // Calls f(element, where it is in a state in memory).
  template <typename X, typename F>
  __device__ __forceinline__ void each(X *state, F f) {
    state += lane_ % 4 * 2 * p_.y_dim + column_ + 16 * warp_ + lane_ / 4;
    const int32_t step = opaque(p_.y_dim);
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      f(state_[i], state), f(state_[i + 2], state + 8);
      f(state_[i + 1], state + step), f(state_[i + 3], state + step + 8);
      state += 8 * step;
    }
  }
  // Else the compiler keeps all places in a state from its load to its store.
  static __device__ __forceinline__ int32_t opaque(int32_t x) {
    asm volatile("" : "+r"(x));
    return x;
  }
  __device__ __forceinline__ bool exists() const { return column_ < p_.y_dim; }
  __device__ __forceinline__ void load() {
    const auto all = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) f(state_[i]);
    };
    all([](float &s) { s = 0; });
    if (!p_.state_in || !exists()) return;
    each(p_.state_in + block_.state(p_) * p_.state_size, [](float &s, const float *from) { s = *from; });
    all([&](float &s) { s *= p_.in_scale; });
  }
  __device__ __forceinline__ void store() {
    float *to = p_.state_out;
    int64_t at = block_.state(p_);
    if (p_.edge_state) {
      const int64_t edge = p_.reversed ? block_.run(p_).starts : block_.run(p_).ends;
      if (edge < 0) return;
      to = p_.edge_state, at = edge * p_.heads + block_.head;
    }
    if (!to || !exists()) return;
    each(to + at * p_.state_size, [&](float s, float *there) { *there = p_.out_scale * s; });
  }

  __device__ __forceinline__ void decay(uint32_t factors) {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const float2 f = load_shared_pair(factors + 32 * j + lane_ % 4 * 8);
      state_[4 * j] *= f.x, state_[4 * j + 1] *= f.y, state_[4 * j + 2] *= f.x, state_[4 * j + 3] *= f.y;
    }
  }

  // What a chunk adds to 64 rows of the state.
  __device__ __forceinline__ void start_update(float (&sum)[32], uint64_t c, uint32_t stage, int panel) const {
    const uint64_t b = tile_descriptor<128>(stage + L::kB + panel * kBoxPanel),
                   low = tile_descriptor<128>(stage + L::kLow + panel * kBoxPanel);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      wgmma<T, true, true>(sum, advance(c, k * 2048), advance(b, k * 2048), k > 0);
      wgmma<T, true, true>(sum, advance(c, k * 2048), advance(low, k * 2048), true);
    }
    wgmma_commit();
  }
  // The sum over a chunk is the tensor cores', which cut off what they add; that over chunks is IEEE float32.
  __device__ __forceinline__ void add(const float (&sum)[32], int panel) {
#pragma unroll
    for (int i = 0; i < 32; ++i) state_[32 * panel + i] += sum[i];
  }

  // y^T = R^T a^T, of the state as it is now.
  __device__ __forceinline__ void round(uint32_t (&rounded)[kCount / 2]) const {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) rounded[i] = pack<T>(state_[2 * i], state_[2 * i + 1]);
  }
  static __device__ __forceinline__ void read_state(float (&y)[16], const uint32_t (&rounded)[kCount / 2],
                                                    uint64_t a) {
#pragma unroll
    for (int i = 0; i < 16; ++i) y[i] = 0;
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
      wgmma<T, false>(y, rounded + 4 * k, advance(a, k / 4 * kBoxPanel + k % 4 * 32));
  }
  static __device__ __forceinline__ void add_scores(float (&y)[16], uint64_t c, uint64_t scores) {
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k)
      wgmma<T, true, false>(y, advance(c, k * 2048), advance(scores, k * 32), true);
  }

  __device__ __forceinline__ void take(int32_t n, RingIndex<L::kStages> ring) {
    const uint32_t stage = block_.stage(ring.stage), beside = block_.beside(ring.stage);
    wait_this_round(block_.full(ring.stage), ring);
    wait_this_round(block_.ready(ring.stage), ring);
    const Pivot pivot = Pivot(__shfl_sync(~0u, int(block_.pivot(ring.stage)), 0));
    if (pivot == Pivot::kChunk) {
      take_chunk(stage, beside);
    } else {
      take_halves(stage, beside, pivot);
    }
    warp_arrive(block_.empty(ring.stage));
    if (exists()) store_y(block_.begin(p_, n));
  }

  __device__ __forceinline__ void take_chunk(uint32_t stage, uint32_t beside) {
    const uint64_t c = tile_descriptor<128>(stage + L::kC + group_ * kBoxPanel);
    float sum[32], y[16];
    uint32_t rounded[kCount / 2];
    start_update(sum, c, stage, 0);
    decay(beside + L::kBefore);
    round(rounded);
    read_state(y, rounded, tile_descriptor<128>(stage + L::kA));
    add_scores(y, c, tile_descriptor<64>(beside + L::kScores));
    wgmma_commit();
    wgmma_wait<1>(sum);
    add(sum, 0);
    wgmma_wait<0>(y);
    if constexpr (L::kPanels > 1) start_update(sum, c, stage, 1);
    stage_y(y, 3);
    if constexpr (L::kPanels > 1) {
      wgmma_wait<0>(sum);
      add(sum, 1);
    }
  }

  // The state goes through half chunks; each finds y of all tokens and keeps its own.
  __device__ __forceinline__ void take_halves(uint32_t stage, uint32_t beside, Pivot pivot) {
    const uint64_t c = tile_descriptor<128>(stage + L::kC + group_ * kBoxPanel);
#pragma unroll 1
    for (int s = 0; s < 2; ++s) {
      const int half = p_.reversed ? 1 - s : s;
      if (s == 0 || pivot == Pivot::kHalves) decay(beside + (s == 0 ? L::kBefore : L::kMiddle));
      {
        float y[16];
        uint32_t rounded[kCount / 2];
        round(rounded);
        read_state(y, rounded, tile_descriptor<128>(stage + L::kA));
        add_scores(y, c, tile_descriptor<64>(beside + L::kScores));
        wgmma_commit();
        wgmma_wait<0>(y);
        stage_y(y, 1 << half);
      }
      if (pivot == Pivot::kNone) decay(s == 0 ? beside + L::kMiddle : stage + L::kLast);
#pragma unroll
      for (int panel = 0; panel < L::kPanels; ++panel) {
        float sum[32];
        const uint64_t b = tile_descriptor<128>(stage + L::kB + panel * kBoxPanel + half * 2048),
                       low = tile_descriptor<128>(stage + L::kLow + panel * kBoxPanel + half * 2048);
        wgmma_begin();
        wgmma<T, true, true>(sum, advance(c, half * 2048), b, false);
        wgmma<T, true, true>(sum, advance(c, half * 2048), low, true);
        wgmma_commit();
        wgmma_wait<0>(sum);
        add(sum, panel);
      }
    }
  }

  // This warp's 16 columns of y: rows of 32 bytes, the halves of every other four of them swapped, so that eight
  // rows meet all banks.
  __device__ __forceinline__ uint32_t place(uint32_t token, uint32_t half) const {
    return block_.base + L::kStaging + (4 * group_ + warp_) * L::kWarpStaging + token * 32 +
           ((half ^ (token >> 2 & 1)) << 4);
  }
  __device__ __forceinline__ void stage_y(const float (&y)[16], int halves) const {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      if (!(halves >> j / 2 & 1)) continue;
      uint32_t m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = pack<T>(y[4 * j + 2 * i] * p_.scale, y[4 * j + 2 * i + 1] * p_.scale);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       place(8 * (j + lane_ / 16) + lane_ % 8, lane_ / 8 & 1)),
                   "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                   : "memory");
    }
    __syncwarp();
  }
  __device__ __forceinline__ void store_y(int32_t begin) const {
    T *const to = static_cast<T *>(p_.y) + block_.row * p_.y_strides.batch + block_.head * p_.y_strides.head +
                  (block_.first + begin) * p_.y_strides.token + column_ + 16 * warp_ + lane_ % 2 * 8;
    const int32_t tokens = block_.tokens(begin);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t token = 16 * i + lane_ / 2;
      if (token >= tokens) continue;
      const uint4 v = load_shared_16(place(token, lane_ % 2));
      T *const at = to + token * p_.y_strides.token;
      if (p_.adds) {
        add_global<T>(reinterpret_cast<uint4 *>(at), v);
      } else {
        store_global_16(at, v);
      }
    }
  }

  const Params &p_;
  const Block<kDim> &block_;
  const int group_, lane_, warp_;
  const int32_t column_;
  float state_[kCount];
};

}  // namespace lasp::gpu::hopper::channel
