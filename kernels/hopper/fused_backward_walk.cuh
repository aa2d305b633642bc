// The two warpgroups that compute a block's gradients. Stretch by stretch, from the last to the first, they walk
// the chunks forward with the state S, for dq, and back again with its gradient dS, for dk and dv. Both are float32
// accumulators, [64 of K, V] in each group; rounded copies go to both groups through shared memory. On the way
// forward a group computes 64 columns of dq, on the way back one all of dk, the other all of dv.
#pragma once

#include "fused_backward_copies.cuh"
#include "fused_backward_products.cuh"

namespace lasp::gpu::hopper::fused {

// kMembers: as many blocks are a cluster, over which dk and dv are summed (fused_backward_group.cuh).
template <typename T, bool kGradient, int kMembers>
class Walker : StateCopies<T, kGradient, kMembers> {
  using Copies = StateCopies<T, kGradient, kMembers>;
  using Terms = DecayTerms<T, kMembers>;
  using Results = ResultStore<T, kMembers>;
  using Base = Consumer<kMembers>;
  using Base::p_, Base::block_, Base::at_;
  using Copies::n_, Copies::kState;
  static constexpr bool kGrouped = kMembers > 1;
  // Whether results leave, and their boxes are claimed, after a product and not between its quarters. Clusters wait
  // there in loops, and the compiler makes products on both sides of a loop wait for each other. With kGradient
  // there are too few registers.
  static constexpr bool kSendsLate = kGrouped || (kGradient && kMembers != kPaired);
  static constexpr bool kNarrows = kMembers == kNarrow, kPair = kMembers == kPaired;
  static constexpr int kColumns = columns_of(kMembers);  // of the state

 public:
  __device__ __forceinline__ Walker(const Params &p, const Block<kMembers> &block) : Copies(p, block) {}

  __device__ __forceinline__ void run() {
    load_gradient();
    const Scores scores = scores_of(0, true, false);
    wgmma_begin();
#pragma unroll
    for (int part = 0; part < 4; ++part) scores.add(scores_, part);
    wgmma_commit();
    wgmma_wait<0>(scores_);
#pragma unroll 1
    for (int32_t stretch = block_.stretches - 1; stretch >= 0; --stretch) {
      const int32_t first = block_.first_chunk(stretch), last = block_.last_chunk(stretch);
      begin_forward(first, last);
#pragma unroll 1
      for (int32_t chunk = first; chunk <= last; ++chunk) forward(chunk, first, last);
      Copies::publish(false);
      Results::send(last, false);
#pragma unroll 1
      for (int32_t chunk = last; chunk >= first; --chunk)
        if constexpr (kPair) {
          reversed_pair(chunk, first, last);
        } else if (at_.group) {
          reversed<1>(chunk, first, last);
        } else {
          reversed<0>(chunk, first, last);
        }
      Copies::publish(false);
      if constexpr (!kGrouped) Results::send(first, true);
    }
    if constexpr (kGrouped) Results::send(0, true);
    store_gradient();
    Results::wait_stores();
  }

 private:
  // ---- The state and its gradient. Calls f(element, row of K, column of V); the next element is the next column.
  template <typename F>
  __device__ __forceinline__ void each_pair(F f) {
#pragma unroll
    for (int i = 0; i < kState; i += 2) f(i, 64 * at_.group + at_.row + 8 * (i / 2 % 2), 8 * (i / 4) + at_.column);
  }
  __device__ __forceinline__ void load_gradient() {
    const bool none = !p_.d_state_in || (p_.from_zero && block_.run(p_).ends >= 0);
    if constexpr (!kPair) {  // of pairs these zeros would need registers that there are not
      if (none) {
#pragma unroll
        for (int i = 0; i < kState; ++i) gradient_[i] = 0;
        return;
      }
    }
    const float *const from =
        p_.d_state_in + (block_.run(p_).state * p_.heads + block_.head) * block_.state_size(p_) + block_.offset(p_);
    const float in_scale = 1 / p_.scale;
    each_pair([&](int i, int32_t row, int32_t column) {
      float2 x = {0, 0};
      if (!none && block_.has(p_, at_.group, at_.warp, i))
        x = *reinterpret_cast<const float2 *>(from + block_.at(p_, at_.group, row, column));
      gradient_[i] = in_scale * x.x, gradient_[i + 1] = in_scale * x.y;
    });
  }
  __device__ __forceinline__ void store_gradient() {
    const int64_t starts = block_.run(p_).starts;
    if (!p_.d_edge_state || starts < 0) return;
    float *const to =
        p_.d_edge_state + (starts * p_.heads + block_.head) * block_.state_size(p_) + block_.offset(p_);
    each_pair([&](int i, int32_t row, int32_t column) {
      if (!block_.has(p_, at_.group, at_.warp, i)) return;
      float *const pair = to + block_.at(p_, at_.group, row, column);
      const float there[2] = {p_.edge_adds ? pair[0] : 0, p_.edge_adds ? pair[1] : 0};
      pair[0] = fmaf(p_.scale, gradient_[i], there[0]), pair[1] = fmaf(p_.scale, gradient_[i + 1], there[1]);
    });
  }

