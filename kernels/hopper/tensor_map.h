// Tensor maps of the Hopper kernels' loads: which tensors the copy engine can read, and how it reads them.
#pragma once

#include <cuda.h>

#include "../launch.h"

namespace lasp::gpu::hopper {

// Whether the copy engine reads this [B, T, heads, dim] tensor of 16-bit elements: address and strides in steps of
// 16 bytes. Strides of a dimension of one element do not count.
bool tensor_map_fits(const Tensor &t, int64_t batch, int64_t tokens);

// Boxes of one chunk of tokens and `columns` columns, swizzled by their width (128 bytes for 64 columns, else 64).
// False where the driver has no such function or refuses.
bool encode_tensor_map(CUtensorMap &map, const Tensor &t, int64_t batch, int64_t tokens, DType dtype,
                       uint32_t columns);

// Boxes of `rows` tokens and `panels` panels of 128 bytes, 64 columns or 32 of float32, which lie in shared memory
// one after the other, each swizzled by 128 bytes.
bool encode_panels_map(CUtensorMap &map, const Tensor &t, int64_t batch, int64_t tokens, DType dtype, uint32_t rows,
                       uint32_t panels);
// The same of one panel that begins at any column: zero beyond the tensor's width, which is any multiple of 8.
bool encode_columns_map(CUtensorMap &map, const Tensor &t, int64_t batch, int64_t tokens, DType dtype,
                        uint32_t rows);

// Boxes of `rows` tokens of log decays, each with all channels, as they lie in memory: float32 or 16 bits.
bool encode_decay_map(CUtensorMap &map, const Tensor &g, int64_t batch, int64_t tokens, DType dtype, uint32_t rows);

}  // namespace lasp::gpu::hopper
