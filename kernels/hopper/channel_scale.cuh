// The scaling warpgroups of the channel pass: a and b of a chunk times their factors, its scores, and the decay of
// the state up to it. The two take turns.
//
// With E_t a channel's summed log decay from the chunk's pivot to token t, negative before it,
//
//   exp(G_i - G_j) = exp(E_i) exp(-E_j)
//
// splits into a factor for each side, of which none is far from 1 where decay is not strong. The state is taken
// from pivot to pivot, so that one multiplication takes it from chunk to chunk. Where a channel's sum over half of
// a chunk passes kSteepest the chunk goes as two half chunks of 16 tokens, with a pivot each and the state between
// them. Where a sum over half of these passes it, too, as half chunks without: factors relative to their ends, each
// at most 1, and scores pair by pair. No difference of running sums is formed in any way. Where a block has two
// heads, both go the way that one of them needs.
#pragma once

#include "channel_scores.cuh"

namespace lasp::gpu::hopper::channel {

// Powers of two that a factor may have: float16 has few to spare.
template <typename T>
constexpr float kSteepest = kIsBFloat16<T> ? 40.0f : 4.0f;

template <typename T, int kHeads>
class Scaler {
  using L = Layout<kHeads>;
  static constexpr int kPairs = kDim / 2;  // of channels: a thread has a pair in a half of the chunk
  static_assert(2 * kPairs == 128);

 public:
  __device__ __forceinline__ Scaler(const Params &p, const Block<kHeads> &block, int group)
      : p_(p), block_(block), group_(group), thread_(threadIdx.x % 128) {}

  __device__ __forceinline__ void run() {
    for (int32_t n = group_; n <= block_.chunks; n += kScalers) {
      const auto ring = RingIndex<L::kStages>::of(n);
      if (n == block_.chunks) {  // what is pending goes into the state at last
        wait_round_before(block_.empty(ring.stage), ring);
        put_state_decay(n, ring, Pivot::kNone);
      } else {
        prepare(n, ring);
      }
    }
  }

 private:
  __device__ __forceinline__ void sync() const { mma::sync_some<128>(1 + group_); }

  __device__ __forceinline__ void prepare(int32_t n, RingIndex<L::kStages> ring) {
    const uint32_t stage = block_.stage(ring.stage), beside = block_.beside(ring.stage);
    const int32_t tokens = block_.tokens(block_.begin(p_, n));
    wait_this_round(block_.full(ring.stage), ring);
    if (tokens < kTokens) clear_rows(stage, tokens);
    const Pivot pivot = scale(stage, beside);
    sync();
    if (pivot != Pivot::kNone)
      compute_scores<T, kHeads>(stage, beside + L::kScores, p_.reversed, pivot == Pivot::kHalves);
    put_state_decay(n, ring, pivot);
  }

  // Rows past the run's end are another sequence's, or anything.
  __device__ __forceinline__ void clear_rows(uint32_t stage, int32_t tokens) const {
    const uint4 zero = {0, 0, 0, 0};
    for (int panel = 0; panel < 2 * kDim / 64 + kWalkers; ++panel)
      for (int at = tokens * 128 + thread_ * 16; at < kBoxPanel; at += 2048)
        store_shared_16(stage + panel * kBoxPanel + at, zero);
    const int row = L::kWidth * decay_bytes();
    for (int head = 0; head < kHeads; ++head)
      for (int at = tokens * row + thread_ * 16; at < kTokens * row; at += 2048)
        store_shared_16(decays(stage, head) + at, zero);
    sync();
  }

  __device__ __forceinline__ int decay_bytes() const { return p_.decay_dtype == DType::kFloat32 ? 4 : 2; }
  // Those of a head, as the copy engine brings them.
  __device__ __forceinline__ uint32_t decays(uint32_t stage, int head) const {
    return stage + L::kG + head * kTokens * L::kWidth * decay_bytes();
  }

  static __device__ __forceinline__ void add_size(float2 &size, float2 x) {
    size.x += fabsf(x.x), size.y += fabsf(x.y);
  }
  // Whether any channel's decays are too strong for a pivot, or grow so, or are no number.
  __device__ __forceinline__ bool any_steep(float2 x, float2 y) const {
    const float most = fmaxf(fmaxf(x.x, x.y), fmaxf(y.x, y.y));
    const bool nan = x.x != x.x || x.y != x.y || y.x != y.x || y.y != y.y;
    return mma::sync_some_or<128>(1 + group_, nan || most > kSteepest<T>);
  }

