// The forward pass of one chunk.
#include <algorithm>

#include "chunk_math.h"
#include "gemm.h"

namespace lasp::cpu {

// How `length` rows are to be multiplied by the transposed `columns`, [count, dim]. They are transposed first where
// that is worth it: a BLAS's small kernels multiply by a matrix as it lies much faster than by a transposed one.
Op ChunkMath::lay_columns(Scratch &s, Tile *columns, int length, int count, int dim) const {
  if (length < rows_ || products() != Products::kSmallBlas) return Op::kTransposed;
  const int ld = (count + 7) / 8 * 8;
  kernels_->transpose(s.turned, ld, columns->data, columns->ld, count, dim);
  *columns = {s.turned, ld};
  return Op::kPlain;
}

void ChunkMath::row_products(Scratch &s, OutTile out, float keep, float alpha, Tile rows, Tile columns, int length,
                             int count, int dim) const {
  const Op op = lay_columns(s, &columns, length, count, dim);
  gemm(Op::kPlain, op, length, count, dim, alpha, rows.data, rows.ld, columns.data, columns.ld, keep, out.data,
       out.ld);
}

void ChunkMath::lower_product(Scratch &s, float *score, int length, int dim, float alpha, Tile rows,
                              Tile columns) const {
  if (products() == Products::kOwn) {  // each block of columns is laid once, for all rows from the diagonal on
    for (int begin = 0; begin < length; begin += rows_)
      gemm(Op::kPlain, Op::kTransposed, length - begin, std::min(rows_, length - begin), dim, alpha,
           rows.row(begin), rows.ld, columns.row(begin), columns.ld, 0, score + int64_t{begin} * chunk_ + begin,
           chunk_);
    return;
  }
  const Op op = lay_columns(s, &columns, length, length, dim);
  for (int begin = 0; begin < length; begin += rows_) {
    const int end = std::min(begin + rows_, length);
    gemm(Op::kPlain, op, end - begin, end, dim, alpha, rows.row(begin), rows.ld, columns.data, columns.ld, 0,
         score + int64_t{begin} * chunk_, chunk_);
  }
}

void ChunkMath::scores(Scratch &s, const TokenSpan &span, float alpha, Tile rows, Tile columns, float *to) const {
  if (per_channel_) return channel_scores(s, span, alpha, rows, columns, to);
  lower_product(s, to, span.length, keys_, alpha, rows, columns);
  for (int i = 0; i < span.length; ++i) {
    const int end = std::min(i / rows_ * rows_ + rows_, span.length);
    kernels_->mask_row(to + int64_t{i} * chunk_, decay_row(s, i), i, end);
  }
}

void ChunkMath::multiply_lower(OutTile out, float keep, float alpha, const float *a, Tile from, int length,
                               int dim) const {
  for (int begin = 0; begin < length; begin += rows_) {
    const int end = std::min(begin + rows_, length);
    gemm(Op::kPlain, Op::kPlain, end - begin, dim, end, alpha, a + int64_t{begin} * chunk_, chunk_, from.data,
         from.ld, keep, out.row(begin), out.ld);
  }
}

void ChunkMath::multiply_transposed(OutTile out, float keep, float alpha, const float *a, Tile from, int length,
                                    int dim) const {
  for (int begin = 0; begin < length; begin += rows_) {
    const int end = std::min(begin + rows_, length);
    gemm(Op::kTransposed, Op::kPlain, end - begin, dim, length - begin, alpha, a + int64_t{begin} * chunk_ + begin,
         chunk_, from.row(begin), from.ld, keep, out.row(begin), out.ld);
  }
}

void ChunkMath::state_part(Scratch &s, const TokenSpan &span, Tile k, Tile v, float *part) const {
  const Tile key = decayed_key(s, span, k, s.k_out);
  gemm(Op::kTransposed, Op::kPlain, keys_, values_, span.length, 1, key.data, key.ld, v.data, v.ld, 0, part,
       values_);
}

void ChunkMath::local_output(Scratch &s, const TokenSpan &span, Tile q, Tile k, Tile v, OutTile o) const {
  if (per_channel_) {
    channel_scores(s, span, scale_, q, k, s.score);
  } else {
    lower_product(s, s.score, span.length, keys_, scale_, q, k);
  }
  for (int begin = 0; begin < span.length; begin += rows_) {
    const int end = std::min(begin + rows_, span.length);
    if (!per_channel_) {
      for (int i = begin; i < end; ++i) kernels_->mask_row(s.score + int64_t{i} * chunk_, decay_row(s, i), i, end);
    }
    gemm(Op::kPlain, Op::kPlain, end - begin, values_, end, 1, s.score + int64_t{begin} * chunk_, chunk_, v.data,
         v.ld, 0, o.row(begin), o.ld);
  }
}

void ChunkMath::state_output(Scratch &s, const TokenSpan &span, Tile q, const float *state, OutTile o) const {
  const Tile query = decayed_query(s, span, q, s.q_in);
  gemm(Op::kPlain, Op::kPlain, span.length, values_, keys_, scale_, query.data, query.ld, state, values_, 1, o.data,
       o.ld);
}

}  // namespace lasp::cpu
