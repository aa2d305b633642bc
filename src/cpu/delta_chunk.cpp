// The forward pass of one chunk under the delta rule, and one token of the recurrence.
#include "delta_chunk.h"

#include "gemm.h"

namespace lasp::cpu {

DeltaMath::DeltaMath(const Problem &p, const ChunkMath &math)
    : math_(math),
      kernels_(math.kernels()),
      beta_dtype_(p.beta_dtype),
      d_beta_dtype_(p.d_beta_dtype),
      beta_layout_(p.beta_layout),
      d_beta_layout_(p.d_beta_layout),
      per_channel_(p.decay == Decay::kChannel),
      chunk_(p.chunk),
      keys_(p.head_dim_k),
      values_(p.head_dim_v),
      scale_(p.scale) {}

void DeltaMath::load_beta(Scratch &s, const TokenSpan &span, int32_t head) const {
  math_.load_values(beta_tensor_, beta_layout_, head, span, s.beta, s.shorts, beta_dtype_);
}

void DeltaMath::store_d_beta(Scratch &s, const TokenSpan &span, int32_t head, void *d_beta, bool add) const {
  if (add) {
    math_.load_values(d_beta, d_beta_layout_, head, span, s.decay_row, s.shorts, d_beta_dtype_);
    for (int t = 0; t < span.length; ++t) s.dots[t] += s.decay_row[t];
  }
  for (int t = 0; t < span.length; ++t) s.column_sums[t] = static_cast<float>(s.dots[t]);
  math_.store_values(d_beta, d_beta_layout_, head, span, s.column_sums, s.shorts, d_beta_dtype_);
}

void DeltaMath::find_key_scores(Scratch &s, const TokenSpan &span, Tile k) const {
  math_.scores(s, span, 1, k, k, s.key_score);
  for (int i = 0; i < span.length; ++i) s.key_score[int64_t{i} * chunk_ + i] = 0;
}

void DeltaMath::solve(Scratch &s, const TokenSpan &span, float *solved) const {
  kernels_.solve(solved, s.key_score, chunk_, s.beta, span.length, math_.triangle_rows(), s.solving);
}

void DeltaMath::find_scores(Scratch &s, const TokenSpan &span, Tile q, Tile k, float *scores) const {
  math_.scores(s, span, scale_, q, k, scores);
}

void DeltaMath::find_written(Scratch &s, const TokenSpan &span, const float *solved, Tile k_in, Tile v,
                             const float *state, int columns) const {
  const int length = span.length;
  Tile missing = v;
  if (state != nullptr || v.data == nullptr) {
    if (v.data != nullptr) kernels_.load_rows(s.written, columns, v.data, v.ld, length, columns, DType::kFloat32);
    gemm(Op::kPlain, Op::kPlain, length, columns, keys_, -1, k_in.data, k_in.ld, state, columns,
         v.data == nullptr ? 0.0f : 1.0f, s.written, columns);
    missing = {s.written, columns};
  }
  math_.multiply_lower({s.errors, columns}, 0, 1, solved, missing, length, columns);
  kernels_.scale_rows(s.written, columns, s.errors, columns, s.beta, length, columns);
}

void DeltaMath::output(Scratch &s, const TokenSpan &span, Tile q, const float *state, OutTile o) const {
  math_.multiply_lower(o, 0, 1, s.score, {s.written, values_}, span.length, values_);
  if (state != nullptr) math_.state_output(s, span, q, state, o);
}

void DeltaMath::state_part(Scratch &s, const TokenSpan &span, Tile k, int columns, float *part) const {
  const Tile key = math_.decayed_key(s, span, k, s.k_out);
  gemm(Op::kTransposed, Op::kPlain, keys_, columns, span.length, 1, key.data, key.ld, s.written, columns, 0, part,
       columns);
}

void DeltaMath::step(Scratch &s, float *state, Factor factor, Tile q, Tile k, Tile v, float *out) const {
  for (int r = 0; r < keys_; ++r)
    s.k_in[r] = static_cast<float>(decay_value(factor.code[r * factor.stride]) * double{k.data[r]});
  kernels_.weighted_rows(s.errors, state, s.k_in, keys_, values_);
  for (int c = 0; c < values_; ++c) s.errors[c] = s.beta[0] * (v.data[c] - s.errors[c]);
  kernels_.step(state, factor, q.data, k.data, s.errors, scale_, out, keys_, values_);
}

}  // namespace lasp::cpu
