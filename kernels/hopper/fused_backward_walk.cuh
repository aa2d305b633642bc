// The two warpgroups that compute a block's gradients. Stretch by stretch, from the last to the first, they walk
// the chunks forward with the state S, for dq, and back again with its gradient dS, for dk and dv. Both are float32
// accumulators, [64 of K, V] in each group; rounded copies go to both groups through shared memory. On the way
// forward a group computes 64 columns of dq, on the way back one all of dk, the other all of dv: by the same code.
#pragma once

#include "fused_backward_group.cuh"
#include "fused_backward_products.cuh"

namespace lasp::gpu::hopper::fused {

// kMembers: as many blocks are a cluster, over which dk and dv are summed (fused_backward_group.cuh).
template <typename T, bool kGradient, int kMembers>
class Walker {
  static constexpr bool kGrouped = kMembers > 1;

 public:
  __device__ __forceinline__ Walker(const Params &p, const Block &block)
      : p_(p),
        block_(block),
        results_(block),
        group_(__shfl_sync(~0u, uint32_t(threadIdx.x / 128), 0)),
        rows_(lane() % 16 * 128 + ((lane() / 16 ^ lane() % 8) << 4)),
        columns_((lane() / 16 * 8 + lane() % 8) * 128 + ((2 * at_.warp + lane() / 8 % 2 ^ lane() % 8) << 4)) {}

  __device__ __forceinline__ void run() {
    load_gradient();
    issue_scores(true, false, 0);
    wgmma_wait<0>(scores_);
#pragma unroll 1
    for (int32_t stretch = block_.stretches - 1; stretch >= 0; --stretch) {
      const int32_t first = block_.first_chunk(stretch), last = block_.last_chunk(stretch);
      begin_forward(stretch);
#pragma unroll 1
      for (int32_t chunk = first; chunk <= last; ++chunk) forward(chunk, first, last, stretch);
      wait_published();
      publish<false>(gradient_, copy(true, stretch, true), last, false);
#pragma unroll 1
      for (int32_t chunk = last; chunk >= first; --chunk) reversed(chunk, last, chunk == first, stretch);
    }
    fence_async_proxy();
    __syncwarp();
    send(0, true);
    store_gradient();
    wait_stores();
  }

 private:
  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }

  // ---- The state and its gradient. Calls f(element, row of K, column of V); the next element is the next column.
  template <typename F>
  __device__ __forceinline__ void each_pair(F f) {
#pragma unroll
    for (int i = 0; i < 64; i += 2) f(i, 64 * group_ + at_.row + 8 * (i / 2 % 2), 8 * (i / 4) + at_.column);
  }
  __device__ __forceinline__ void load_gradient() {
    const float *const from = p_.d_state_in + (Block::run(p_).state * p_.heads + block_.head) * kDim * kDim;
    const float in_scale = 1 / p_.scale;
    each_pair([&](int i, int32_t row, int32_t column) {
      float2 x = {0, 0};
      if (p_.d_state_in) x = *reinterpret_cast<const float2 *>(from + row * kDim + column);
      gradient_[i] = in_scale * x.x, gradient_[i + 1] = in_scale * x.y;
    });
  }
  __device__ __forceinline__ void store_gradient() {
    const int64_t starts = Block::run(p_).starts;
    if (!p_.d_edge_state || starts < 0) return;
    float *const to = p_.d_edge_state + (starts * p_.heads + block_.head) * kDim * kDim;
    each_pair([&](int i, int32_t row, int32_t column) {
      to[row * kDim + column] = p_.scale * gradient_[i], to[row * kDim + column + 1] = p_.scale * gradient_[i + 1];
    });
  }

