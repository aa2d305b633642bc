// The helping warpgroup of the backward walks with per-channel decay: the copies, and for each chunk its summed
// decays, its Way and its scores.
//
// A thread has a channel. The state of the walks is 2^L s with an L for each channel (../mma/channel_walk.cuh). L
// takes up the decays of chunk after chunk, so that s is multiplied only when the factors of the next chunk would
// leave their limits. Where no L keeps a chunk's factors within them, the chunk goes as two half chunks. Where none
// keeps a half chunk's, its decays stay as they are, and its pairs go one by one.
#pragma once

#include "../mma/channel_parts.cuh"
#include "boxes.cuh"
#include "channel_backward_layout.cuh"

namespace lasp::gpu::hopper::channel_backward {

using mma::channel::read_shared;

template <typename T, int kHeads, int kColumns, bool kReversed, bool kPlain>
class Helper {
  using L = Layout<kHeads, kColumns, kReversed>;
  using B = Block<kHeads, kColumns, kReversed>;
  static constexpr float kLimit = mma::channel::kLimit<T>;

 public:
  __device__ __forceinline__ Helper(const Params &p, const B &block)
      : p_(p), block_(block), thread_(threadIdx.x % 128) {}

  __device__ __forceinline__ void run() {
    if (thread_ == 0) {
      put_origins();
      for (int32_t n = 0; n < min(L::kStages, block_.chunks); ++n) load(n);
    }
    RingIndex<L::kStages> ring, freed;
    for (int32_t n = 0; n < block_.chunks; ++n) {
      if (n >= 2) {  // chunk n - 2 is done with: its stage, and what is beside it
        wait_this_round(block_.empty(freed.stage), freed);
        if (thread_ == 0 && n - 2 + L::kStages < block_.chunks) {
          fence_async_proxy();  // y went through the place of c
          load(n - 2 + L::kStages);
        }
        freed.next();
      }
      prepare(n, ring);
      ring.next();
    }
    if (kReversed) return;
    if (block_.chunks >= 2) wait_this_round(block_.empty(freed.stage), freed);
    store_shared_float(block_.beside(block_.chunks) + L::kLeft + 4 * thread_, left_);  // of the run's end
    warp_arrive(block_.ready(block_.chunks));
  }

 private:
  __device__ __forceinline__ bool x_is_float() const { return kPlain || p_.walk.x_is_float; }
  __device__ __forceinline__ bool adds() const { return !kPlain && p_.walk.adds; }
  static __device__ __forceinline__ void sync() { mma::sync_some<128>(1); }
  static __device__ __forceinline__ bool sync_or(bool any) { return mma::sync_some_or<128>(1, any); }

  // Which heads of the tensors they are, for load(), which has no time to divide.
  __device__ __forceinline__ void put_origins() const {
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const auto head = [&](const Tensor &t) {
        return uint32_t(int64_t{block_.heads[i]} * t.heads / p_.walk.heads);
      };
      store_shared_16(origin(i), uint4{head(p_.walk.a), head(p_.walk.b), head(p_.walk.c), head(p_.walk.partner)});
    }
  }
  __device__ __forceinline__ uint32_t origin(int i) const { return block_.base + L::kOrigins + 16 * i; }

