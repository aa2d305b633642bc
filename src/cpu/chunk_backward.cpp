// The backward pass of one chunk, for decays that are one number for a token and head. With dS the gradient of the
// state after the chunk and P = scale dO V^T:
//
//   dA = D.*P    A = scale D.*(Q K^T)    dQ = dA K + scale diag(exp G) dO S^T    dK = dA^T Q + diag(exp(G_C - G)) V
//   dS^T dV = A^T dO + diag(exp(G_C - G)) K dS
//
// The decay's gradient is a sum of what each g_t stands in, and is added up without ever taking a difference, since
// under a strong decay it is many orders smaller than the other gradients' terms:
//
//   dg_t = sum_{j<t<=i} W_ij + sum_{i>=t} x_i + sum_{j<t} y_j + z
//
// with W = dA.*(Q K^T), x_i = q_i . (second term of dQ_i), y_j = k_j . (second term of dK_j), z = exp(G_C) <S, dS>.
#include <algorithm>

#include "chunk_math.h"
#include "gemm.h"

namespace lasp::cpu {
void ChunkMath::gradient_part(Scratch &s, const TokenSpan &span, Tile q, Tile d_o, float *part) const {
  const Tile query = decayed_query(s, span, q, s.q_in);
  gemm(Op::kTransposed, Op::kPlain, keys_, values_, span.length, scale_, query.data, query.ld, d_o.data, d_o.ld, 0,
       part, values_);
}

void ChunkMath::local_gradients(Scratch &s, const TokenSpan &span, Tile q, Tile k, Tile v, Tile d_o,
                                const float *state, const GradientTiles &to) const {
  if (per_channel_) return channel_local_gradients(s, span, q, k, v, d_o, state, to);
  const int length = span.length;
  lower_product(s, s.score, length, keys_, scale_, q, k);
  lower_product(s, s.grad, length, values_, 1, d_o, v);

  float *column_sums = nullptr;
  if (to.dg != nullptr) {
    column_sums = s.column_sums;
    std::fill_n(column_sums, (length + 7) / 8 * 8, 0.0f);
  }
  for (int i = length - 1; i >= 0; --i) {
    const int end = std::min(i / rows_ * rows_ + rows_, length);
    const int64_t row = int64_t{i} * chunk_;
    const double rectangle =
        kernels_->gradient_row(s.score + row, s.grad + row, decay_row(s, i), scale_, i, end, column_sums);
    if (to.dg != nullptr) to.dg[i] = rectangle;
  }

  if (state != nullptr) {
    row_products(s, {s.wide, keys_}, 0, scale_, d_o, {state, values_}, length, keys_, values_);
    kernels_->add_rows(to.dq.data, to.dq.ld, to.add_dq, s.wide, keys_, s.decay.in,
                       to.dg != nullptr ? q.data : nullptr, q.ld, s.dots, length, keys_);
    if (to.dg != nullptr) {
      double later = 0;
      for (int t = length - 1; t >= 0; --t) to.dg[t] += later += s.dots[t];
    }
  }
  multiply_lower(to.dq, to.add_dq || state != nullptr ? 1.0f : 0.0f, 1, s.grad, k, length, keys_);
  multiply_transposed(to.dk, to.add_dk ? 1.0f : 0.0f, 1, s.grad, q, length, keys_);
  multiply_transposed(to.dv, to.add_dv ? 1.0f : 0.0f, 1, s.score, d_o, length, values_);
}

void ChunkMath::incoming_gradients(Scratch &s, const TokenSpan &span, Tile k, Tile v, const float *state,
                                   const float *d_state, const GradientTiles &to) const {
  written_gradients(s, span, k, v, state, d_state, to);
  const Tile key = decayed_key(s, span, k, s.k_out);
  gemm(Op::kPlain, Op::kPlain, span.length, values_, keys_, 1, key.data, key.ld, d_state, values_, 1, to.dv.data,
       to.dv.ld);
}

void ChunkMath::written_gradients(Scratch &s, const TokenSpan &span, Tile k, Tile written, const float *state,
                                  const float *d_state, const GradientTiles &to) const {
  const int length = span.length;
  row_products(s, {s.wide, keys_}, 0, 1, written, {d_state, values_}, length, keys_, values_);
  if (per_channel_) return channel_written_gradients(s, span, k, state, d_state, to);
  kernels_->add_rows(to.dk.data, to.dk.ld, true, s.wide, keys_, s.decay.out, to.dg != nullptr ? k.data : nullptr,
                     k.ld, s.dots, length, keys_);
  if (to.dg == nullptr) return;
  double earlier = 0;
  for (int t = 0; t < length; ++t) {
    to.dg[t] += earlier;
    earlier += s.dots[t];
  }
  if (state == nullptr) return;
  kernels_->row_dots(s.dots, state, d_state, keys_, values_);
  double product = 0;
  for (int c = 0; c < keys_; ++c) product += s.dots[c];
  for (int t = 0; t < length; ++t) to.dg[t] += decay_value(*s.decay.total) * product;
}

}  // namespace lasp::cpu
