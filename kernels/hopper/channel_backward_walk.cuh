// The walking warpgroups of the backward walks with per-channel decay: 64 channels each, by the formulas of
// ../mma/channel_walk.cuh. The state lies as [64 channels, columns], float32 accumulators in registers for the
// whole run. Rounded as they lie they are the left operand of y^T = s a^T; c^T times the decay is the left operand
// of their update and of the scores' product. All factors of products but the inputs are a high and a low part.
// What belongs to a channel stays in the four lanes that own its row.
#pragma once

#include "channel_backward_memory.cuh"
#include "wgmma.cuh"

namespace lasp::gpu::hopper::channel_backward {

using mma::channel::running_sums;
using mma::channel::Sum;
using mma::channel::sum_and_stop;
using mma::channel::sum_to_last;
using mma::channel::widen;

template <typename T, int kHeads, int kColumns, bool kReversed, bool kPlain>
class Walker : WalkerMemory<T, kHeads, kColumns, kReversed, kPlain> {
  using Memory = WalkerMemory<T, kHeads, kColumns, kReversed, kPlain>;
  using Memory::adds, Memory::block_, Memory::ends, Memory::exists_, Memory::group_, Memory::keys_at,
      Memory::load_x, Memory::read_full, Memory::read_pair, Memory::scores, Memory::side, Memory::state_at,
      Memory::store_halves, Memory::store_x, Memory::walk_, Memory::y_, Memory::y_bytes_;
  using typename Memory::B, typename Memory::L;
  static constexpr int kSteps = kColumns / 16, kCount = kColumns / 2;

 public:
  __device__ __forceinline__ Walker(const Params &p, const B &block, int group, bool exists)
      : Memory(p, block, group, exists) {}

  __device__ __forceinline__ void run() {
    read_state();
    if (kReversed && walk_.x) {
#pragma unroll
      for (int h = 0; h < 2; ++h) boundary_[h] = adds() || !exists_ ? 0.0f : ends()[8 * h];
    }
    RingIndex<L::kStages> ring;
#pragma unroll 1
    for (int32_t n = 0; n < block_.chunks; ++n) {
      const uint32_t stage = block_.stage(ring.stage);
      wait_this_round(block_.full(ring.stage), ring);
      barrier_wait(block_.ready(n), n / L::kBesides % 2);
      Elements sums[2];
      read_full(sums[0], stage + L::kG, 0), read_full(sums[1], stage + L::kG, 1);
      const Way way = read_way(n, 0);
      const uint32_t beside = block_.beside(n);
      if (way == Way::kRescaled) scale_state(read_pair(beside + L::kFactor));
      const Place at = {stage, beside, block_.begin(n), block_.tokens(block_.begin(n))};
      if (way != Way::kHalves) {
        take(at, sums);
      } else {
#pragma unroll 1
        for (int i = 0; i < 2; ++i) take_half(at, i, read_way(n, 1 + i));
      }
      warp_arrive(block_.empty(ring.stage));
      ring.next();
    }
    if (!kReversed && walk_.x) write_ends();
  }

 private:
  // ---- Products

  __device__ __forceinline__ uint64_t a(const Place &at) const {
    return tile_descriptor<128>(side(at.stage + L::kA));
  }
  __device__ __forceinline__ uint64_t b(const Place &at) const {
    const uint32_t from = side(at.stage + L::kB);
    return kColumns == 128 ? wide_descriptor(from, kBox) : tile_descriptor<128>(from);
  }