  // The checkpoint has come with the tiles of the stretch's first step.
  __device__ __forceinline__ void begin_forward(int32_t first, int32_t last) {
    uint32_t pairs[kState / 2];
    Copies::get_copy(block_.copy(first), pairs);
    if constexpr (kGradient) Terms::keep(first < last, first, pairs);
#pragma unroll
    for (int i = 0; i < kState / 2; ++i) {
      const float2 x = unpack<T>(pairs[i]);
      state_[2 * i] = x.x, state_[2 * i + 1] = x.y;
    }
  }

  // ---- Products

  // scores = a b^T: do v^T on the way forward; on the way back v do^T or k q^T. Of step n; where there is none, of
  // whatever lies there. With 64 columns of V the rest of k q^T is to come (add_scores), with a head to each group
  // all of it. By quarters of the sum.
  struct Scores {
    uint64_t a, b;
    __device__ __forceinline__ void add(float (&scores)[32], int part) const {
      add_scores(scores, a, b, part * kColumns / 64, (part + 1) * kColumns / 64);
    }
  };
  __device__ __forceinline__ Scores scores_of(uint32_t n, bool there, bool back) const {
    if (there) block_.wait_full(n);
    const bool keys = back && at_.group && !kPair;
    return {tile_descriptor<128>(block_.tile(n, back ? (keys ? kK : kV) : kDo) + block_.panel_of(at_.group)),
            tile_descriptor<128>(block_.tile(n, back ? (keys ? kQ : kDo) : kV) + block_.panel_of(at_.group))};
  }
  // Of 16 columns each, steps `from` to `to` of the sum.
  static __device__ __forceinline__ void add_scores(float (&scores)[32], uint64_t a, uint64_t b, int from, int to) {
#pragma unroll
    for (int k = from; k < to; ++k) {
      const uint32_t step = k / 4 * kPanel + k % 4 * 32;
      wgmma<T, false, false>(scores, advance(a, step), advance(b, step), k > 0);
    }
  }
  // The right operand of a product that sums over tokens: columns of a tile that are as wide as the state.
  static __device__ __forceinline__ uint64_t as_wide_as_state(uint32_t tile) {
    return kColumns == 64 ? tile_descriptor<128>(tile) : wide_descriptor(tile, kPanel);
  }
  // What a step writes into the state or its gradient: this group's 64 columns of k or q, each token times its
  // factor, transposed, as the left operand of a product that sums over tokens, with the columns of `right`.
  __device__ __forceinline__ void write(float (&state)[kState], uint32_t tile, const float *factors,
                                        uint32_t right) const {
    const uint32_t from = tile + at_.group * kPanel + at_.columns;
    const float *const factor = factors + at_.column;
    const uint64_t b = as_wide_as_state(right);
    uint32_t written[16];
#pragma unroll
    for (int s = 0; s < kChunk / 16; ++s) {
      uint32_t m[4];
      load_matrices_transposed(m, from + s * 2048);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 w = *reinterpret_cast<const float2 *>(factor + 16 * s + i / 2 * 8), x = unpack<T>(m[i]);
        written[4 * s + i] = pack<T>(w.x * x.x, w.y * x.y);
      }
    }
    wgmma_begin();
    multiply_tokens<T>(state, written, b);
  }

