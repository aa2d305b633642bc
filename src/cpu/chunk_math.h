// The arithmetic of one chunk of one head, forward and backward, for every decay kind. With S the state before the
// chunk, G_i the sum of g from the chunk's start to token i, D_ij = exp(G_i - G_j) for j <= i:
//
//   o_i = scale [ exp(G_i) S^T q_i + sum_{j<=i} D_ij (q_i . k_j) v_j ]       S' = exp(G_C) S + sum_j exp(G_C - G_j)
//   k_j v_j^T
//
// For channel decay each factor is a vector over K. Every exponent is a difference along time, so never positive
// for a decay.
#pragma once

#include <cstdint>
#include <vector>

#include "core/decay.h"
#include "core/problem.h"
#include "gemm.h"
#include "kernels.h"
#include "scratch.h"
#include "tile.h"

namespace lasp::cpu {

// Which parts of a chunk's decay are wanted.
enum DecayParts : unsigned { kDecayIn = 1, kDecayOut = 2, kDecayScores = 4, kDecayAll = 7 };

// Where a chunk's gradients go. `add_*`: join what an earlier head of the group left there, or what the caller has
// in a tensor that is worked out in place.
struct GradientTiles {
  OutTile dq, dk, dv;
  bool add_dq = false, add_dk = false, add_dv = false, add_dg_channel = false;
  double *dg = nullptr;  // [length], head and scalar decay; null: not wanted
  OutTile dg_channel;    // [length, K], channel decay; null data: not wanted
};

class ChunkMath {
 public:
  ChunkMath(const Problem &problem, const Kernels &kernels);

  // Takes the pass's decay tensor; fills the tables of a per-head decay.
  void begin_pass(const void *decay);

  // -- Tensors (chunk_tiles.cpp). Direct: float32 that BLAS, which counts in int, can read and write in place.
  bool direct(const Layout &layout, DType type) const;
  // `begin`: the first of `dim` columns.
  Tile load(const void *tensor, const Layout &layout, int32_t head, const TokenSpan &span, int dim, float *room,
            int begin = 0) const;
  // Where a tile is worked out: the tensor itself where it is float32, else `room`, which `flush` then rounds and
  // stores. `complete`: nothing is left to be added after the flush; then a large tensor is written past the
  // caches, from `room` as well. `add`: what is there joins the room first, which is then worth nothing; of a tile
  // that is worked out in place it is the worker's to add (GradientTiles).
  OutTile sink(void *tensor, const Layout &layout, int32_t head, const TokenSpan &span, int dim, float *room,
               DType type, bool complete) const;
  void flush(const OutTile &from, void *tensor, const Layout &layout, int32_t head, const TokenSpan &span, int dim,
             DType type, bool add = false) const;
  void load_values(const void *tensor, const Layout &layout, int32_t head, const TokenSpan &span, float *to,
                   uint16_t *shorts, DType type) const;
  void store_values(void *tensor, const Layout &layout, int32_t head, const TokenSpan &span, const float *from,
                    uint16_t *shorts, DType type) const;

  // -- Decay (chunk_decay.cpp, channel_decay.cpp): fills s.decay and what the functions below need.
  void find_decay(Scratch &s, const TokenSpan &span, int32_t head, unsigned parts) const;
  Factor total(const Scratch &s) const { return {s.decay.total, per_channel_ ? 1 : 0}; }
  // Numbers a head's factor has: K for channel decay, else 1.
  int64_t factor_size() const { return per_channel_ ? keys_ : 1; }
  // The code of exp(sum of g over `tokens` tokens) of one head: `log_sum` is read by scalar and channel decay.
  void factor_of(float *to, int32_t head, int64_t tokens, const double *log_sum) const;
  // The decay of one token, for the step.
  Factor token_factor(Scratch &s, const TokenSpan &span, int32_t head) const;
  bool has_logs() const { return decay_ == Decay::kScalar || per_channel_; }

  // -- Products with the decay between tokens (chunk_forward.cpp), which the additive write and the delta rule
  // share. to = alpha * rows columns^T . D, lower triangle with its diagonal, zero from there up to each block's
  // end.
  void scores(Scratch &s, const TokenSpan &span, float alpha, Tile rows, Tile columns, float *to) const;
  // Rows decayed from the chunk's start to the token, or from the token to the chunk's end: x itself where there is
  // no decay, else in `room`.
  Tile decayed_query(Scratch &s, const TokenSpan &span, Tile q, float *room) const;
  Tile decayed_key(Scratch &s, const TokenSpan &span, Tile k, float *room) const;
  // out = alpha a from + keep * out, and out = alpha a^T from + keep * out; a is lower triangular, zero up to each
  // block's end.
  void multiply_lower(OutTile out, float keep, float alpha, const float *a, Tile from, int length, int dim) const;
  void multiply_transposed(OutTile out, float keep, float alpha, const float *a, Tile from, int length,
                           int dim) const;
  // out = alpha rows columns^T + keep * out, of `length` rows, `count` columns and `dim` terms.
  void row_products(Scratch &s, OutTile out, float keep, float alpha, Tile rows, Tile columns, int length,
                    int count, int dim) const;
  // score = alpha * rows columns^T, lower triangle in blocks of rows.
  void lower_product(Scratch &s, float *score, int length, int dim, float alpha, Tile rows, Tile columns) const;

