// Decay that is one number for a token and head: none, constant per head, or given per token.
#include <cstring>
#include <limits>

#include "../decay.h"
#include "chunk_math.h"

namespace lasp::cpu {
namespace {

constexpr int64_t kLargeTensor = 8 << 20;  // bytes: q, k, v and o of this size fill a shared cache

constexpr float kOne = 1.0f;
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
    splits_.resize(static_cast<size_t>(heads_));
    powers_.resize(static_cast<size_t>(heads_) * (chunk_ + 1));
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
    splits_[static_cast<size_t>(h)] = head_decay_split(g);
    float *powers = powers_.data() + static_cast<size_t>(h) * (chunk_ + 1);
    float *falling = falling_.data() + static_cast<size_t>(h) * (chunk_ + 8);
    for (int n = 0; n <= chunk_; ++n) {
      const float power = head_decay_power(g, n);
      // A subnormal factor changes nothing and slows every product it enters.
      powers[n] = falling[chunk_ - n] = power < std::numeric_limits<float>::min() ? 0.0f : power;
    }
  }
}

void ChunkMath::factor_of(float *to, int32_t head, int64_t tokens, const double *log_sum) const {
  switch (decay_) {
    case Decay::kNone: *to = 1.0f; return;
    case Decay::kHead: *to = head_decay_power(static_cast<const float *>(decay_tensor_)[head], tokens); return;
    case Decay::kScalar: {
      double padded[8] = {*log_sum};
      float result[8];
      kernels_->exp_doubles(result, padded, 8);
      *to = result[0];
      return;
    }
    case Decay::kChannel: kernels_->exp_doubles(to, log_sum, keys_); return;
  }
}

void ChunkMath::find_decay(Scratch &s, const Place &place, int32_t head, unsigned parts) const {
  switch (decay_) {
    case Decay::kNone: s.decay = {nullptr, nullptr, &kOne, &kZero, nullptr}; return;
    case Decay::kHead: {
      const float *powers = powers_.data() + static_cast<size_t>(head) * (chunk_ + 1);
      const float *falling = falling_.data() + static_cast<size_t>(head) * (chunk_ + 8);
      s.decay = {powers + 1, falling + chunk_ - place.length + 1, powers + place.length, &kZero, falling + chunk_};
      return;
    }
    case Decay::kScalar: find_scalar_decay(s, place, head); return;
    case Decay::kChannel: find_channel_decay(s, place, head, parts); return;
  }
}

void ChunkMath::find_scalar_decay(Scratch &s, const Place &place, int32_t head) const {
  load_values(decay_tensor_, decay_layout_, head, place, s.in, s.shorts, decay_dtype_);
  double sum = 0;
  for (int i = 0; i < place.length; ++i) s.sums[i] = sum += s.in[i] < kLowestLog ? kLowestLog : s.in[i];
  *s.log_total = sum;
  for (int i = place.length; i % 8 != 0; ++i) s.sums[i] = sum;
  kernels_->exp_doubles(s.in, s.sums, place.length);
  kernels_->exp_differences(s.out, sum, s.sums, place.length);
  s.decay = {s.in, s.out, s.in + place.length - 1, s.log_total, nullptr};
}

SplitFactor ChunkMath::token_factor(Scratch &s, const Place &place, int32_t head) const {
  switch (decay_) {
    case Decay::kNone: break;
    case Decay::kHead: {
      const SplitDecay &split = splits_[static_cast<size_t>(head)];
      return {&split.base, &split.rest, 0};
    }
    case Decay::kScalar:
      load_values(decay_tensor_, decay_layout_, head, place, s.decay_row, s.shorts, decay_dtype_);
      kernels_->split_exps(s.in, s.out, s.decay_row, 1);
      return {s.in, s.out, 0};
    case Decay::kChannel:
      load_decay_rows(s, place, head);
      kernels_->split_exps(s.head, s.tail, s.g, keys_);
      return {s.head, s.tail, 1};
  }
  return {nullptr, nullptr, 0};
}

const float *ChunkMath::decay_row(Scratch &s, int i) const {
  switch (decay_) {
    case Decay::kHead: return s.decay.toeplitz - i;
    case Decay::kScalar: kernels_->exp_differences(s.decay_row, s.sums[i], s.sums, i + 1); return s.decay_row;
    default: return nullptr;
  }
}

Tile ChunkMath::decayed_query(Scratch &s, const Place &place, Tile q) const {
  if (decay_ == Decay::kNone) return q;
  if (per_channel_) {
    kernels_->scale_channels(s.q_in, q.data, q.ld, s.head, s.block_in, place.length, keys_);
  } else {
    kernels_->scale_rows(s.q_in, keys_, q.data, q.ld, s.decay.in, place.length, keys_);
  }
  return {s.q_in, keys_};
}

Tile ChunkMath::decayed_key(Scratch &s, const Place &place, Tile k) const {
  if (decay_ == Decay::kNone) return k;
  if (per_channel_) {
    kernels_->scale_channels(s.k_out, k.data, k.ld, s.tail, s.block_out, place.length, keys_);
  } else {
    kernels_->scale_rows(s.k_out, keys_, k.data, k.ld, s.decay.out, place.length, keys_);
  }
  return {s.k_out, keys_};
}

}  // namespace lasp::cpu
