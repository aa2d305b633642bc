// The forward pass of one chunk.
#include <algorithm>

#include "chunk_math.h"
#include "gemm.h"

namespace lasp::cpu {

void ChunkMath::lower_product(float *score, int length, int dim, float alpha, Tile rows, Tile columns) const {
  for (int begin = 0; begin < length; begin += kRows) {
    const int end = std::min(begin + kRows, length);
    gemm(Op::kPlain, Op::kTransposed, end - begin, end, dim, alpha, rows.row(begin), rows.ld, columns.data,
         columns.ld, 0, score + int64_t{begin} * chunk_, chunk_);
  }
}

void ChunkMath::state_part(Scratch &s, const TokenSpan &span, Tile k, Tile v, float *part) const {
  const Tile key = decayed_key(s, span, k);
  gemm(Op::kTransposed, Op::kPlain, keys_, values_, span.length, 1, key.data, key.ld, v.data, v.ld, 0, part,
       values_);
}

void ChunkMath::local_output(Scratch &s, const TokenSpan &span, Tile q, Tile k, Tile v, OutTile o) const {
  if (per_channel_) {
    channel_scores(s, span, q, k);
  } else {
    lower_product(s.score, span.length, keys_, scale_, q, k);
  }
  for (int begin = 0; begin < span.length; begin += kRows) {
    const int end = std::min(begin + kRows, span.length);
    if (!per_channel_) {
      for (int i = begin; i < end; ++i) kernels_->mask_row(s.score + int64_t{i} * chunk_, decay_row(s, i), i, end);
    }
    gemm(Op::kPlain, Op::kPlain, end - begin, values_, end, 1, s.score + int64_t{begin} * chunk_, chunk_, v.data,
         v.ld, 0, o.row(begin), o.ld);
  }
}

void ChunkMath::state_output(Scratch &s, const TokenSpan &span, Tile q, const float *state, OutTile o) const {
  const Tile query = decayed_query(s, span, q);
  gemm(Op::kPlain, Op::kPlain, span.length, values_, keys_, scale_, query.data, query.ld, state, values_, 1, o.data,
       o.ld);
}

}  // namespace lasp::cpu
