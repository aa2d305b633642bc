// Some of a problem's output heads, for passes that take them a tile of heads at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/launch.h"

namespace lasp::cuda {

// Heads [first, first + count) of `heads` output heads, whole groups that share a head of x or a part of one.
inline gpu::Tensor cut_heads(gpu::Tensor x, int64_t element_bytes, int32_t heads, int32_t first, int32_t count) {
  const int64_t from = int64_t{first} * x.heads / heads;
  x.data = static_cast<std::byte *>(x.data) + from * x.strides.head * element_bytes;
  x.heads = std::max(1, static_cast<int32_t>(int64_t{count} * x.heads / heads));
  return x;
}

inline const void *cut_decay(const void *g, gpu::Decay decay, int64_t head_stride, int64_t element_bytes,
                             int32_t first) {
  if (decay == gpu::Decay::kNone) return nullptr;
  const int64_t bytes = decay == gpu::Decay::kHead ? int64_t{first} * 4 : first * head_stride * element_bytes;
  return static_cast<const std::byte *>(g) + bytes;
}

}  // namespace lasp::cuda
