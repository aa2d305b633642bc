// Zero into tokens of padding.
#pragma once

#include <cuda_runtime_api.h>

#include "packed_tables.h"

namespace lasp::gpu {

// Every `step`-th token of [token, end), by all threads of a block.
__device__ inline void zero_tokens(const ZeroPadding::Part &part, int64_t token, int64_t end, int64_t step) {
  const uint32_t dim = part.dim, count = part.heads * dim;
  for (; token < end; token += step) {
    LASP_ROLLED for (uint32_t at = threadIdx.x; at < count; at += blockDim.x) {
      const uint32_t head = at / dim;
      const int64_t element = token * part.token + head * part.head + (at - head * dim);
      if (part.bytes == 4)
        static_cast<float *>(part.data)[element] = 0;
      else
        static_cast<uint16_t *>(part.data)[element] = 0;
    }
  }
}

}  // namespace lasp::gpu
