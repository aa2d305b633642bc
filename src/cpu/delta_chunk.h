// The delta rule on one chunk of one head, for every decay kind. With S the state before the chunk, D as in
// chunk_math.h and Kt, Qt, Kh the keys and queries decayed from the chunk's start and the keys decayed to its end:
//
//   A = strictly lower (k_i . k_j D_ij)     T' = (I + A diag(beta))^-1
//   E = T' (V - Kt S)                       what each token finds missing along its key, that is v - k^T (state)
//   U = diag(beta) E                        what it writes there
//   O = scale (Qt S + lower (q_i . k_j D_ij) U)        S' = exp(G_C) S + Kh^T U
//
// beta stands right of A, so that a row of T' is finite and exact where beta is 0. docs/reference/delta-rule.md has
// the formulas of the backward pass and says what may be rounded where.
//
// Columns of S, V, E, U and O do not meet: each function takes as many as its tiles have.
#pragma once

#include "chunk_math.h"

namespace lasp::cpu {

// A chunk's tiles of one head.
struct DeltaInputs {
  Tile q, k, v, d_o;
};

class DeltaMath {
 public:
  DeltaMath(const Problem &problem, const ChunkMath &math);

  void begin_pass(const void *beta) { beta_tensor_ = beta; }
  // Fills s.beta.
  void load_beta(Scratch &s, const TokenSpan &span, int32_t head) const;
  // From s.dots; `add`: to what is there.
  void store_d_beta(Scratch &s, const TokenSpan &span, int32_t head, void *d_beta, bool add) const;

  // -- Forward (delta_chunk.cpp). s.decay and s.beta have been found.
  // s.key_score: k_i . k_j D_ij with zeros on the diagonal; `solved`: T', [chunk, chunk].
  void find_key_scores(Scratch &s, const TokenSpan &span, Tile k) const;
  void solve(Scratch &s, const TokenSpan &span, float *solved) const;
  // `scores`: scale q_i . k_j D_ij, [chunk, chunk].
  void find_scores(Scratch &s, const TokenSpan &span, Tile q, Tile k, float *scores) const;
  // s.errors = E and s.written = U, [length, columns]. `k_in`: Kt. No data in v: zero; state null: zero.
  void find_written(Scratch &s, const TokenSpan &span, const float *solved, Tile k_in, Tile v, const float *state,
                    int columns) const;
  // The output from s.score, s.written and the state.
  void output(Scratch &s, const TokenSpan &span, Tile q, const float *state, OutTile o) const;
  // part = Kh^T U, [K, columns].
  void state_part(Scratch &s, const TokenSpan &span, Tile k, int columns, float *part) const;

  // -- Backward (delta_chunk_backward.cpp)
  // s.d_written = dU and s.d_errors = dE, [length, columns]. `k_out`: Kh; d_state: after the chunk, null for zero.
  void find_d_written(Scratch &s, const TokenSpan &span, const float *solved, const float *scores, Tile k_out,
                      Tile d_o, const float *d_state, int columns) const;
  // part = scale Qt^T dO - Kt^T dE, [K, columns].
  void gradient_part(Scratch &s, const TokenSpan &span, Tile q_in, Tile k_in, Tile d_o, int columns,
                     float *part) const;
  // Every gradient of a chunk, from `scores`, s.key_score, s.errors, s.written, s.d_written and s.d_errors; beta's
  // goes to s.dots. Changes s.d_written.
  void gradients(Scratch &s, const TokenSpan &span, const DeltaInputs &in, const float *scores, const float *state,
                 const float *d_state, const GradientTiles &to) const;

  // One token of the recurrence. s.decay is not read.
  void step(Scratch &s, float *state, Factor factor, Tile q, Tile k, Tile v, float *out) const;

 private:
  void scalar_gradients(Scratch &s, const TokenSpan &span, const DeltaInputs &in, const float *scores,
                        const float *state, const GradientTiles &to) const;
  void channel_gradients(Scratch &s, const TokenSpan &span, const DeltaInputs &in, const float *state,
                         const GradientTiles &to) const;
  void state_products(Scratch &s, const TokenSpan &span, Tile d_o, const float *state) const;

  const ChunkMath &math_;
  const Kernels &kernels_;
  DType beta_dtype_, d_beta_dtype_;
  Layout beta_layout_, d_beta_layout_;
  bool per_channel_;
  int chunk_, keys_, values_;
  float scale_;
  const void *beta_tensor_ = nullptr;
};

}  // namespace lasp::cpu