  // Shared address that this lane names for four 8x8 matrices of this warp's 16 rows of a [128, 128] state in two
  // panels, columns 8j and on (j even: see tile_offset).
  __device__ __forceinline__ uint32_t place(uint32_t state, int j) const {
    return (state + j / 8 * Layout::kStatePanel + (64 * group_ + 16 * at_.warp) * 128 + rows_) ^ j % 8 << 4;
  }
  static __device__ __forceinline__ void round(const float (&state)[64], int j, uint32_t (&m)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = pack<T>(state[4 * j + 2 * i], state[4 * j + 2 * i + 1]);
  }
  // A rounded copy for both groups, when this one is done with the copy before. Of two buffers that take turns:
  // once all have published, that copy is free. (The copy after a stretch's last chunk is for nobody: that of the
  // gradient takes its place, so that the state before the last chunk stays.) The results of chunk `sent` leave
  // behind the same fence (-1: none). Where `keeps` (and kKeep), the copy is kept for the way back, too, as the
  // state after a chunk.
  template <bool kKeep>
  __device__ __forceinline__ void publish(const float (&state)[64], uint32_t to_copy, int32_t sent, bool back,
                                          bool keeps = false, int32_t chunk = 0) {
    ++published_;
    uint4 *to = nullptr;
    if constexpr (kKeep) to = kept(chunk);
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      uint32_t m[4];
      round(state, j, m);
      store_matrices(place(to_copy, j), m[0], m[1], m[2], m[3]);
      if constexpr (kKeep) store_global_16_if(keeps, to, {m[0], m[1], m[2], m[3]}), to += kept_step();
    }
    fence_async_proxy();
    if constexpr (kGradient && !kKeep && !kGrouped)
      fence_async_proxy_global();  // results leave for where states were kept
    warp_arrive(block_.state_full());
    send(sent, back);
  }
  // The last copy that was published, and the other one.
  __device__ __forceinline__ uint32_t copy(bool back, int32_t stretch, bool other = false) const {
    return block_.state((published_ + (kGradient ? stretch + back : 0) + other) & 1);
  }
  // Until both groups have published what this one did last.
  __device__ __forceinline__ void wait_published() { barrier_wait(block_.state_full(), (published_ - 1) & 1); }

  // This thread's part of a checkpoint.
  __device__ __forceinline__ void load_checkpoint(int32_t stretch, uint32_t (&pairs)[32]) {
    const uint16_t *const from = block_.checkpoint_of(p_, stretch);
    each_pair([&](int i, int32_t row, int32_t column) {
      pairs[i / 2] = *reinterpret_cast<const uint32_t *>(from + row * kDim + column);
    });
  }
  __device__ __forceinline__ void begin_forward(int32_t stretch) {
    uint32_t pairs[32];
    load_checkpoint(stretch, pairs);
    if (published_ > 0) wait_published();
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float2 x = unpack<T>(pairs[i]);
      state_[2 * i] = x.x, state_[2 * i + 1] = x.y;
    }
    publish<false>(state_, copy(false, stretch, true),
                   stretch + 1 < block_.stretches ? block_.last_chunk(stretch) + 1 : -1, true);
  }

  // ---- Products

  // scores = a b^T: do v^T on the way forward; on the way back v do^T or k q^T. Of step n; where there is none, of
  // whatever lies there.
  __device__ __forceinline__ void issue_scores(bool there, bool back, uint32_t n) {
    if (there) block_.wait_full(n);
    const uint32_t a = block_.tile(n, back ? (group_ ? kK : kV) : kDo),
                   b = block_.tile(n, back ? (group_ ? kQ : kDo) : kV);
    const uint64_t left = tile_descriptor<128>(a), right = tile_descriptor<128>(b);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint32_t step = k / 4 * kPanel + k % 4 * 32;
      wgmma<T, false, false>(scores_, advance(left, step), advance(right, step), k > 0);
    }
    wgmma_commit();
  }
  // What a step writes into the state or its gradient: this group's 64 columns of k or q, each token times its
  // factor, transposed, as the left operand of a product that sums over tokens.
  __device__ __forceinline__ void scale_tokens(uint32_t tile, const float *factors, uint32_t (&written)[16]) const {
    const uint32_t from = tile + group_ * kPanel + columns_;
    const float *const factor = factors + at_.column;
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
  }

  // ---- Steps. The scores of a step are there when it begins; those of the next are found while it finishes.

  __device__ __forceinline__ void forward(int32_t chunk, int32_t first, int32_t last, int32_t stretch) {
    const uint32_t v = block_.tile(n_, kV), d_o = block_.tile(n_, kDo), k = block_.tile(n_, kK);
    const Decays &decays = block_.decays(n_);
    float y[32];
    uint32_t rounded[16], written[16];
    float own[2];
    scale_tokens(k, decays.to_end, written);
    scale_by(state_, decays.total);
    wgmma_begin();
    multiply_tokens<T>(state_, written, wide_descriptor(v, kPanel));
    wgmma_commit();
    wait_published();
    wgmma_begin();
    multiply_state<T, false>(y, d_o, copy(false, stretch) + group_ * 64 * 128);
    wgmma_commit();
    wgmma_wait<1>(state_);
    round_scores<T, false>(at_, decays, p_.log2_scale, scores_, rounded, kGradient, own);
    const float from_start[2] = {p_.scale * decays.from_start[at_.row], p_.scale * decays.from_start[at_.row + 8]};
    wgmma_wait<0>(y);
    scale_rows(y, from_start);
    wgmma_begin();
    multiply_tokens<T>(y, rounded, tile_descriptor<128>(k + group_ * kPanel));
    wgmma_commit();
    publish<kGradient>(state_, copy(false, stretch, true), chunk > first ? chunk - 1 : -1, false, chunk + 1 < last,
                       chunk);
    issue_scores(true, chunk == last, n_ + 1);
    wgmma_wait<1>(y);
    if constexpr (kGradient) {
      const float2 dots = dot_rows(block_.tile(n_, kQ) + group_ * kPanel, y);
      put_parts(DecayPart(kQueryHalves + group_), chunk, dots);
      add_rows(y, own, k + group_ * kPanel);
    }
    warp_arrive(block_.empty(n_));
    begin_store(last);
    stage(y, box(0));
    finish_store(chunk, false);
    wgmma_wait<0>(scores_);
    ++n_;
  }

  __device__ __forceinline__ void reversed(int32_t chunk, int32_t end, bool last, int32_t stretch) {
    const uint32_t v = block_.tile(n_, kV), d_o = block_.tile(n_, kDo), k = block_.tile(n_, kK),
                   q = block_.tile(n_, kQ);
    const Decays &decays = block_.decays(n_);
    float y[64];
    uint32_t rounded[16], written[16];
    float own[2];
    uint32_t state[32];
    if constexpr (kGradient) load_state_before(chunk, chunk == end, copy(true, stretch, true), state);
    scale_tokens(q, decays.from_start, written);
    float through = 0;
    if constexpr (kGradient) through = multiply_by_gradient(state) * decays.total;
    scale_by(gradient_, decays.total);
    wgmma_begin();
    multiply_tokens<T>(gradient_, written, wide_descriptor(d_o, kPanel));
    wgmma_commit();
    wait_published();
    wgmma_begin();
    if (group_) {
      multiply_state<T, true>(y, k, copy(true, stretch));
    } else {
      multiply_state<T, false>(y, v, copy(true, stretch));
    }
    wgmma_commit();
    wgmma_wait<1>(gradient_);
    round_scores<T, true>(at_, decays, p_.log2_scale, scores_, rounded, kGradient && !group_, own);
    const float to_end[2] = {p_.scale * decays.to_end[at_.row], p_.scale * decays.to_end[at_.row + 8]};
    wgmma_wait<0>(y);
    scale_rows(y, to_end);
    if constexpr (kGradient) {
      put_through(chunk, through);
      if (!group_) put_parts(kFromAfter, chunk, dot_rows(k, y));
    }
    wgmma_begin();
    multiply_tokens<T>(y, rounded, wide_descriptor(group_ ? d_o : q, kPanel));
    wgmma_commit();
    publish<false>(gradient_, copy(true, stretch, true), chunk < end ? chunk + 1 : -1, true);
    issue_scores(!(last && stretch == 0), !last, n_ + 1);
    wgmma_wait<1>(y);
    if constexpr (kGradient) {
      if (!group_) {
        put_parts(kFromAll, chunk, dot_rows(k, y));
        add_rows(y, own, q);
      }
    }
    warp_arrive(block_.empty(n_));
    begin_store(chunk);
    stage(reinterpret_cast<const float(&)[32]>(y[0]), box(0));
    stage(reinterpret_cast<const float(&)[32]>(y[32]), box(1));
    finish_store(chunk, true);
    wgmma_wait<0>(scores_);
    ++n_;
  }

  // ---- The gradient of the decay

  // Where a rounded state waits for the way back, as the threads hold it: that after a chunk in the chunk's rows of
  // dk and dv, which get their results later. A warp's part of the state is as large as its 16 rows of either.
  // (Of grouped heads in scratch: there such rows are one head's of several.)
  __device__ __forceinline__ int64_t kept_step() const {  // two tokens, in 16 bytes
    if constexpr (kGrouped) return 32;
    return (group_ ? p_.d_v_strides.token : p_.d_k_strides.token) / 4;
  }
  __device__ __forceinline__ uint4 *kept(int32_t chunk) const {
    if constexpr (kGrouped)
      return static_cast<uint4 *>(p_.kept) +
             ((int64_t{blockIdx.x} * kKept + chunk % kStretch) * kConsumers + threadIdx.x / 32) * 8 * kept_step() +
             lane();
    const Strides &strides = group_ ? p_.d_v_strides : p_.d_k_strides;
    const int64_t token = int64_t{block_.begin} + chunk * kChunk + 16 * at_.warp + lane() / 16;
    T *const first = static_cast<T *>(group_ ? p_.d_v : p_.d_k) + int64_t{block_.row} * strides.batch +
                     block_.head * strides.head + token * strides.token;
    return reinterpret_cast<uint4 *>(first) + lane() % 16;
  }
  // The rounded state before a chunk. Before the stretch's last it is there still, as `copy`; before its first it
  // is the checkpoint.
  __device__ __forceinline__ void load_state_before(int32_t chunk, bool last, uint32_t copy,
                                                    uint32_t (&pairs)[32]) {
    if (last) {
#pragma unroll
      for (int j = 0; j < 16; j += 2) {
        uint32_t m[4];
        load_matrices(m, place(copy, j));
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[2 * j + i] = m[i];
      }
      return;
    }
    if (chunk % kStretch == 0) return load_checkpoint(chunk / kStretch, pairs);
    const uint4 *from = kept(chunk - 1);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint4 v = *from;
      from += kept_step();
      pairs[4 * j] = v.x, pairs[4 * j + 1] = v.y, pairs[4 * j + 2] = v.z, pairs[4 * j + 3] = v.w;
    }
  }
  // This thread's part of <S, dS>.
  __device__ __forceinline__ float multiply_by_gradient(const uint32_t (&pairs)[32]) const {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float2 s = unpack<T>(pairs[i]);
      part[i % 4] = fmaf(s.x, gradient_[2 * i], fmaf(s.y, gradient_[2 * i + 1], part[i % 4]));
    }
    return (part[0] + part[1]) + (part[2] + part[3]);
  }
  // Of what passes over the chunk, this warp's part.
  __device__ __forceinline__ void put_through(int32_t chunk, float sum) const {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane() == 0)
      p_.through[((int64_t{block_.checkpoint} * kStretch + chunk) * p_.heads + block_.head) * kConsumers +
                 threadIdx.x / 32] = p_.scale * sum;
  }
  // Of a tile, the pairs that lie where y's elements 4j to 4j + 7 do (j even).
  __device__ __forceinline__ void load_pairs(uint32_t tile, int j, float2 (&pairs)[4]) const {
    uint32_t m[4];
    load_matrices(m, (tile + j / 8 * kPanel + 16 * at_.warp * 128 + rows_) ^ j % 8 << 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = unpack<T>(m[i]);
  }
  // For each of two rows of a tile its dot product with y, in all lanes of its quad.
  template <int kCount>
  __device__ __forceinline__ float2 dot_rows(uint32_t tile, const float (&y)[kCount]) const {
    float dots[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 2) {
      float2 x[4];
      load_pairs(tile, j, x);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        dots[i] = fmaf(x[i].x, y[4 * j + 2 * i], fmaf(x[i].y, y[4 * j + 2 * i + 1], dots[i]));
    }
    return {add_quad(dots[0] + dots[2]), add_quad(dots[1] + dots[3])};
  }
  static __device__ __forceinline__ float add_quad(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
  // y += each row's factor times that of a tile.
  template <int kCount>
  __device__ __forceinline__ void add_rows(float (&y)[kCount], const float (&factor)[2], uint32_t tile) const {
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 2) {
      float2 x[4];
      load_pairs(tile, j, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float &even = y[4 * j + 2 * i], &odd = y[4 * j + 2 * i + 1];
        even = fmaf(factor[i % 2], x[i].x, even), odd = fmaf(factor[i % 2], x[i].y, odd);
      }
    }
  }
  __device__ __forceinline__ void put_parts(DecayPart part, int32_t chunk, float2 of_rows) const {
    if (lane() % 4 != 0) return;
    float *const to = p_.parts + ((part * p_.batch + block_.row) * p_.heads + block_.head) * p_.tokens +
                      block_.begin + chunk * kChunk + at_.row;
    const int32_t tokens = block_.tokens(chunk) - at_.row;
    if (tokens > 0) to[0] = of_rows.x;
    if (tokens > 8) to[8] = of_rows.y;
  }

  // ---- Results leave by way of this warp's two boxes of 16 rows and 64 columns.
  __device__ __forceinline__ uint32_t box(int i) const {
    return block_.base + Layout::kOut + (2 * (threadIdx.x / 32) + i) * Layout::kOutBox;
  }
  // Until the last results have left the boxes. Chunks after `back` have been walked back, too.
  __device__ __forceinline__ void begin_store(int32_t back) const {
    if constexpr (kGrouped) results_.wait_taken(block_.chunks - 1 - back);
    wait_stores();
    __syncwarp();
  }
  static __device__ __forceinline__ void wait_stores() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
  __device__ __forceinline__ void stage(const float (&y)[32], uint32_t to) const {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = pack<T>(y[4 * j + 2 * i], y[4 * j + 2 * i + 1]);
      store_matrices((to + rows_) ^ j << 4, m[0], m[1], m[2], m[3]);
    }
  }
  // What is staged of a chunk leaves with the next `send`, after a fence; where not all rows are the run's, at
  // once.
  __device__ __forceinline__ void finish_store(int32_t chunk, bool back) {
    if constexpr (kGrouped)
      if (back) return results_.offer();
    const int32_t tokens = block_.tokens(chunk) - 16 * at_.warp;
    if (tokens >= kStoreRows || tokens <= 0) return;
    __syncwarp();
    const Strides &strides = back ? (group_ ? p_.d_v_strides : p_.d_k_strides) : p_.d_q_strides;
    T *const first = static_cast<T *>(back ? (group_ ? p_.d_v : p_.d_k) : p_.d_q) +
                     int64_t{block_.row} * strides.batch + block_.head * strides.head +
                     (int64_t{block_.begin} + chunk * kChunk + 16 * at_.warp) * strides.token +
                     (back ? 0 : 64 * group_);
#pragma unroll 1
    for (int32_t at = lane(); at < tokens * (back ? 16 : 8); at += 32) {
      const int32_t row = at / 8 % tokens, i = at / 8 / tokens;
      store_global_16(first + row * strides.token + 64 * i + at % 8 * 8,
                      load_shared_16(box(i) + tile_offset<64>(row, at % 8)));
    }
  }
  __device__ __forceinline__ void send(int32_t chunk, bool back) {
    if constexpr (kGrouped)
      if (back) return collect(chunk);
    if (chunk < 0 || block_.tokens(chunk) - 16 * at_.warp < kStoreRows || lane() != 0) return;
    const CUtensorMap *const to = back ? (group_ ? &p_.d_v_to : &p_.d_k_to) : &p_.d_q_to;
    const int32_t token = block_.begin + chunk * kChunk + 16 * at_.warp;
    tma_store_panels(to, box(0), token, back ? 0 : group_, block_.head, block_.row, Keep::kBriefly);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  __device__ __forceinline__ void collect(int32_t chunk) {
    if (chunk < 0) return;
    const Strides &strides = group_ ? p_.d_v_strides : p_.d_k_strides;
    T *const first = static_cast<T *>(group_ ? p_.d_v : p_.d_k) + int64_t{block_.row} * strides.batch +
                     block_.head / kMembers * strides.head +
                     (int64_t{block_.begin} + chunk * kChunk + 16 * at_.warp) * strides.token;
    results_.collect(block_.chunks - 1 - chunk, first, strides.token, block_.tokens(chunk) - 16 * at_.warp);
  }

  const Params &p_;
  const Block &block_;
  GroupResults<T, kMembers> results_;
  const Place at_;
  const uint32_t group_;
  // Offsets in swizzled panels of the 16-byte pieces that this lane names for four 8x8 matrices: of 16 rows and 16
  // columns from a panel's beginning; and, for transposed ones, of 16 rows and this warp's 16 columns.
  const uint32_t rows_, columns_;
  uint32_t n_ = 0;  // steps
  uint32_t published_ = 0;
  float state_[64], gradient_[64], scores_[32];
};

}  // namespace lasp::gpu::hopper::fused
