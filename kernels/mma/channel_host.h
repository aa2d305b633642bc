// What the host sides of the per-channel kernels ask of tensors.
#pragma once

#include "../launch.h"

namespace lasp::gpu::mma::channel {

// Tokens are found by 32-bit strides.
inline bool pieces_of_16(const void *data, const Strides &s, int64_t element_bytes) {
  const int64_t all = s.batch | s.token | s.head;
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && all * element_bytes % 16 == 0 && s.token >= 0 &&
         s.token * element_bytes <= INT32_MAX;
}

}  // namespace lasp::gpu::mma::channel
