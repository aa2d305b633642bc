// The backward pass of one chunk under the delta rule. With S the state before the chunk and dS the gradient of the
// state after it, and E, U, T' and A as in delta_chunk.h:
//
//   dU = scale lower(q k^T . D)^T dO + Kh dS       dE = T'^T (beta dU) = dV       Z = dU - A^T dE
//   dbeta_i = Z_i . E_i
//   Aq = scale lower(dO U^T) . D                   Ak = -strictly lower(dE U^T) . D
//   dQ = exp(G) scale dO S^T + Aq K
//   dK = Ak K - exp(G) dE S^T + Aq^T Q + Ak^T K + exp(G_C - G) U dS^T
//   gradient of S: exp(G_C) dS + scale Qt^T dO - Kt^T dE
//
// A token's key reads the state, in Ak K and dE S^T, as its query does, and is written to, in the rest. The decay's
// gradient so is that of chunk_backward.cpp with two readers in place of one: W has Ak.(k k^T) too, and x_i has
// k_i . (second term of dK_i).
#include <algorithm>

#include "delta_chunk.h"
#include "gemm.h"

namespace lasp::cpu {

void DeltaMath::find_d_written(Scratch &s, const TokenSpan &span, const float *solved, const float *scores,
                               Tile k_out, Tile d_o, const float *d_state, int columns) const {
  const int length = span.length;
  math_.multiply_transposed({s.d_written, columns}, 0, 1, scores, d_o, length, columns);
  if (d_state != nullptr) {
    gemm(Op::kPlain, Op::kPlain, length, columns, keys_, 1, k_out.data, k_out.ld, d_state, columns, 1, s.d_written,
         columns);
  }
  kernels_.scale_rows(s.wide, columns, s.d_written, columns, s.beta, length, columns);
  math_.multiply_transposed({s.d_errors, columns}, 0, 1, solved, {s.wide, columns}, length, columns);
}

void DeltaMath::gradient_part(Scratch &s, const TokenSpan &span, Tile q_in, Tile k_in, Tile d_o, int columns,
                              float *part) const {
  gemm(Op::kTransposed, Op::kPlain, keys_, columns, span.length, scale_, q_in.data, q_in.ld, d_o.data, d_o.ld, 0,
       part, columns);
  gemm(Op::kTransposed, Op::kPlain, keys_, columns, span.length, -1, k_in.data, k_in.ld, s.d_errors, columns, 1,
       part, columns);
}

// s.wide = scale dO S^T, s.wide_k = -dE S^T
void DeltaMath::state_products(Scratch &s, const TokenSpan &span, Tile d_o, const float *state) const {
  math_.row_products(s, {s.wide, keys_}, 0, scale_, d_o, {state, values_}, span.length, keys_, values_);
  math_.row_products(s, {s.wide_k, keys_}, 0, -1, {s.d_errors, values_}, {state, values_}, span.length, keys_,
                     values_);
}

void DeltaMath::gradients(Scratch &s, const TokenSpan &span, const DeltaInputs &in, const float *scores,
                          const float *state, const float *d_state, const GradientTiles &to) const {
  const int length = span.length;
  const Tile written{s.written, values_}, d_errors{s.d_errors, values_};
  kernels_.add_rows(to.dv.data, to.dv.ld, to.add_dv, s.d_errors, values_, nullptr, nullptr, 0, nullptr, length,
                    values_);
  math_.lower_product(s, s.grad, length, values_, 1, in.d_o, written);
  math_.lower_product(s, s.key_grad, length, values_, -1, d_errors, written);
  if (per_channel_) {
    channel_gradients(s, span, in, state, to);
  } else {
    scalar_gradients(s, span, in, scores, state, to);
  }
  if (d_state != nullptr) math_.written_gradients(s, span, in.k, written, state, d_state, to);
  // Z, and with it beta's gradient.
  math_.multiply_transposed({s.d_written, values_}, 1, -1, s.key_score, d_errors, length, values_);
  kernels_.row_dots(s.dots, s.d_written, s.errors, length, values_);
}

void DeltaMath::scalar_gradients(Scratch &s, const TokenSpan &span, const DeltaInputs &in, const float *scores,
                                 const float *state, const GradientTiles &to) const {
  const int length = span.length, rows = math_.triangle_rows();
  const bool dg = to.dg != nullptr;
  // `scores` have their factor `scale` already, so the sums over Aq count it as it is; Aq itself takes it here.
  float *sums = dg ? s.column_sums : nullptr;
  if (dg) std::fill_n(sums, (length + 7) / 8 * 8, 0.0f);
  for (int i = length - 1; i >= 0; --i) {
    const int end = std::min((i / rows + 1) * rows, length);
    const int64_t row = int64_t{i} * chunk_;
    const float *decay = math_.decay_row(s, i);
    kernels_.pair_row(scores + row, s.grad + row, decay, scale_, i, end, sums);
    const double rectangle = kernels_.pair_row(s.key_score + row, s.key_grad + row, decay, 1, i, end, sums);
    s.key_grad[row + i] = 0;
    if (dg) to.dg[i] = rectangle;
  }
  bool add_dq = to.add_dq, add_dk = to.add_dk;
  if (state != nullptr) {
    state_products(s, span, in.d_o, state);
    kernels_.add_rows(to.dq.data, to.dq.ld, add_dq, s.wide, keys_, s.decay.in, dg ? in.q.data : nullptr, in.q.ld,
                      s.dots, length, keys_);
    double later = 0;
    for (int t = length - 1; dg && t >= 0; --t) to.dg[t] += later += s.dots[t];
    kernels_.add_rows(to.dk.data, to.dk.ld, add_dk, s.wide_k, keys_, s.decay.in, dg ? in.k.data : nullptr, in.k.ld,
                      s.dots, length, keys_);
    later = 0;
    for (int t = length - 1; dg && t >= 0; --t) to.dg[t] += later += s.dots[t];
    add_dq = add_dk = true;
  }
  math_.multiply_lower(to.dq, add_dq ? 1.0f : 0.0f, 1, s.grad, in.k, length, keys_);
  math_.multiply_lower(to.dk, add_dk ? 1.0f : 0.0f, 1, s.key_grad, in.k, length, keys_);
  math_.multiply_transposed(to.dk, 1, 1, s.grad, in.q, length, keys_);
  math_.multiply_transposed(to.dk, 1, 1, s.key_grad, in.k, length, keys_);
}

// As in channel_backward.cpp, pairs of a token with itself are left out of the sums from which the decay's gradient
// follows.
void DeltaMath::channel_gradients(Scratch &s, const TokenSpan &span, const DeltaInputs &in, const float *state,
                                  const GradientTiles &to) const {
  const int length = span.length;
  const int64_t count = int64_t{length} * keys_;
  for (int i = 0; i < length; ++i) {
    float *row = s.grad + int64_t{i} * chunk_;
    for (int j = 0; j <= i; ++j) row[j] *= scale_;
  }
  if (state != nullptr) state_products(s, span, in.d_o, state);
  math_.channel_pairs(s, span, in.q, in.k, s.grad, state != nullptr);
  std::copy_n(s.acc_q, count, s.acc_query);
  std::copy_n(s.acc_k, count, s.acc_key);
  if (state != nullptr) std::copy_n(s.wide_k, count, s.wide);
  math_.channel_pairs(s, span, in.k, in.k, s.key_grad, state != nullptr);
  for (int64_t i = 0; i < count; ++i) s.acc_key[i] += s.acc_k[i];
  kernels_.channel_local({.q = in.q.data,
                          .k = in.k.data,
                          .p = s.grad,
                          .dq = s.acc_query,
                          .dk = s.acc_key,
                          .dk_read = s.acc_q,
                          .out_dq = to.dq.data,
                          .out_dk = to.dk.data,
                          .dg = to.dg_channel.data,
                          .q_ld = in.q.ld,
                          .k_ld = in.k.ld,
                          .p_ld = chunk_,
                          .out_dq_ld = to.dq.ld,
                          .out_dk_ld = to.dk.ld,
                          .dg_ld = to.dg_channel.ld,
                          .run = s.block_work,
                          .add_dq = to.add_dq,
                          .add_dk = to.add_dk,
                          .add_dg = to.add_dg_channel},
                         length, keys_);
}

}  // namespace lasp::cpu