  // ---- Steps. The scores of a step are there when it begins; those of the next are found while it finishes. A
  // warp that begins a product waits until the tensor cores take it, so that other work stands between products.

  __device__ __forceinline__ void forward(int32_t chunk, int32_t first, int32_t last) {
    const uint32_t v = block_.tile(n_, kV) + block_.panel_of(at_.group),
                   d_o = block_.tile(n_, kDo) + block_.panel_of(at_.group), k = block_.tile(n_, kK);
    const Decays &decays = block_.decays(n_, at_.group);
    const uint32_t copy = block_.copy(chunk) + at_.group * 64 * 128;
    float y[32];
    uint32_t rounded[16];
    scale_by(state_, decays.total);
    write(state_, k, decays.to_end, v);
    wgmma_commit();
    ScoreRounding<T, false, kGradient> rounding(at_, decays, p_.log2_scale);
    rounding.block(0, scores_, rounded);
    Copies::wait_published();
    wgmma_begin();
    multiply_state<T, false, kColumns>(y, d_o, copy, 0);
    wgmma_commit();
    wgmma_wait<1>(state_);
    Copies::wait_copy_free();
    // Nobody reads the state after the last chunk; on the way back the gradient there comes first.
    if (chunk < last) {
      Copies::put_copy(state_, block_.copy(chunk + 1));
    } else {
      if constexpr (kGradient) {
        uint32_t pairs[kState / 2];
        Copies::get_copy(block_.copy(last), pairs);
        Terms::store_through(true, chunk, Terms::inner_product(pairs, gradient_) * decays.total);
      }
      Copies::put_copy(gradient_, block_.copy(chunk + 1));
    }
    multiply_state<T, false, kColumns>(y, d_o, copy, 1);
    Copies::publish(true);
    if constexpr (!kSendsLate) Results::send(chunk > first ? chunk - 1 : -1, false);
    rounding.block(1, scores_, rounded);
    multiply_state<T, false, kColumns>(y, d_o, copy, 2);
    rounding.block(2, scores_, rounded);
    multiply_state<T, false, kColumns>(y, d_o, copy, 3);
    wgmma_commit();
    rounding.block(3, scores_, rounded);
    const float from_start[2] = {p_.scale * decays.from_start[at_.row], p_.scale * decays.from_start[at_.row + 8]};
    float own[2];
    if constexpr (kGradient) rounding.get_own(own);
    wgmma_wait<0>(y);
    if constexpr (kSendsLate) Results::send(chunk > first ? chunk - 1 : -1, false);
    if constexpr (kGrouped)
      Results::send(chunk == first && last + 1 < block_.chunks ? last + 1 : -1, true);  // of the stretch before
    scale_rows(y, from_start);
    wgmma_begin();
    multiply_tokens<T>(y, rounded, tile_descriptor<128>(k + at_.group * kPanel));
    wgmma_commit();
    const Scores next = scores_of(n_ + 1, true, chunk == last);
    if constexpr (kSendsLate) Results::begin_store(last);
    wgmma_begin();
    next.add(scores_, 0);
    wgmma_commit();
    // Behind the fence, which would wait for it.
    if constexpr (kGradient) Copies::keep_rounded(chunk + 1 < last, chunk + 1, state_);
    wgmma_wait<1>(y);
    if constexpr (!kSendsLate) Results::begin_store(last);
    float dots[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kGradient) {
        Terms::add_dots(block_.tile(n_, kQ) + at_.group * kPanel, 2 * i, y, dots);
        Terms::add_rows(k + at_.group * kPanel, 2 * i, own, y);
      }
      Results::put(y, 2 * i, 0);
      if (i < 3) next.add(scores_, i + 1);
    }
    wgmma_commit();
    if constexpr (kGradient)
      Terms::store(DecayTerm(kQueryHalves + (kPair ? 0 : at_.group)), chunk, Terms::sum_dots(dots));
    warp_arrive(block_.empty(n_));
    Results::finish_store(chunk, false);
    wgmma_wait<0>(scores_);
    ++n_;
  }

  // Group 0 has dk, group 1 dv. With 64 columns of V the other half of dv's is of what lies there, and goes
  // nowhere.
  template <int kGroup>
  __device__ __forceinline__ void reversed(int32_t chunk, int32_t first, int32_t last) {
    constexpr bool kApart = kGradient && kGroup == 0, kAcross = kGroup == 1;
    constexpr int kSum = kAcross ? kDim : kColumns, kResults = kAcross ? kState : 64;
    const uint32_t v = block_.tile(n_, kV), d_o = block_.tile(n_, kDo), k = block_.tile(n_, kK),
                   q = block_.tile(n_, kQ);
    const Decays &decays = block_.decays(n_, kGroup);
    const uint32_t left = kGroup ? k : v, copy = block_.copy(chunk + 1);
    float y[64];
    uint32_t rounded[16];
    scale_by(gradient_, decays.total);
    write(gradient_, q, decays.from_start, d_o);
    if constexpr (kNarrows && kGroup) {
      add_scores(scores_, tile_descriptor<128>(k), tile_descriptor<128>(q), 4, 8);
      wgmma_commit();
      wgmma_wait<0>(scores_);
    } else {
      wgmma_commit();
    }
    ScoreRounding<T, true, kApart> rounding(at_, decays, p_.log2_scale);
    rounding.block(0, scores_, rounded);
    Copies::wait_published();
    wgmma_begin();
    multiply_state<T, kAcross, kSum>(y, left, copy, 0);
    wgmma_commit();
    wgmma_wait<1>(gradient_);
    Copies::wait_copy_free();
    if (chunk > first) Copies::put_copy(gradient_, block_.copy(chunk));
    multiply_state<T, kAcross, kSum>(y, left, copy, 1);
    Copies::publish(chunk > first);
    if constexpr (!kSendsLate) Results::send(chunk < last ? chunk + 1 : -1, true);
    rounding.block(1, scores_, rounded);
    multiply_state<T, kAcross, kSum>(y, left, copy, 2);
    rounding.block(2, scores_, rounded);
    multiply_state<T, kAcross, kSum>(y, left, copy, 3);
    wgmma_commit();
    rounding.block(3, scores_, rounded);
    const float to_end[2] = {p_.scale * decays.to_end[at_.row], p_.scale * decays.to_end[at_.row + 8]};
    float own[2];
    if constexpr (kApart) rounding.get_own(own);
    wgmma_wait<0>(y);
    if constexpr (kSendsLate) Results::send(chunk < last ? chunk + 1 : -1, true);
    scale_rows(y, to_end);
    // v . dv is k . dk, of the same rounded gradient.
    if constexpr (kGradient && kGroup == 1)
      Terms::store(kFromAfter, chunk, Terms::template dot_rows<kResults>(v, y));
    wgmma_begin();
    multiply_tokens<T>(y, rounded, wide_descriptor(kGroup ? d_o : q, kPanel));
    wgmma_commit();
    const Scores next = scores_of(n_ + 1, chunk > 0, chunk > first);
    if constexpr (kSendsLate) Results::begin_store(chunk);
    wgmma_begin();
    next.add(scores_, 0);
    wgmma_commit();
    wgmma_wait<1>(y);
    if constexpr (!kSendsLate) Results::begin_store(chunk);
    float dots[4] = {0, 0, 0, 0};
    uint32_t state[kState / 2];
#pragma unroll
    for (int i = 0; i < kResults / 8; ++i) {
      if constexpr (kApart) {
        Terms::add_dots(k, 2 * i, y, dots);
        Terms::add_rows(q, 2 * i, own, y);
      }
      Results::put(y, 2 * i, i / 4);
      if (kGradient && i == kResults / 16) Terms::load_kept(chunk > first, chunk - 1, state);
      if (i % (kResults / 32) == 0 && i < 3 * (kResults / 32)) next.add(scores_, i / (kResults / 32) + 1);
    }
    wgmma_commit();
    if constexpr (kApart) Terms::store(kFromAll, chunk, Terms::sum_dots(dots));
    warp_arrive(block_.empty(n_));
    Results::finish_store(chunk, true);
    if constexpr (kGradient)
      Terms::store_through(chunk > first, chunk - 1,
                           Terms::inner_product(state, gradient_) * block_.decays(n_ + 1, at_.group).total);
    wgmma_wait<0>(scores_);
    ++n_;
  }

  // The same for a group with a head of its own: dk and dv both, side by side.
  __device__ __forceinline__ void reversed_pair(int32_t chunk, int32_t first, int32_t last) {
    const uint32_t panel = block_.panel_of(at_.group);
    const uint32_t v = block_.tile(n_, kV) + panel, d_o = block_.tile(n_, kDo) + panel,
                   k = block_.tile(n_, kK) + panel, q = block_.tile(n_, kQ) + panel;
    const Decays &decays = block_.decays(n_, at_.group);
    float d_k[32], d_v[32], keys[32];
    uint32_t to_d_k[16], to_d_v[16];
    scale_by(gradient_, decays.total);
    wgmma_begin();
    add_scores(keys, tile_descriptor<128>(k), tile_descriptor<128>(q), 0, 4);
    write(gradient_, block_.tile(n_, kQ), decays.from_start, d_o);
    wgmma_commit();
    ScoreRounding<T, true, kGradient> pairs(at_, decays, p_.log2_scale);
    pairs.block(0, scores_, to_d_k);
    Copies::wait_published();
    const uint32_t rounded = block_.copy(chunk + 1) + at_.group * 64 * 128;
    wgmma_begin();
    multiply_state<T, false, 64>(d_k, v, rounded, 0);
    multiply_state<T, false, 64>(d_k, v, rounded, 1);
    wgmma_commit();
    wgmma_wait<1>(gradient_);
    wgmma_wait<1>(keys);
    Copies::wait_copy_free();
    if (chunk > first) Copies::put_copy(gradient_, block_.copy(chunk));
    multiply_state<T, false, 64>(d_k, v, rounded, 2);
    multiply_state<T, false, 64>(d_k, v, rounded, 3);
    Copies::publish(chunk > first);
    Results::send(chunk < last ? chunk + 1 : -1, true);
    ScoreRounding<T, true, false> others(at_, decays, p_.log2_scale);
    others.block(0, keys, to_d_v);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply_state<T, true, 64>(d_v, k, rounded, i);
      if (i < 3) pairs.block(i + 1, scores_, to_d_k), others.block(i + 1, keys, to_d_v);
    }
    wgmma_commit();
    float own[2];
    if constexpr (kGradient) pairs.get_own(own);
    const float to_end[2] = {p_.scale * decays.to_end[at_.row], p_.scale * decays.to_end[at_.row + 8]};
    wgmma_wait<0>(d_k);
    wgmma_wait<0>(d_v);
    scale_rows(d_k, to_end);
    scale_rows(d_v, to_end);
    if constexpr (kGradient) Terms::store(kFromAfter, chunk, Terms::template dot_rows<32>(k, d_k));
    wgmma_begin();
    multiply_tokens<T>(d_k, to_d_k, tile_descriptor<128>(q));
    multiply_tokens<T>(d_v, to_d_v, tile_descriptor<128>(d_o));
    wgmma_commit();
    const Scores next = scores_of(n_ + 1, chunk > 0, chunk > first);
    wgmma_begin();
    next.add(scores_, 0);
    wgmma_commit();
    wgmma_wait<1>(d_k);
    wgmma_wait<1>(d_v);
    Results::begin_store(chunk);
    float dots[4] = {0, 0, 0, 0};
    uint32_t state[kState / 2];
    if constexpr (kGradient) Terms::load_kept(chunk > first, chunk - 1, state);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kGradient) {
        Terms::add_dots(k, 2 * i, d_k, dots);
        Terms::add_rows(q, 2 * i, own, d_k);
      }
      Results::put(d_k, 2 * i, 0);
      Results::put(d_v, 2 * i, 1);
      if (i < 3) next.add(scores_, i + 1);
    }
    wgmma_commit();
    if constexpr (kGradient) Terms::store(kFromAll, chunk, Terms::sum_dots(dots));
    warp_arrive(block_.empty(n_));
    Results::finish_store(chunk, true);
    if constexpr (kGradient)
      Terms::store_through(chunk > first, chunk - 1,
                           Terms::inner_product(state, gradient_) * block_.decays(n_ + 1, at_.group).total);
    wgmma_wait<0>(scores_);
    ++n_;
  }

  float state_[kState], gradient_[kState], scores_[32];
};

}  // namespace lasp::gpu::hopper::fused
