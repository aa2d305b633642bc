// The elementwise arithmetic between the matrix products, and for AVX2 the products too. One table of functions,
// compiled for plain x86-64 (or any other machine), AVX2 with FMA and F16C, and AVX-512, chosen once by what the
// processor has. A table instead of target_clones: those need IFUNC, whose resolvers run before the sanitizers'
// runtimes are ready.
#pragma once

#include <cstdint>
#include <span>

#include "core/problem.h"

namespace lasp::cpu {

// Tokens of a block whose decay products are formed directly (channel decay).
inline constexpr int kBlock = 16;
// Log decays are taken as at least this (a decay of zero), so that sums stay finite where g is -infinity.
inline constexpr float kLowestLog = -1e4f;
// Rows that are so many floats apart lie two to a page at most, and in few sets of the caches.
inline constexpr int64_t kFarRows = 512;
// The largest head dimension.
inline constexpr int64_t kMostCols = 512;

// Rows are `ld` elements apart and `cols` (a multiple of 8) wide. A factor of a state is one decay (stride 0) or
// one per row (stride 1), in the code of ../decay.h.
struct Factor {
  const float *code;
  int64_t stride;
};

// Channel decay, the part of a chunk's gradients that needs nothing from later chunks. dq and dk come without the
// terms of a token with itself (j = i), which cancel in dg_t = sum_{i>=t} (q_i dq_i - k_i dk_i); then the diagonal
// of p adds them, and the sums are added to (or written over) the outputs. `dg` may be null; `run` sums it.
struct ChannelLocal {
  const float *q, *k, *p;
  const float *dq, *dk;  // contiguous
  const float
      *dk_read;  // likewise, of keys that read as queries do (delta rule): its sign in dg is theirs; or null
  float *out_dq, *out_dk, *dg;
  int64_t q_ld, k_ld, p_ld, out_dq_ld, out_dk_ld, dg_ld;
  float *run;  // one row; changed
  bool add_dq, add_dk, add_dg;
};

// The part from later chunks: dk_t = tail_t by[block] from_t joins out_dk; dg_t += run + sum_{j<t} k_j dk_j.
struct ChannelIncoming {
  const float *k, *from, *tail, *by;  // from, tail: contiguous; by: one row for each block
  float *run;                         // one row; changed
  float *out_dk, *dg;
  int64_t k_ld, out_dk_ld, dg_ld;
};

// c [m, n] = alpha a b + beta c, of k terms. Rows are ld* elements apart. turn_a: a lies as [k, m]; turn_b: b lies
// as [n, k]. With beta 0, c is only written.
struct Product {
  bool turn_a, turn_b;
  int m, n, k;
  float alpha, beta;
  const float *a, *b;
  float *c;
  int64_t lda, ldb, ldc;
};

struct Kernels {
  const char *name;  // for a description of a plan
  const char *id;    // the same as an identifier

  // -- Conversion (convert_kernels.h). Rounds to nearest even.
  void (*load_rows)(float *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows, int64_t cols,
                    DType type);
  // `stream`: past the caches.
  void (*store_rows)(void *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows, int64_t cols,
                     DType type, bool stream);

  // -- Exponentials (score_kernels.h). Arrays are padded to a multiple of 8.
  void (*exp_doubles)(float *to, const double *x, int64_t count);
  // to[j] = exp(at - sums[j])
  void (*exp_differences)(float *to, double at, const double *sums, int64_t count);
  // The codes of exp(x).
  void (*decay_codes)(float *to, const double *x, int64_t count);

  // -- Rows of the score matrix (score_kernels.h): row i keeps columns 0..i and is zero from there up to `end`.
  // `decay` is row i of D, or null for ones.
  void (*mask_row)(float *score, const float *decay, int64_t i, int64_t end);
  // score (scale * q.k on entry) becomes D * score; grad (do.v on entry) becomes scale * D * grad. With
  // `column_sums` adds W_ij = grad score (before decay counts twice) of columns j < i to it and returns their sum.
  double (*gradient_row)(float *score, float *grad, const float *decay, float scale, int64_t i, int64_t end,
                         float *column_sums);

  // -- Rows of tiles (row_kernels.h)
  void (*scale_rows)(float *to, int64_t to_ld, const float *from, int64_t from_ld, const float *by, int64_t rows,
                     int64_t cols);
  // to [cols, rows] = the transposed rows, and zeros up to a multiple of 8 columns, which to_ld has room for.
  void (*transpose)(float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows, int64_t cols);
  // to = (add ? to : 0) + by[i] * from (by may be null: ones); with `with`, dots[i] = by[i] * (from . with).
  void (*add_rows)(float *to, int64_t to_ld, bool add, const float *from, int64_t from_ld, const float *by,
                   const float *with, int64_t with_ld, double *dots, int64_t rows, int64_t cols);

