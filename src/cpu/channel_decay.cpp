// Decay per key channel inside a chunk. The ratio of decays between a query in block b and a key in an earlier
// block a is split at a block boundary m between them: (from m to the query) times (from the key to m), both at
// most 1. The boundaries come from halving the chunk: at each level one product handles queries right of the middle
// and keys left of it. Pairs inside one block of 16 tokens are done by the recurrence itself.
#include <algorithm>

#include "chunk_math.h"
#include "gemm.h"

namespace lasp::cpu {
namespace {

// Sums of block logs outward from block boundary `middle`: right of it up to before block b, left of it from after
// block b; blocks [begin, end).
void outward_sums(double *to, const double *log, int begin, int middle, int end, int keys) {
  for (int b = middle; b < end; ++b) {
    double *row = to + int64_t{b} * keys;
    for (int c = 0; c < keys; ++c) row[c] = b == middle ? 0.0 : row[c - keys] + log[int64_t{b - 1} * keys + c];
  }
  for (int b = middle - 1; b >= begin; --b) {
    double *row = to + int64_t{b} * keys;
    for (int c = 0; c < keys; ++c) row[c] = b == middle - 1 ? 0.0 : row[c + keys] + log[int64_t{b + 1} * keys + c];
  }
}

int blocks_of(int length) { return (length + kBlock - 1) / kBlock; }

}  // namespace

void ChunkMath::find_channel_decay(Scratch &s, const TokenSpan &span, int32_t head, unsigned parts) const {
  const int length = span.length, blocks = blocks_of(length);
  const int64_t count = int64_t{blocks} * keys_;
  load_decay_rows(s, span, head);
  const bool forward = (parts & (kDecayIn | kDecayScores)) != 0;
  kernels_->channel_products(s.g, length, keys_, forward ? s.step : nullptr, forward ? s.head : nullptr, s.tail,
                             s.block_log);
  outward_sums(s.outward, s.block_log, 0, 0, blocks, keys_);
  const double *last = s.outward + count - keys_, *last_log = s.block_log + count - keys_;
  for (int c = 0; c < keys_; ++c) s.log_total[c] = last[c] + last_log[c];
  kernels_->decay_codes(s.total, s.log_total, keys_);
  if ((parts & kDecayIn) != 0) kernels_->exp_doubles(s.block_in, s.outward, count);
  if ((parts & kDecayOut) != 0) {
    outward_sums(s.outward, s.block_log, 0, blocks, blocks, keys_);
    kernels_->exp_doubles(s.block_out, s.outward, count);
  }
  if ((parts & kDecayScores) != 0) {
    float *level = s.level;
    for (int half = 2; half < blocks; half *= 2, level += int64_t{chunk_ / kBlock} * keys_) {
      for (int begin = 0; begin < blocks; begin += 2 * half) {
        const int middle = std::min(begin + half, blocks), end = std::min(begin + 2 * half, blocks);
        outward_sums(s.outward, s.block_log, begin, middle, end, keys_);
      }
      kernels_->exp_doubles(level, s.outward, count);
    }
  }
  s.decay = {nullptr, nullptr, s.total, s.log_total, nullptr};
}

void ChunkMath::load_decay_rows(Scratch &s, const TokenSpan &span, int32_t head) const {
  const int64_t first = decay_layout_.offset(span.row, span.token, head);
  const void *from = static_cast<const char *>(decay_tensor_) + first * size_of(decay_dtype_);
  kernels_->load_rows(s.g, keys_, from, decay_layout_.token, span.length, keys_, decay_dtype_);
}

const float *ChunkMath::level_row(const Scratch &s, int half, int block) const {
  if (half == 1) return nullptr;  // neighbours: nothing lies between a block and the boundary
  int64_t level = 0;
  for (int h = 2; h < half; h *= 2) ++level;
  return s.level + (level * (chunk_ / kBlock) + block) * keys_;
}

void ChunkMath::mix_level(Scratch &s, const TokenSpan &span, Tile q, Tile k, int half) const {
  const int half_tokens = half * kBlock;
  for (int begin = 0; begin + half_tokens < span.length; begin += 2 * half_tokens) {
    const int middle = begin + half_tokens, end = std::min(begin + 2 * half_tokens, span.length);
    kernels_->scale_channels(s.mixed + int64_t{begin} * keys_, k.row(begin), k.ld, s.tail + int64_t{begin} * keys_,
                             level_row(s, half, begin / kBlock), half_tokens, keys_);
    kernels_->scale_channels(s.mixed + int64_t{middle} * keys_, q.row(middle), q.ld,
                             s.head + int64_t{middle} * keys_, level_row(s, half, middle / kBlock), end - middle,
                             keys_);
  }
}

void ChunkMath::channel_scores(Scratch &s, const TokenSpan &span, float alpha, Tile q, Tile k, float *to) const {
  const int length = span.length;
  for (int half = 1; half * kBlock < length; half *= 2) {
    mix_level(s, span, q, k, half);
    const int half_tokens = half * kBlock;
    for (int begin = 0; begin + half_tokens < length; begin += 2 * half_tokens) {
      const int middle = begin + half_tokens, end = std::min(begin + 2 * half_tokens, length);
      row_products(s, {to + int64_t{middle} * chunk_ + begin, chunk_}, 0, alpha,
                   {s.mixed + int64_t{middle} * keys_, keys_}, {s.mixed + int64_t{begin} * keys_, keys_},
                   end - middle, half_tokens, keys_);
    }
  }
  for (int begin = 0; begin < length; begin += kBlock) {
    const int count = std::min(kBlock, length - begin);
    float *corner = to + int64_t{begin} * chunk_;
    kernels_->block_scores(corner + begin, chunk_, q.row(begin), q.ld, k.row(begin), k.ld,
                           s.step + int64_t{begin} * keys_, alpha, count, keys_, s.block_work);
    for (int i = 0; i < count; ++i) std::fill(corner + i * chunk_ + begin + count, corner + (i + 1) * chunk_, 0.0f);
  }
}

}  // namespace lasp::cpu
