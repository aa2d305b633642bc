// Between tensors and tiles: strides and element types.
#include <climits>

#include "chunk_math.h"

namespace lasp::cpu {
namespace {

const void *address(const void *tensor, int64_t element, DType type) {
  return static_cast<const char *>(tensor) + element * size_of(type);
}
void *address(void *tensor, int64_t element, DType type) {
  return static_cast<char *>(tensor) + element * size_of(type);
}

}  // namespace

bool ChunkMath::direct(const Layout &layout, DType type) const {
  return type == DType::kFloat32 && (tokens_ <= 1 || (layout.token > 0 && layout.token <= INT_MAX));
}

// With a single token the stride may be anything, and BLAS wants rows that do not overlap.
int ChunkMath::ld_of(const Layout &layout, int dim) const {
  return tokens_ <= 1 ? dim : static_cast<int>(layout.token);
}

Tile ChunkMath::load(const void *tensor, const Layout &layout, int32_t head, const TokenSpan &span, int dim,
                     float *room, int begin) const {
  const void *from = address(tensor, layout.offset(span.row, span.token, head) + begin, dtype_);
  const int ld = ld_of(layout, dim);
  if (direct(layout, dtype_) && !(copies_far_ && span.length > 1 && ld >= kFarRows && ld > dim))
    return {static_cast<const float *>(from), ld};
  kernels_->load_rows(room, dim, from, layout.token, span.length, dim, dtype_);
  return {room, dim};
}

OutTile ChunkMath::sink(void *tensor, const Layout &layout, int32_t head, const TokenSpan &span, int dim,
                        float *room, DType type, bool complete) const {
  if (direct(layout, type) && !(complete && streams_)) {
    return {static_cast<float *>(tensor) + layout.offset(span.row, span.token, head), ld_of(layout, dim)};
  }
  return {room, dim};
}

void ChunkMath::flush(const OutTile &from, void *tensor, const Layout &layout, int32_t head, const TokenSpan &span,
                      int dim, DType type, bool add) const {
  void *to = address(tensor, layout.offset(span.row, span.token, head), type);
  if (to == from.data) return;  // was written, or added, in place
  for (int i = 0; add && i < span.length; ++i) {
    alignas(kAlignment) float there[kMaxHeadDim];
    kernels_->load_rows(there, 0, address(to, i * layout.token, type), 0, 1, dim, type);
    float *row = from.row(i);
    for (int c = 0; c < dim; ++c) row[c] += there[c];
  }
  kernels_->store_rows(to, layout.token, from.data, from.ld, span.length, dim, type, streams_);
}

void ChunkMath::load_values(const void *tensor, const Layout &layout, int32_t head, const TokenSpan &span,
                            float *to, uint16_t *shorts, DType type) const {
  const void *from = address(tensor, layout.offset(span.row, span.token, head), type);
  if (type == DType::kFloat32) {
    for (int i = 0; i < span.length; ++i) to[i] = static_cast<const float *>(from)[i * layout.token];
    return;
  }
  for (int i = 0; i < span.length; ++i) shorts[i] = static_cast<const uint16_t *>(from)[i * layout.token];
  kernels_->load_rows(to, 0, shorts, 0, 1, span.length, type);  // whole vectors: both rooms are padded
}

void ChunkMath::store_values(void *tensor, const Layout &layout, int32_t head, const TokenSpan &span,
                             const float *from, uint16_t *shorts, DType type) const {
  void *to = address(tensor, layout.offset(span.row, span.token, head), type);
  if (type == DType::kFloat32) {
    for (int i = 0; i < span.length; ++i) static_cast<float *>(to)[i * layout.token] = from[i];
    return;
  }
  kernels_->store_rows(shorts, 0, from, 0, 1, span.length, type, false);
  for (int i = 0; i < span.length; ++i) static_cast<uint16_t *>(to)[i * layout.token] = shorts[i];
}

}  // namespace lasp::cpu
