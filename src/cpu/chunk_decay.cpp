// Decay that is one number for a token and head: none, constant per head, or given per token.
#include <algorithm>
#include <cstring>
#include <limits>

#include "chunk_math.h"
#include "core/decay.h"

namespace lasp::cpu {
namespace {

constexpr int64_t kLargeTensor = 8 << 20;  // bytes: q, k, v and o of this size fill a shared cache

constexpr double kZero = 0.0;

}  // namespace

ChunkMath::ChunkMath(const Problem &p, const Kernels &kernels)
    : kernels_(&kernels),
      dtype_(p.dtype),
      decay_dtype_(p.decay_dtype),
      decay_(p.decay),
      per_channel_(p.decay == Decay::kChannel),
      streams_(p.batch * p.tokens * p.heads * p.head_dim_v * size_of(p.dtype) >= kLargeTensor),
      decay_layout_(p.decay_layout),
      tokens_(p.tokens),
      chunk_(p.chunk),
      keys_(p.head_dim_k),
      values_(p.head_dim_v),
      heads_(p.heads),
      scale_(p.scale) {
  if (decay_ == Decay::kHead) {
    head_decay_.resize(static_cast<size_t>(heads_));
    powers_.resize(static_cast<size_t>(heads_) * (chunk_ + 1));
    codes_.resize(powers_.size());
    falling_.resize(static_cast<size_t>(heads_) * (chunk_ + 1 + 7));  // rows are read in whole vectors
  }
}

void ChunkMath::begin_pass(const void *decay) {
  decay_tensor_ = decay;
  if (decay_ != Decay::kHead) return;
  const auto bytes = static_cast<size_t>(heads_) * sizeof(float);
  if (tables_filled_ && std::memcmp(head_decay_.data(), decay, bytes) == 0) return;  // as in the pass before
  std::memcpy(head_decay_.data(), decay, bytes);
  tables_filled_ = true;
  for (int32_t h = 0; h < heads_; ++h) {
    const float g = static_cast<const float *>(decay)[h];
    float *codes = codes_.data() + static_cast<size_t>(h) * (chunk_ + 1);
    float *powers = powers_.data() + static_cast<size_t>(h) * (chunk_ + 1);
    float *falling = falling_.data() + static_cast<size_t>(h) * (chunk_ + 8);
    for (int n = 0; n <= chunk_; ++n) {
      codes[n] = head_decay_code(g, n);
      const float power = head_decay_power(g, n);
      // A subnormal factor changes nothing and slows every product it enters.
      powers[n] = falling[chunk_ - n] = power < std::numeric_limits<float>::min() ? 0.0f : power;
    }
  }
}

void ChunkMath::factor_of(float *to, int32_t head, int64_t tokens, const double *log_sum) const {
  switch (decay_) {
    case Decay::kNone: *to = kKeepsAll; return;
    case Decay::kHead: *to = head_decay_code(static_cast<const float *>(decay_tensor_)[head], tokens); return;
    case Decay::kScalar: *to = decay_code(*log_sum); return;
    case Decay::kChannel: kernels_->decay_codes(to, log_sum, keys_); return;
  }
}

void ChunkMath::find_decay(Scratch &s, const TokenSpan &span, int32_t head, unsigned parts) const {
  switch (decay_) {
    case Decay::kNone: s.decay = {nullptr, nullptr, &kKeepsAll, &kZero, nullptr}; return;
    case Decay::kHead: {
      const float *powers = powers_.data() + static_cast<size_t>(head) * (chunk_ + 1);
      const float *falling = falling_.data() + static_cast<size_t>(head) * (chunk_ + 8);
      const float *code = codes_.data() + static_cast<size_t>(head) * (chunk_ + 1) + span.length;
      s.decay = {powers + 1, falling + chunk_ - span.length + 1, code, &kZero, falling + chunk_};
      return;
    }
    case Decay::kScalar: find_scalar_decay(s, span, head); return;
    case Decay::kChannel: find_channel_decay(s, span, head, parts); return;
  }
}

void ChunkMath::find_scalar_decay(Scratch &s, const TokenSpan &span, int32_t head) const {
  load_values(decay_tensor_, decay_layout_, head, span, s.in, s.shorts, decay_dtype_);
  double sum = 0;
  for (int i = 0; i < span.length; ++i) s.sums[i] = sum += s.in[i] < kLowestLog ? kLowestLog : s.in[i];
  *s.log_total = sum;
  for (int i = span.length; i % 8 != 0; ++i) s.sums[i] = sum;
  kernels_->exp_doubles(s.in, s.sums, span.length);
  kernels_->exp_differences(s.out, sum, s.sums, span.length);
  *s.total = decay_code(sum);
  s.decay = {s.in, s.out, s.total, s.log_total, nullptr};
}

Factor ChunkMath::token_factor(Scratch &s, const TokenSpan &span, int32_t head) const {
  switch (decay_) {
    case Decay::kNone: break;
    case Decay::kHead: return {codes_.data() + static_cast<size_t>(head) * (chunk_ + 1) + 1, 0};
    case Decay::kScalar:
      load_values(decay_tensor_, decay_layout_, head, span, s.decay_row, s.shorts, decay_dtype_);
      *s.total = decay_code(double{*s.decay_row});
      return {s.total, 0};
    case Decay::kChannel:
      load_decay_rows(s, span, head);
      std::copy_n(s.g, keys_, s.log_total);
      kernels_->decay_codes(s.total, s.log_total, keys_);
      return {s.total, 1};
  }
  return {&kKeepsAll, 0};
}

const float *ChunkMath::decay_row(Scratch &s, int i) const {
  switch (decay_) {
    case Decay::kHead: return s.decay.toeplitz - i;
    case Decay::kScalar: kernels_->exp_differences(s.decay_row, s.sums[i], s.sums, i + 1); return s.decay_row;
    default: return nullptr;
  }
}

Tile ChunkMath::decayed_query(Scratch &s, const TokenSpan &span, Tile q, float *room) const {
  if (decay_ == Decay::kNone) return q;
  if (per_channel_) {
    kernels_->scale_channels(room, q.data, q.ld, s.head, s.block_in, span.length, keys_);
  } else {
    kernels_->scale_rows(room, keys_, q.data, q.ld, s.decay.in, span.length, keys_);
  }
  return {room, keys_};
}

Tile ChunkMath::decayed_key(Scratch &s, const TokenSpan &span, Tile k, float *room) const {
  if (decay_ == Decay::kNone) return k;
  if (per_channel_) {
    kernels_->scale_channels(room, k.data, k.ld, s.tail, s.block_out, span.length, keys_);
  } else {
    kernels_->scale_rows(room, keys_, k.data, k.ld, s.decay.out, span.length, keys_);
  }
  return {room, keys_};
}

}  // namespace lasp::cpu