  __device__ __forceinline__ void scale_state(float2 factor) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) s_[i] *= i % 4 < 2 ? factor.x : factor.y;
  }

  // y += s a, not yet committed.
  __device__ __forceinline__ void multiply_state(float (&y)[16], uint64_t a) const {
    Fragment high[kSteps], low[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float *const x = s_ + 8 * k + 2 * i;
        high[k][i] = pack<T>(x[0], x[1]);
        low[k][i] = mma::pack_rest<T>(x[0], x[1], high[k][i]);
      }
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const uint64_t right = advance(a, k / 4 * kBox + k % 4 * 32);
      wgmma<T, false>(y, high[k], right);
      wgmma<T, false>(y, low[k], right);
    }
  }
  // y += c P, of pairs of different tokens, with the scores' columns of this half of the tokens.
  static __device__ __forceinline__ void multiply_scores(float (&y)[16], uint32_t scores, int half,
                                                         const Fragment &high, const Fragment &low) {
    const uint64_t of_high = tile_descriptor<64>(scores + L::kHigh), of_low = tile_descriptor<64>(scores + L::kLow);
    wgmma<T, false>(y, high, advance(of_high, half * 32));
    wgmma<T, false>(y, low, advance(of_high, half * 32));
    wgmma<T, false>(y, high, advance(of_low, half * 32));
  }
  // s += c b^T, of a half's tokens.
  __device__ __forceinline__ void update_state(uint64_t b, int half, const Fragment &high, const Fragment &low) {
    wgmma<T, true>(s_, high, advance(b, half * (kHalf * 128)));
    wgmma<T, true>(s_, low, advance(b, half * (kHalf * 128)));
  }

  // c times 2^(from - G), a high and a low part.
  static __device__ __forceinline__ void scale_tokens(Fragment &high, Fragment &low, const Fragment &c_raw,
                                                      const Elements &sums, const float (&from)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int h = i % 2, e = i / 2 * 2;
      high[i] = mma::scale_pair<T>(
          c_raw[i], float2{exp2_fast(from[h] - sums[h][e]), exp2_fast(from[h] - sums[h][e + 1])}, &low[i]);
    }
  }
  // Of a half, out of y: y 2^(G + from).
  __device__ __forceinline__ void finish_y(Elements &out, const float (&y)[8], const Elements &sums,
                                           const float (&left)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float from = left[h] + walk_.log2_scale;
#pragma unroll
      for (int e = 0; e < 4; ++e) out[h][e] = exp2_fast(from + sums[h][e]) * y[e / 2 * 4 + 2 * h + e % 2];
    }
  }
  static __device__ __forceinline__ void take_part(float (&to)[8], const float (&y)[16], int half) {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = half ? y[8 + i] : y[i];
  }

  // ---- A chunk

  // As a whole: y is finished while the state is updated.
  __device__ __forceinline__ void take(const Place &at, const Elements (&sums)[2]) {
    float y[16] = {};
    multiply_state(y, a(at));
    const float2 pair = read_pair(at.beside + L::kLeft);
    const float left[2] = {pair.x, pair.y};
    Fragment high[2], low[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Fragment c;
      load_matrices_transposed(c, keys_at(at.stage + L::kC, half));
      scale_tokens(high[half], low[half], c, sums[half], {-left[0], -left[1]});
    }
    wgmma_begin();
#pragma unroll
    for (int half = 0; half < 2; ++half) multiply_scores(y, scores(at), half, high[half], low[half]);
    wgmma_commit();
    wgmma_wait<0>(y);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // a warp waits where it begins products: so they are begun between other things
      const int half = kReversed ? 1 - i : i;
      wgmma_begin();
      update_state(b(at), half, high[half], low[half]);
      float part[8];
      take_part(part, y, half);
      Elements out;
      finish_y(out, part, sums[half], left);
      leave(at, half, out, true);
    }
    wgmma_commit();
    wgmma_wait<0>(s_);
  }

  __device__ __forceinline__ Way read_way(int32_t n, int of) const {
    return Way(__shfl_sync(~0u, int(block_.way(n, of)), 0));
  }

  // As the i-th of two half chunks.
  __device__ __forceinline__ void take_half(const Place &at, int i, Way way) {
    const int half = kReversed ? 1 - i : i;
    const bool fits = way != Way::kPairs;
    if (way != Way::kWhole) scale_state(read_pair(at.beside + L::kFactor + i * L::kOfRows));
    const float2 pair = read_pair(at.beside + L::kLeft + i * L::kOfRows);
    const float left[2] = {pair.x, pair.y};
    float y[16] = {}, part[8];
    multiply_state(y, a(at));
    wgmma_commit();
    Elements sums, out;
    read_full(sums, at.stage + L::kG, half);
    Fragment c, high, low;
    load_matrices_transposed(c, keys_at(at.stage + L::kC, half));
    if (fits) {
      scale_tokens(high, low, c, sums, {-left[0], -left[1]});
      wgmma_begin();
      multiply_scores(y, scores(at), half, high, low);
      wgmma_commit();
      wgmma_wait<0>(y);
      take_part(part, y, half);
      finish_y(out, part, sums, left);
    } else {
      float total[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) total[h] = running_sums < kReversed ? Sum::kAfter : Sum::kForward > (sums[h]);
      wgmma_wait<0>(y);
      take_part(part, y, half);
      finish_y(out, part, sums, left);
      add_pairs(out, sums, c, scores(at) + L::kPairs + half * L::kSquare);
      scale_state({exp2_fast(total[0]), exp2_fast(total[1])});
      if (!kReversed) {
        const int last = min(kHalf, at.tokens - half * kHalf) - 1;
        total[0] = sum_to_last(sums[0], last), total[1] = sum_to_last(sums[1], last);
      }
      scale_tokens(high, low, c, sums, {total[0], total[1]});
    }
    wgmma_begin();
    update_state(b(at), half, high, low);
    wgmma_commit();
    leave(at, half, out, fits);
    wgmma_wait<0>(s_);
  }

  // y += c P pair by pair, for any decay; y in its own scale.
  __device__ __forceinline__ void add_pairs(Elements &y, const Elements &sums, const Fragment &c,
                                            uint32_t square) const {
#pragma unroll 2
    for (int other = 0; other < kHalf; ++other) {
      const int source = other / 2 % 4;
      float score[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        score[e] = walk_.scale * read_shared(square + token_of(e) * L::kPairRow + other * 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float even = other < 8 ? sums[h][0] : sums[h][2], odd = other < 8 ? sums[h][1] : sums[h][3];
        const float g = __shfl_sync(~0u, other % 2 ? odd : even, source, 4);
        const float2 two = unpack<T>(__shfl_sync(~0u, other < 8 ? c[h] : c[2 + h], source, 4));
        const float x = other % 2 ? two.y : two.x;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (kReversed ? other > token_of(e) : other < token_of(e))
            y[h][e] = fmaf(exp2_fast(sums[h][e] - g) * x, score[e], y[h][e]);
      }
    }
  }

  // ---- Results

  // Of a half's tokens: `out` is y without each token's own pair.
  __device__ __forceinline__ void leave(const Place &at, int half, Elements &out, bool fits) {
    Fragment raw;
    Elements c;
    load_matrices_transposed(raw, keys_at(at.stage + L::kC, half));
    widen<T>(c, raw);
    const int32_t token = at.begin + half * kHalf, count = exists_ ? at.tokens - half * kHalf : 0;
    if (walk_.x) {
      Elements terms;
      if (kReversed) decay_gradient(terms, out, c, at, half, fits);
      store_x(kReversed ? terms : out, at, half, token, count);
    }
    const uint32_t square = scores(at) + L::kPairs + half * L::kSquare;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float same = walk_.scale * read_shared(square + token_of(e) * (L::kPairRow + 4));
#pragma unroll
      for (int h = 0; h < 2; ++h) out[h][e] = fmaf(c[h][e], same, out[h][e]);
    }
    Fragment rounded;
    round<T>(out, rounded);
    store_halves<true>(rounded, y_, y_bytes_, at, half, token, count);
  }

  // d_g[t] = <state, gradient> at the half's end + the sum of q x - k y from t on.
  __device__ __forceinline__ void decay_gradient(Elements &terms, const Elements &y, const Elements &q,
                                                 const Place &at, int half, bool fits) {
    load_x(terms, at, half);
    Fragment raw;
    Elements k;
    load_matrices_transposed(raw, keys_at(at.stage + L::kPartner, half));
    widen<T>(k, raw);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e) terms[h][e] = fmaf(-k[h][e], y[h][e], terms[h][e] * q[h][e]);
    if (!fits) {
      Elements g;
      read_full(g, at.stage + L::kG, half);
      return sum_and_stop(terms, boundary_, g, [] { return mma::thread_again() % 4; });
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = running_sums<Sum::kBackward>(terms[h]);
#pragma unroll
      for (int e = 0; e < 4; ++e) terms[h][e] += boundary_[h];
      boundary_[h] += total;
    }
  }

  // ---- The state in memory

  // Calls f(element pair, where it is behind state_at()).
  template <typename F>
  __device__ __forceinline__ void each_pair(F f) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
      f(s_[2 * i], s_[2 * i + 1], i % 2, i % 2 * 8 * walk_.state_row + i / 2 * 8);
  }
  __device__ __forceinline__ void read_state() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) s_[i] = 0;
    if (!walk_.state) return;
    const float *const from = walk_.state + state_at(walk_.runs[block_.index].state);
    each_pair([&](float &x, float &y, int, int64_t at) {
      const float2 two = *reinterpret_cast<const float2 *>(from + at);
      x = two.x * walk_.in_scale, y = two.y * walk_.in_scale;
    });
  }
  // Forward: <S, dS> of each channel at the run's end.
  __device__ __forceinline__ void write_ends() {
    float sum[2] = {0, 0};
    if (walk_.far_state) {
      const float *const from = walk_.far_state + state_at(walk_.far_runs[block_.index].state);
      each_pair([&](float x, float y, int h, int64_t at) {
        const float2 two = *reinterpret_cast<const float2 *>(from + at);
        sum[h] = fmaf(x, two.x, fmaf(y, two.y, sum[h]));
      });
    }
    barrier_wait(block_.ready(block_.chunks), block_.chunks / L::kBesides % 2);
    if (!exists_) return;
    const float2 left = read_pair(block_.beside(block_.chunks) + L::kLeft);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
      float &to = ends()[8 * h];
      if (mma::thread_again() % 4 == 0) to = (adds() ? to : 0.0f) + sum[h] * exp2_fast(h ? left.y : left.x);
    }
  }

  float s_[kCount], boundary_[2];
};

}  // namespace lasp::gpu::hopper::channel_backward