  // The copies of chunk n, by one lane.
  __device__ __forceinline__ void load(int32_t n) const {
    const Walk &walk = p_.walk;
    const uint32_t s = n % L::kStages, stage = block_.stage(s), full = block_.full(s);
    const int32_t token = block_.first + block_.begin(n), row = block_.row;
    const bool takes_x = kReversed && walk.x, takes_float = takes_x && x_is_float() && !adds(),
               takes_halves = takes_x && !x_is_float();
    barrier_expect(full, 2 * L::kSide + L::kKeys + (walk.decay_is_float ? L::kFull : L::kKeys) +
                             (takes_x ? L::kKeys : 0) + (takes_float || takes_halves ? L::kFull : 0));
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      const int32_t head = block_.heads[i];
      const uint4 of = load_shared_16(origin(i));
      const auto box = [&](uint32_t to, const CUtensorMap &map, int32_t panel, int32_t its_head) {
        tma_load_box(stage + to, &map, full, token, panel, its_head, row, Keep::kNormal);
      };
      constexpr int kPanels = kWalkers / kHeads;  // of 64 channels
      const int32_t panel = block_.tile * kPanels;
      const uint32_t keys = i * kPanels * kBox;
      box(L::kA + i * L::kSidePanels * kBox, p_.a, 0, of.x);
      box(L::kB + i * L::kSidePanels * kBox, p_.b, 0, of.y);
      box(L::kC + keys, p_.c, panel, of.z);
      box(L::kG + keys * (walk.decay_is_float ? 2 : 1), p_.g, panel * (walk.decay_is_float ? 2 : 1), head);
      if (takes_x) box(L::kPartner + keys, p_.partner, panel, of.w);
      if (takes_float) box(L::kX + 2 * keys, p_.x, 2 * panel, head);
      if (takes_halves) {
        box(L::kX + keys, p_.x, panel, head);
        box(L::kX + L::kKeys + keys, p_.x_low, panel, head);
      }
    }
  }

  __device__ __forceinline__ void prepare(int32_t n, RingIndex<L::kStages> ring) {
    const uint32_t stage = block_.stage(ring.stage), beside = block_.beside(n);
    const int32_t tokens = block_.tokens(block_.begin(n));
    wait_this_round(block_.full(ring.stage), ring);
    if (tokens < kTokens) clear_rows(stage, tokens);
    sum_decays(stage, beside, n);
    score(stage, beside);
    fence_async_proxy();
    warp_arrive(block_.ready(n));
  }

  // Rows past the run's end are another sequence's, or anything.
  __device__ __forceinline__ void clear_rows(uint32_t stage, int32_t tokens) const {
    const uint4 zero = {0, 0, 0, 0};
    for (int panel = 0; panel < L::kStage / kBox; ++panel)
      for (int at = tokens * 128 + thread_ * 16; at < kBox; at += 2048)
        store_shared_16(stage + panel * kBox + at, zero);
    sync();
  }

  // Where this thread's channel has token t, in panels of float32.
  __device__ __forceinline__ uint32_t full_at(uint32_t g, int t) const {
    return g + thread_ / 32 * kBox + t * 128 + (((thread_ % 32 / 4) ^ (t & 7)) << 4) + thread_ % 4 * 4;
  }
  __device__ __forceinline__ void read_decays(float (&to)[kTokens], uint32_t g) const {
    if (p_.walk.decay_is_float) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) to[t] = read_shared(full_at(g, t));
    } else {
      const uint32_t from = g + thread_ / 64 * kBox + thread_ % 8 * 2;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        uint16_t bits;
        asm volatile("ld.shared.u16 %0, [%1];"
                     : "=h"(bits)
                     : "r"(from + t * 128 + (((thread_ % 64 / 8) ^ (t & 7)) << 4))
                     : "memory");
        to[t] = unpack<T>(bits).x;
      }
      sync();  // the sums take its place
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) to[t] = clamped_log2(to[t]);
  }

  // Sums of log2 decays from the state's end of some tokens on: forward up to a token, reversed after it.
  struct Sums {
    float least = 0, most = 0, total = 0;
    __device__ __forceinline__ bool beyond(float left) const {
      return left + least < -kLimit || left + most > kLimit;
    }
  };
  // Of kCount tokens that begin at `first`; written in place of the decays.
  template <int kCount>
  __device__ __forceinline__ Sums put_sums(const float (&decay)[kCount], uint32_t g, int first) const {
    Sums sums;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int t = kReversed ? kCount - 1 - i : i;
      const float next = sums.total + decay[t];
      store_shared_float(full_at(g, first + t), kReversed ? sums.total : next);
      sums.total = next, sums.least = fminf(sums.least, next), sums.most = fmaxf(sums.most, next);
    }
    return sums;
  }
  template <int kCount>
  __device__ __forceinline__ void put_decays(const float (&decay)[kCount], uint32_t g, int first) const {
#pragma unroll
    for (int t = 0; t < kCount; ++t) store_shared_float(full_at(g, first + t), decay[t]);
  }

  // Makes L fit, with what walkers need to know of it; `none` and an L of 0 where there is no such L.
  __device__ __forceinline__ Way choose_left(const Sums &sums, Way none, uint32_t left, uint32_t factor) {
    Way way = Way::kWhole;
    if (sync_or(sums.beyond(left_))) {
      const float chosen = sums.beyond(0) ? -0.5f * (sums.least + sums.most) : 0.0f;
      way = sync_or(sums.beyond(chosen)) ? none : Way::kRescaled;
      if (way == Way::kHalves) return way;
      const float to = way == none ? 0.0f : chosen;
      store_shared_float(factor + 4 * thread_, exp2_fast(left_ - to));
      left_ = to;
    }
    store_shared_float(left + 4 * thread_, left_);
    if (way != none) left_ += sums.total;
    return way;
  }

  __device__ __forceinline__ void sum_decays(uint32_t stage, uint32_t beside, int32_t n) {
    const uint32_t g = stage + L::kG;
    {
      float decay[kTokens];
      read_decays(decay, g);
      const Sums sums = put_sums(decay, g, 0);
      const Way way = choose_left(sums, Way::kHalves, beside + L::kLeft, beside + L::kFactor);
      if (thread_ == 0) block_.way(n, 0) = way;
      if (way != Way::kHalves) return;
      put_decays(decay, g, 0);
    }
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const int first = (kReversed ? 1 - i : i) * kHalf, of_half = i * L::kOfRows;
      float decay[kHalf];
#pragma unroll
      for (int t = 0; t < kHalf; ++t) decay[t] = read_shared(full_at(g, first + t));
      const Sums sums = put_sums(decay, g, first);
      const Way way = choose_left(sums, Way::kPairs, beside + L::kLeft + of_half, beside + L::kFactor + of_half);
      if (thread_ == 0) block_.way(n, 1 + i) = way;
      if (way == Way::kPairs) put_decays(decay, g, first);
    }
  }

  // P = a b^T. Each warp has 16 rows and 16 columns.
  __device__ __forceinline__ void score(uint32_t stage, uint32_t beside) const {
    const int thread = mma::thread_again(), lane = thread % 32, warp = thread % 128 / 32, row0 = warp / 2 * kHalf,
              column0 = warp % 2 * kHalf;
    const bool square = row0 == column0, any = square || (row0 < column0) == kReversed;
    const uint32_t row = row0 + lane % 16, column = column0 + lane % 8 + lane / 16 * 8;
    const uint32_t a = stage + L::kA + row * 128, b = stage + L::kB + column * 128;
    const uint32_t of_a = (lane / 16 ^ (row & 7)) << 4, of_b = ((lane / 8 & 1) ^ (column & 7)) << 4;
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      float sum[2][4] = {};
      if (any) {
#pragma unroll
        for (int k = 0; k < kColumns / 16; ++k) {
          const uint32_t panel = (head * L::kSidePanels + k / 4) * kBox;
          uint32_t left[4], right[4];
          load_matrices(left, a + panel + (of_a ^ (k % 4 * 32)));
          load_matrices(right, b + panel + (of_b ^ (k % 4 * 32)));
          mma::multiply<T>(sum[0], left, right[0], right[1]);
          mma::multiply<T>(sum[1], left, right[2], right[3]);
        }
      }
      const uint32_t scores = beside + head * L::kHeadScores;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = lane / 4 + 8 * half, j = lane % 4 * 2 + 8 * n;  // within the square
          float x = sum[n][2 * half], y = sum[n][2 * half + 1];
          if (square) {
            const uint32_t pair = scores + L::kPairs + row0 / kHalf * L::kSquare + i * L::kPairRow + j * 4;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(pair), "f"(x), "f"(y) : "memory");
            if (kReversed ? j <= i : j >= i) x = 0;
            if (kReversed ? j + 1 <= i : j + 1 >= i) y = 0;
          }
          const uint32_t high = pack<T>(x, y),
                         at = scores + tile_offset<32>(row0 + i, (column0 + j) / 8) + lane % 4 * 4;
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + L::kHigh), "r"(high) : "memory");
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + L::kLow), "r"(mma::pack_rest<T>(x, y, high))
                       : "memory");
        }
    }
  }

  const Params &p_;
  const B &block_;
  const int thread_;
  float left_ = 0;  // L of this thread's channel
};

}  // namespace lasp::gpu::hopper::channel_backward