  // -- States (row_kernels.h), contiguous [rows, cols]
  // slot holds a chunk's own part on entry and on return the state before it, run, rounded; run = factor * run +
  // part. float64, so that the roundings of thousands of chunks do not add up. With `from_slot` the step starts
  // from the rounded state.
  void (*scan_step)(float *slot, double *run, Factor factor, int64_t rows, int64_t cols, bool from_slot);
  // to = factor * x + y; rows with a zero factor take y alone, whatever x holds.
  void (*affine)(float *to, Factor factor, const float *x, const float *y, int64_t rows, int64_t cols);
  // dots[r] = a_r . b_r
  void (*row_dots)(double *dots, const float *a, const float *b, int64_t rows, int64_t cols);
  // One token of the recurrence: state = factor * state + key value^T, out = scale * state^T query.
  void (*step)(float *state, Factor factor, const float *query, const float *key, const float *value, float scale,
               float *out, int64_t rows, int64_t cols);

  // -- Channel decay (channel_kernels.h). Tiles are [tokens, cols], contiguous.
  // From g: step = exp(g), head = product from the block's first token to this one, tail = product after this
  // token to the block's last; block_log[b] = the block's sum of g. Head and step may be null.
  void (*channel_products)(const float *g, int64_t tokens, int64_t cols, float *step, float *head, float *tail,
                           double *block_log);
  // to = from * product * by[block of the token] (by may be null)
  void (*scale_channels)(float *to, const float *from, int64_t from_ld, const float *product, const float *by,
                         int64_t tokens, int64_t cols);
  // sum += from * by (by: one row; null: ones)
  void (*add_channels)(float *sum, const float *from, const float *by, int64_t tokens, int64_t cols);
  // Scores of one block, at most 16 tokens, by the recurrence: score[i][j] = scale * sum_c q_ic k_jc E_ijc, j <= i.
  void (*block_scores)(float *score, int64_t score_ld, const float *q, int64_t q_ld, const float *k, int64_t k_ld,
                       const float *step, float scale, int64_t tokens, int64_t cols, float *work);
  // dq_i = sum_{j<i} p_ij k_j E_ij and dk_j = sum_{i>j} p_ij q_i E_ij, added to what is there.
  void (*block_gradients)(const float *p, int64_t p_ld, const float *q, int64_t q_ld, const float *k, int64_t k_ld,
                          const float *step, float *dq, float *dk, int64_t tokens, int64_t cols);
  void (*channel_local)(const ChannelLocal &, int64_t tokens, int64_t cols);
  void (*channel_incoming)(const ChannelIncoming &, int64_t tokens, int64_t cols);

  // -- Delta rule (delta_kernels.h)
  // to [n, n] = (I + a diag(beta))^-1, lower triangular, zero up to the end of each block of `block` columns; only
  // what is below a's diagonal is read. Substitution in float64 in `work` ([n, ld of to] and a row), rounded once.
  void (*solve)(float *to, const float *a, int64_t ld, const float *beta, int64_t n, int64_t block, double *work);
  // Row i of a score that has its decay and of its gradient before decay: grad becomes scale * decay * grad, zero
  // right of the diagonal up to `end`. `decay` and `column_sums` as in gradient_row.
  double (*pair_row)(const float *score, float *grad, const float *decay, float scale, int64_t i, int64_t end,
                     float *column_sums);
  // to = sum over rows of by[r] state_r
  void (*weighted_rows)(float *to, const float *state, const float *by, int64_t rows, int64_t cols);

  // -- Products (product_kernels.h). A number of c has the same bits whatever m and n it is worked out with. Null
  // but for AVX2: without it the registers are too few, and with AVX-512 a BLAS's vectors are twice as long.
  void (*multiply)(const Product &);
};

#if defined(__x86_64__)
// What an x86-64 processor can do, and which registers its system saves.
struct ProcessorFeatures {
  uint32_t basic = 0;     // CPUID, leaf 1, ECX
  uint32_t extended = 0;  // leaf 7, EBX
  uint32_t saved = 0;     // XCR0
};
std::span<const Kernels *const> kernels_for(const ProcessorFeatures &);
#endif

// Every table this processor can run, the best one first.
std::span<const Kernels *const> usable_kernels();
inline const Kernels &kernels() { return *usable_kernels().front(); }

}  // namespace lasp::cpu