  // This thread's channels and half of the chunk, whose rows are counted from the pivot outward. One code serves
  // both halves: it is long, and the cache for instructions is small.
  struct Half {
    int pair;
    bool late;
    uint32_t tile, piece;  // where row 0 has them in a tile
    // Of row r.
    __device__ __forceinline__ int row(int r) const { return late ? kHalf + r : kHalf - 1 - r; }
    // A row & 7 counts up from the pivot in the late half, and down from 7 in the early one.
    __device__ __forceinline__ uint32_t at(int r) const {
      return tile + (late ? 128 * r : -128 * r) + ((piece ^ (r & 7)) << 4);
    }
  };
  __device__ __forceinline__ Half half(uint32_t stage) const {
    const int thread = mma::thread_again();
    const bool late = __shfl_sync(~0u, thread / kPairs % 2, 0);
    const int pair = thread % kPairs;
    return {pair, late, stage + (late ? kHalf : kHalf - 1) * 128 + pair / 32 * kBoxPanel + pair % 4 * 4,
            uint32_t(pair % 32 / 4 ^ (late ? 0 : 7))};
  }

  // Without a pivot the scores are found here, too.
  __device__ __forceinline__ Pivot scale(uint32_t stage, uint32_t beside) const {
    const Half h = half(stage);
    float2 decay[kHalf];
    read_decays(decay, stage, h);
    float2 total[2] = {}, size[2] = {};  // of the tokens next to the pivot, and beyond
#pragma unroll
    for (int r = 0; r < kHalf; ++r) {
      float2 &sum = total[r / (kHalf / 2)];
      sum.x += decay[r].x, sum.y += decay[r].y;
      add_size(size[r / (kHalf / 2)], decay[r]);
    }
    const float2 all = {size[0].x + size[1].x, size[0].y + size[1].y};
    store_shared_pair(beside + (h.late ? L::kMiddle : L::kBefore) + 8 * h.pair,
                      float2{total[0].x + total[1].x, total[0].y + total[1].y});
    if (!any_steep(all, all)) {
      from_pivot(decay, h);
      return Pivot::kChunk;
    }
    const Pivot pivot = any_steep(size[0], size[1]) ? Pivot::kNone : Pivot::kHalves;
    if (pivot == Pivot::kNone) {
#pragma unroll 1
      for (int head = 0; head < kHeads; ++head) {
        const uint32_t tile = stage + head * L::kHeadPanels * kBoxPanel;
        compute_scores_by_pairs<T, L::kWidth>(tile + L::kA, tile + L::kB, decays(stage, head),
                                              beside + L::kScores + head * L::kHeadScores, p_.reversed,
                                              p_.decay_dtype);
      }
      read_decays(decay, stage, h);
      sync();
    }
    if (h.late) {
      in_halves<true>(decay, h, pivot);
    } else {
      in_halves<false>(decay, h, pivot);
    }
    const uint32_t sums = stage + L::kSums + (h.late ? 8 * kDim : 0) + 8 * h.pair;
    store_shared_pair(sums + (h.late ? 0 : 4 * kDim), total[0]);
    store_shared_pair(sums + (h.late ? 4 * kDim : 0), total[1]);
    return pivot;
  }
  template <bool kLate>
  __device__ __forceinline__ void in_halves(const float2 (&decay)[kHalf], const Half &h, Pivot pivot) const {
    if (pivot == Pivot::kNone) {
      from_ends<kLate>(decay, h);
    } else {
      from_pivots<kLate>(decay, h);
    }
  }

  // From the pivot outward.
  __device__ __forceinline__ void read_decays(float2 (&decay)[kHalf], uint32_t stage, const Half &h) const {
    constexpr int kWidth = L::kWidth, kPairs = kWidth / 2;
    const auto read = [&](uint32_t bytes, auto load) {
      const uint32_t from =
          stage + L::kG + bytes * (h.pair / kPairs * kTokens * kWidth + h.row(0) * kWidth + h.pair % kPairs * 2);
      const int step = (h.late ? 1 : -1) * int(bytes) * kWidth;
#pragma unroll
      for (int r = 0; r < kHalf; ++r) {
        const float2 x = load(from + r * step);
        decay[r] = {x.x * kLog2E, x.y * kLog2E};
      }
    };
    switch (p_.decay_dtype) {
      case DType::kFloat32: return read(4, [](uint32_t at) { return load_shared_pair(at); });
      case DType::kBFloat16: return read(2, [](uint32_t at) { return unpack<__nv_bfloat16>(load_shared(at)); });
      default: return read(2, [](uint32_t at) { return unpack<__half>(load_shared(at)); });
    }
  }

  static __device__ __forceinline__ void put_b(uint32_t at, uint32_t pair, float2 factor) {
    uint32_t low;
    store_shared(at + L::kB, mma::scale_pair<T>(pair, factor, &low));
    store_shared(at + L::kLow, low);
  }

  __device__ __forceinline__ void from_pivot(const float2 (&decay)[kHalf], const Half &h) const {
    constexpr int kTogether = 4;
    const float sign = p_.reversed == h.late ? -1.0f : 1.0f;  // of a's log factors, as they grow from the pivot
    float2 e = {0, 0};
#pragma unroll
    for (int first = 0; first < kHalf; first += kTogether) {
      uint32_t a[kTogether], b[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        a[i] = load_shared(h.at(first + i) + L::kA), b[i] = load_shared(h.at(first + i) + L::kB);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float2 next = {fmaf(sign, decay[first + i].x, e.x), fmaf(sign, decay[first + i].y, e.y)};
        const float2 now = h.late ? next : e;  // a token's own decay lies on the side of the pivot's early half
        const uint32_t to = h.at(first + i);
        store_shared(to + L::kA, mma::scale_pair<T>(a[i], float2{exp2_fast(now.x), exp2_fast(now.y)}, nullptr));
        put_b(to, b[i], float2{exp2_fast(-now.x), exp2_fast(-now.y)});
        e = next;
      }
    }
  }