  // -- Forward (chunk_forward.cpp). A chunk's own part of the state; the output from its own tokens; the output
  // from the state before it (added).
  void state_part(Scratch &s, const TokenSpan &span, Tile k, Tile v, float *part) const;
  void local_output(Scratch &s, const TokenSpan &span, Tile q, Tile k, Tile v, OutTile o) const;
  void state_output(Scratch &s, const TokenSpan &span, Tile q, const float *state, OutTile o) const;

  // -- Backward (chunk_backward.cpp, channel_backward.cpp). The chunk's own part of the state's gradient; gradients
  // that need nothing from later chunks (state: before the chunk, null for zero); those from the gradient of the
  // state after the chunk.
  void gradient_part(Scratch &s, const TokenSpan &span, Tile q, Tile d_o, float *part) const;
  void local_gradients(Scratch &s, const TokenSpan &span, Tile q, Tile k, Tile v, Tile d_o, const float *state,
                       const GradientTiles &to) const;
  void incoming_gradients(Scratch &s, const TokenSpan &span, Tile k, Tile v, const float *state,
                          const float *d_state, const GradientTiles &to) const;
  // The part of it for dk and the decay: `written` is what the chunk's tokens wrote along their keys.
  void written_gradients(Scratch &s, const TokenSpan &span, Tile k, Tile written, const float *state,
                         const float *d_state, const GradientTiles &to) const;
  // Channel decay, from s.grad = P: s.acc_q = sum_{j<i} P_ij k_j E_ij and s.acc_k = sum_{i>j} P_ij q_i E_ij. With
  // `from_state` ([length, K], in s.wide) its decayed rows join s.acc_q.
  void channel_pairs(Scratch &s, const TokenSpan &span, Tile q, Tile k, const float *p, bool from_state) const;
  // Row i of D, j <= i; null for ones.
  const float *decay_row(Scratch &s, int i) const;

  const Kernels &kernels() const { return *kernels_; }
  // The side of a triangle's blocks: rows are zero from the diagonal up to their block's end.
  int triangle_rows() const { return rows_; }
  // Whether results are written past the caches: when they would not stay there until they are read.
  bool streams() const { return streams_; }

 private:
  int ld_of(const Layout &layout, int dim) const;
  Op lay_columns(Scratch &s, Tile *columns, int length, int count, int dim) const;
  void find_scalar_decay(Scratch &s, const TokenSpan &span, int32_t head) const;
  void find_channel_decay(Scratch &s, const TokenSpan &span, int32_t head, unsigned parts) const;
  void load_decay_rows(Scratch &s, const TokenSpan &span, int32_t head) const;
  const float *level_row(const Scratch &s, int half, int block) const;
  void channel_scores(Scratch &s, const TokenSpan &span, float alpha, Tile q, Tile k, float *to) const;
  void mix_level(Scratch &s, const TokenSpan &span, Tile q, Tile k, int half) const;
  void channel_local_gradients(Scratch &s, const TokenSpan &span, Tile q, Tile k, Tile v, Tile d_o,
                               const float *state, const GradientTiles &to) const;
  void channel_level_gradients(Scratch &s, const TokenSpan &span, const float *p, int half) const;
  // From s.wide, what was written times the gradient of the state.
  void channel_written_gradients(Scratch &s, const TokenSpan &span, Tile k, const float *state,
                                 const float *d_state, const GradientTiles &to) const;

  const Kernels *kernels_;
  DType dtype_, decay_dtype_;
  Decay decay_;
  bool per_channel_, streams_;
  Layout decay_layout_;
  int64_t tokens_;
  int chunk_, keys_, values_, heads_;
  int rows_ = cpu::triangle_rows();
  bool copies_far_ = products() == Products::kOwn;  // the kernels read an operand row by row
  float scale_;
  const void *decay_tensor_ = nullptr;
  // Per-head decay: powers_[h][n] = exp(n g), n = 0..chunk, the same in falling order of n, and their codes.
  std::vector<float> powers_, falling_, codes_;
  std::vector<float> head_decay_;  // the g the tables were made from
  bool tables_filled_ = false;
};

}  // namespace lasp::cpu
