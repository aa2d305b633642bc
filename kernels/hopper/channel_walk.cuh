// The walking warpgroups of the channel pass: a unit each. The state is held as R^T [64, channels of a head],
// float32 accumulators in registers for the whole run; rounded as they lie they are the left operand of y^T = R^T
// a^T.
#pragma once

#include "../add_global.cuh"
#include "channel_layout.cuh"
#include "channel_load.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper::channel {

template <typename T, int kHeads>
class Walker {
  using L = Layout<kHeads>;
  static constexpr int kCount = L::kWidth / 2;  // accumulators of the state

 public:
  __device__ __forceinline__ Walker(const Params &p, const Block<kHeads> &block, int group)
      : p_(p),
        block_(block),
        group_(group),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x % 128 / 32),
        column_(kWalkerColumns * (of_unit(block.panels) + (kHeads == 1 ? group : 0))) {}

  __device__ __forceinline__ void run() {
    load();
    RingIndex<L::kStages> ring;
    for (int32_t n = 0; n < block_.chunks; ++n) {
      if (n > 0 && n % kWalkers == group_) reload(n - 1);
      take(n, ring);
      ring.next();
    }
    wait_this_round(block_.ready(ring.stage), ring);
    decay(block_.beside(ring.stage) + L::kBefore);
    store();
  }

 private:
  // The stage of chunk n, which is done with, gets another one. A walker has to do this for every other chunk: by
  // one of them alone, or by a scaler, it takes longer.
  __device__ __forceinline__ void reload(int32_t n) const {
    if (n + L::kStages >= block_.chunks || __shfl_sync(~0u, warp_, 0) > 0) return;
    const auto ring = RingIndex<L::kStages>::of(n);
    wait_this_round(block_.empty(ring.stage), ring);
    if (lane_ == 0) load_chunk(p_, block_, n + L::kStages);
    __syncwarp();
  }
  __device__ __forceinline__ int32_t of_unit(const int32_t (&x)[kHeads]) const {
    return kHeads == 1 || group_ == 0 ? x[0] : x[kHeads - 1];
  }
  __device__ __forceinline__ int32_t head() const { return of_unit(block_.heads); }
  // Of 64 channels of this head's.
  __device__ __forceinline__ uint32_t tile(uint32_t stage, int panel) const {
    return stage + (panel + (kHeads == 1 ? 0 : group_)) * kBoxPanel;
  }
  __device__ __forceinline__ uint64_t scores(uint32_t beside) const {
    return tile_descriptor<64>(beside + L::kScores + (kHeads == 1 ? 0 : group_ * L::kHeadScores));
  }
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
    each(p_.state_in + block_.state(p_, head()) * p_.state_size, [](float &s, const float *from) { s = *from; });
    all([&](float &s) { s *= p_.in_scale; });
  }
  __device__ __forceinline__ void store() {
    float *to = p_.state_out;
    int64_t at = block_.state(p_, head());
    if (p_.edge_state) {
      const int64_t edge = p_.reversed ? block_.run(p_).starts : block_.run(p_).ends;
      if (edge < 0) return;
      to = p_.edge_state, at = edge * p_.heads + head();
    }
    if (!to || !exists()) return;
    each(to + at * p_.state_size, [&](float s, float *there) { *there = p_.out_scale * s; });
  }

  __device__ __forceinline__ void decay(uint32_t factors) {
    if (kHeads > 1) factors += group_ * 4 * L::kWidth;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const float2 f = load_shared_pair(factors + 32 * j + lane_ % 4 * 8);
      state_[4 * j] *= f.x, state_[4 * j + 1] *= f.y, state_[4 * j + 2] *= f.x, state_[4 * j + 3] *= f.y;
    }
  }

  // What a chunk adds to 64 rows of the state.
  __device__ __forceinline__ void start_update(float (&sum)[32], uint64_t c, uint32_t stage, int panel) const {
    const uint64_t b = tile_descriptor<128>(tile(stage, panel) + L::kB),
                   low = tile_descriptor<128>(tile(stage, panel) + L::kLow);
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
    for (int k = 0; k < L::kWidth / 16; ++k)
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
    read_state(y, rounded, tile_descriptor<128>(tile(stage, 0) + L::kA));
    add_scores(y, c, scores(beside));
    wgmma_commit();
    wgmma_wait<1>(sum);
    add(sum, 0);
    if constexpr (L::kHeadPanels > 1) {
      start_update(sum, c, stage, 1);
      wgmma_wait<1>(y);
      stage_y(y, 3);
      wgmma_wait<0>(sum);
      add(sum, 1);
    } else {
      wgmma_wait<0>(y);
      stage_y(y, 3);
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
        read_state(y, rounded, tile_descriptor<128>(tile(stage, 0) + L::kA));
        add_scores(y, c, scores(beside));
        wgmma_commit();
        wgmma_wait<0>(y);
        stage_y(y, 1 << half);
      }
      if (pivot == Pivot::kNone) decay(s == 0 ? beside + L::kMiddle : stage + L::kLast);
#pragma unroll
      for (int panel = 0; panel < L::kHeadPanels; ++panel) {
        float sum[32];
        const uint64_t b = tile_descriptor<128>(tile(stage, panel) + L::kB + half * 2048),
                       low = tile_descriptor<128>(tile(stage, panel) + L::kLow + half * 2048);
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
    T *const to = static_cast<T *>(p_.y) + block_.row * p_.y_strides.batch + head() * p_.y_strides.head +
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
  const Block<kHeads> &block_;
  const int group_, lane_, warp_;
  const int32_t column_;
  float state_[kCount];
};

}  // namespace lasp::gpu::hopper::channel