  __device__ __forceinline__ void scale_row(uint32_t to, float2 of_a, float2 of_b) const {
    const uint32_t a = load_shared(to + L::kA), b = load_shared(to + L::kB);
    store_shared(to + L::kA, mma::scale_pair<T>(a, float2{exp2_fast(of_a.x), exp2_fast(of_a.y)}, nullptr));
    put_b(to, b, float2{exp2_fast(of_b.x), exp2_fast(of_b.y)});
  }

  // Of a half chunk, from the pivot in its middle.
  template <bool kLate>
  __device__ __forceinline__ void from_pivots(const float2 (&decay)[kHalf], const Half &h) const {
#pragma unroll
    for (const bool outward : {false, true}) {
      const float sign = p_.reversed == (kLate == outward) ? -1.0f : 1.0f;
      float2 e = {0, 0};
#pragma unroll
      for (int i = 0; i < kHalf / 2; ++i) {
        const int r = outward ? kHalf / 2 + i : kHalf / 2 - 1 - i;
        const float2 next = {fmaf(sign, decay[r].x, e.x), fmaf(sign, decay[r].y, e.y)};
        if (kLate == outward) e = next;
        scale_row(h.at(r), e, float2{-e.x, -e.y});
        e = next;
      }
    }
  }

  // Of a half chunk, from its beginning and to its end. What a reads by in one direction, b writes by in the other.
  template <bool kLate>
  __device__ __forceinline__ void from_ends(const float2 (&decay)[kHalf], const Half &h) const {
#pragma unroll
    for (const bool outward : {false, true}) {
      const bool of_a = (kLate == outward) != p_.reversed;
      float2 sum = {0, 0};
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const int r = outward ? i : kHalf - 1 - i;
        const float2 through = {sum.x + decay[r].x, sum.y + decay[r].y};
        if (kLate == outward) sum = through;
        const uint32_t to = h.at(r);
        const float2 factor = {exp2_fast(sum.x), exp2_fast(sum.y)};
        if (of_a) {
          store_shared(to + L::kA, mma::scale_pair<T>(load_shared(to + L::kA), factor, nullptr));
        } else {
          put_b(to, load_shared(to + L::kB), factor);
        }
        sum = through;
      }
    }
  }

  // The state's decay up to this chunk and within it (Layout). Then the chunk is ready.
  __device__ __forceinline__ void put_state_decay(int32_t n, RingIndex<L::kStages> ring, Pivot pivot) const {
    const uint32_t beside = block_.beside(ring.stage);
    float *const pending = block_.floats(block_.base + L::kPending) + thread_,
                 *const compensation = block_.floats(block_.base + L::kCompensation) + thread_,
                 *const before = block_.floats(beside + L::kBefore) + thread_,
                 *const middle = block_.floats(beside + L::kMiddle) + thread_;
    const float *const sums = block_.floats(block_.stage(ring.stage) + L::kSums) + thread_;
    if (n > 0) barrier_wait(block_.chain((n - 1) % 2), (n - 1) / 2 % 2);
    float rest = n > 0 ? *compensation : 0.0f, waiting = n > 0 ? *pending : 0.0f;
    if (n == block_.chunks) {
      *before = state_decay(waiting, rest);
    } else if (pivot == Pivot::kChunk) {
      const float early = *before, late = *middle;
      *before = state_decay(waiting + (p_.reversed ? late : early), rest);
      waiting = p_.reversed ? early : late;
    } else {
      const auto sum = [&](int i) { return sums[(p_.reversed ? 3 - i : i) * kDim]; };  // in the order of the walk
      if (pivot == Pivot::kHalves) {
        *before = state_decay(waiting + sum(0), rest);
        *middle = state_decay(sum(1) + sum(2), rest);
        waiting = sum(3);
      } else {
        *before = state_decay(waiting, rest);
        *middle = state_decay(sum(0) + sum(1), rest);
        block_.floats(block_.stage(ring.stage) + L::kLast)[thread_] = state_decay(sum(2) + sum(3), rest);
        waiting = 0;
      }
    }
    *pending = waiting;
    *compensation = rest;
    if (thread_ == 0) block_.pivot(ring.stage) = pivot;
    warp_arrive(block_.chain(n % 2));
    fence_async_proxy();
    warp_arrive(block_.ready(ring.stage));
  }

  const Params &p_;
  const Block<kHeads> &block_;
  const int group_, thread_;
};

}  // namespace lasp::gpu::hopper::channel
