// The backward pass of one chunk under channel decay. It mirrors the scores of channel_decay.cpp: with P = scale dO
// V^T,
//
//   dq_ic = sum_{j<=i} P_ij k_jc E_ijc + (state)      dk_jc = sum_{i>=j} P_ij q_ic E_ijc + (later state's gradient)
//
// and the decay's gradient follows from both: dg_t - dg_{t+1} = q_t dq_t - k_t dk_t, where a token's term with
// itself is left out of dq and dk, since it cancels and must not leave its rounding behind. What comes from the
// state before and from the gradient of the state after the chunk is summed directly, so the recurrence starts
// afresh in each chunk.
#include <algorithm>

#include "chunk_math.h"
#include "gemm.h"

namespace lasp::cpu {

void ChunkMath::channel_level_gradients(Scratch &s, const TokenSpan &span, const float *pairs, int half) const {
  const int half_tokens = half * kBlock;
  for (int begin = 0; begin + half_tokens < span.length; begin += 2 * half_tokens) {
    const int middle = begin + half_tokens, end = std::min(begin + 2 * half_tokens, span.length);
    const float *p = pairs + int64_t{middle} * chunk_ + begin;
    const float *left = s.mixed + int64_t{begin} * keys_, *right = s.mixed + int64_t{middle} * keys_;
    float *wide_left = s.wide + int64_t{begin} * keys_, *wide_right = s.wide + int64_t{middle} * keys_;
    gemm(Op::kPlain, Op::kPlain, end - middle, keys_, half_tokens, 1, p, chunk_, left, keys_, 0, wide_right, keys_);
    gemm(Op::kTransposed, Op::kPlain, half_tokens, keys_, end - middle, 1, p, chunk_, right, keys_, 0, wide_left,
         keys_);
    for (int t = begin; t < end; t += kBlock) {
      kernels_->add_channels((t < middle ? s.acc_k : s.acc_q) + int64_t{t} * keys_, s.wide + int64_t{t} * keys_,
                             level_row(s, half, t / kBlock), std::min(kBlock, end - t), keys_);
    }
  }
}

void ChunkMath::channel_pairs(Scratch &s, const TokenSpan &span, Tile q, Tile k, const float *p,
                              bool from_state) const {
  const int length = span.length;
  std::fill_n(s.acc_q, int64_t{length} * keys_, 0.0f);
  std::fill_n(s.acc_k, int64_t{length} * keys_, 0.0f);
  for (int t = 0; from_state && t < length; t += kBlock) {
    kernels_->add_channels(s.acc_q + int64_t{t} * keys_, s.wide + int64_t{t} * keys_,
                           s.block_in + int64_t{t / kBlock} * keys_, std::min(kBlock, length - t), keys_);
  }
  for (int half = 1; half * kBlock < length; half *= 2) {
    mix_level(s, span, q, k, half);
    channel_level_gradients(s, span, p, half);
  }
  kernels_->scale_channels(s.acc_q, s.acc_q, keys_, s.head, nullptr, length, keys_);
  kernels_->scale_channels(s.acc_k, s.acc_k, keys_, s.tail, nullptr, length, keys_);
  for (int t = 0; t < length; t += kBlock) {
    const int64_t row = int64_t{t} * keys_;
    kernels_->block_gradients(p + int64_t{t} * chunk_ + t, chunk_, q.row(t), q.ld, k.row(t), k.ld, s.step + row,
                              s.acc_q + row, s.acc_k + row, std::min(kBlock, length - t), keys_);
  }
}

void ChunkMath::channel_local_gradients(Scratch &s, const TokenSpan &span, Tile q, Tile k, Tile v, Tile d_o,
                                        const float *state, const GradientTiles &to) const {
  const int length = span.length;
  channel_scores(s, span, scale_, q, k, s.score);
  multiply_transposed(to.dv, to.add_dv ? 1.0f : 0.0f, 1, s.score, d_o, length, values_);

  lower_product(s, s.grad, length, values_, scale_, d_o, v);
  if (state != nullptr) {
    row_products(s, {s.wide, keys_}, 0, scale_, d_o, {state, values_}, length, keys_, values_);
  }
  channel_pairs(s, span, q, k, s.grad, state != nullptr);
  kernels_->channel_local({.q = q.data,
                           .k = k.data,
                           .p = s.grad,
                           .dq = s.acc_q,
                           .dk = s.acc_k,
                           .dk_read = nullptr,
                           .out_dq = to.dq.data,
                           .out_dk = to.dk.data,
                           .dg = to.dg_channel.data,
                           .q_ld = q.ld,
                           .k_ld = k.ld,
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

void ChunkMath::channel_written_gradients(Scratch &s, const TokenSpan &span, Tile k, const float *state,
                                          const float *d_state, const GradientTiles &to) const {
  float *run = s.block_work;  // starts as <state after the chunk's decay, its gradient> of each channel
  std::fill_n(run, keys_, 0.0f);
  if (state != nullptr && to.dg_channel.data != nullptr) {
    kernels_->row_dots(s.dots, state, d_state, keys_, values_);
    for (int c = 0; c < keys_; ++c) run[c] = static_cast<float>(decay_value(s.total[c]) * s.dots[c]);
  }
  kernels_->channel_incoming({.k = k.data,
                              .from = s.wide,
                              .tail = s.tail,
                              .by = s.block_out,
                              .run = run,
                              .out_dk = to.dk.data,
                              .dg = to.dg_channel.data,
                              .k_ld = k.ld,
                              .out_dk_ld = to.dk.ld,
                              .dg_ld = to.dg_channel.ld},
                             span.length, keys_);
}

}  // namespace lasp::cpu
