// How a block of the gradients of stretches by mma.sync copies what they are found from, and reads it for the
// tensor cores.
#pragma once

#include "delta_gradients_layout.cuh"

namespace lasp::gpu::mma_delta {

template <typename T, bool kMore>
struct GradientTiles {
  using M = GradientMemory<kMore>;
  const GradientPass &p;
  const Place &place;
  char *const memory;
  const uint32_t shared;
  const int thread, lane, warp, group;  // warp: of the group
  const int stages;

  __device__ __forceinline__ float factor(int which, int token) const {
    return reinterpret_cast<const float *>(memory + M::kFactorsAt + which)[token];
  }
  __device__ __forceinline__ int row(int i) const { return 16 * warp + lane / 4 + i / 2 * 8; }  // of element i
  __device__ __forceinline__ int column(int n, int i) const { return 8 * n + lane % 4 * 2 + i % 2; }

  // Of a tensor's tokens 8 kPieces columns from `first` on; `row` bytes from token to token.
  template <int kPieces>
  __device__ __forceinline__ void copy_columns(uint32_t to, int row, const Tensor &t, int first) const {
    constexpr int kAtOnce = kGradientThreads / kPieces;  // tokens
    const int piece = thread % kPieces;
    const char *const from = tokens_of(t) + 2 * (thread / kPieces * t.strides.token + first + 8 * piece);
    delta_hopper::copy_pieces<kChunk / kAtOnce>(place.slow, [&](int i, auto copy) {
      const int token = i * kAtOnce + thread / kPieces;
      const bool there = token < place.run.length && first + 8 * piece < t.dim;
      copy(to + token * row + 16 * piece, there ? from + 2 * i * kAtOnce * t.strides.token : t.data, there);
    });
  }
  // Of 64 columns of what is kept kCount matrices each, from `matrix` on; zeros from `end` on.
  template <int kCount>
  __device__ __forceinline__ void copy_matrices(uint32_t to, const char *kept, int32_t columns, int first,
                                                int matrix, int end) const {
    constexpr int kPieces = kMatrix / 16 * kCount;
#pragma unroll
    for (int i = 0; i < kSlice / 8 * kPieces; i += kGradientThreads) {
      const int of_columns = (i + thread) / kPieces, piece = (i + thread) % kPieces;
      const bool there = first + 8 * of_columns < p.v.dim && matrix + piece / (kMatrix / 16) < end;
      const char *const from = kept + (first / 8 + of_columns) * columns + matrix * kMatrix + 16 * piece;
      mma::copy_16(to + 16 * (i + thread), there ? from : kept, there);
    }
  }
  __device__ __forceinline__ const char *tokens_of(const Tensor &t) const {
    return static_cast<const char *>(t.data) +
           2 * offset_of(t, place.run.row, place.run.begin, place.head, p.heads);
  }
  __device__ __forceinline__ void copy_keys(int first) const {
    copy_columns<kMostRows / 8>(shared + M::kK, M::kWide, p.k, first);
    copy_columns<kMostRows / 8>(shared + M::kQ, M::kWide, p.q, first);
    mma::copies_commit();
  }
  // What is kept: forward, back.
  __device__ __forceinline__ const char *kept(bool back) const {
    const void *const of_all = back ? p.d_checkpoints : p.checkpoints;
    return static_cast<const char *>(of_all) + kept_at(p, back, place.run.state, place.head);
  }
  __device__ __forceinline__ uint32_t stage_of(int slice) const {
    return shared + M::kStages + (stages > 1 ? slice % 2 : 0) * M::kStage;
  }
  // 64 columns of V, with 128 rows of K.
  __device__ __forceinline__ void copy_slice(uint32_t stage, int first_row, int first) const {
    const int matrices = p.k.dim / 8;
    const int32_t columns = kept_columns(p, false), columns_back = kept_columns(p, true);
    copy_columns<kSlice / 8>(stage + M::kDO, kNarrow, p.d_o, first);
    copy_matrices<kTokens8>(stage + M::kE, kept(false), columns, first, matrices, matrices + kTokens8);
    copy_matrices<kTokens8>(stage + M::kZ, kept(true), columns_back, first, matrices, matrices + kTokens8);
    copy_matrices<kMostRows / 8>(stage + M::kState, kept(false), columns, first, first_row / 8, matrices);
    copy_matrices<kMostRows / 8>(stage + M::kDState, kept(true), columns_back, first, first_row / 8, matrices);
    mma::copies_commit();
  }
  // This thread's part of <S, R>.
  __device__ __forceinline__ float multiply_states(uint32_t stage) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < M::kKeptRows; i += 16 * kGradientThreads) {
      const uint4 x = load_shared_16(stage + M::kState + i + 16 * thread),
                  y = load_shared_16(stage + M::kDState + i + 16 * thread);
      const uint32_t xs[] = {x.x, x.y, x.z, x.w}, ys[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 a = unpack<T>(xs[e]), b = unpack<T>(ys[e]);
        sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
      }
    }
    return sum;
  }

  // The warp's 16 tokens of a tile as a left operand, columns [16 step, ..).
  __device__ __forceinline__ void load_left(uint32_t (&a)[4], uint32_t tile, int stride, int step) const {
    load_matrices(a, tile + (16 * warp + lane % 16) * stride + lane / 16 * 16 + 32 * step);
  }
  // 16 rows of a tile as a right operand's columns.
  __device__ __forceinline__ void load_right(uint32_t (&b)[4], uint32_t tile, int stride, int rows,
                                             int step) const {
    load_matrices(b, tile + (rows + lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 16 + 32 * step);
  }

  // The same two of what is kept, of which `count` matrices lie behind each other: rows of these are columns of V.
  __device__ __forceinline__ void load_kept_left(uint32_t (&a)[4], uint32_t tile, int step) const {
    const int matrix = (2 * step + lane / 16) * kTokens8 + 2 * warp + lane / 8 % 2;
    load_matrices_transposed(a, tile + matrix * kMatrix + lane % 8 * 16);
  }
  __device__ __forceinline__ void load_kept_right(uint32_t (&b)[4], uint32_t tile, int count, int rows,
                                                  int step) const {
    const int matrix = (2 * step + lane / 8 % 2) * count + rows / 8 + lane / 16;
    load_matrices_transposed(b, tile + matrix * kMatrix + lane % 8 * 16);
  }
};

}  // namespace lasp::gpu::mma_delta
