#include "tensor_map.h"

#include <cuda_runtime_api.h>

#include "layout.cuh"

namespace lasp::gpu::hopper {
namespace {

constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes, of a tensor map

bool stride_fits(int64_t stride, int64_t extent) {
  return extent <= 1 || (stride > 0 && stride % 8 == 0 && stride < kStrideLimit / 2);
}
using EncodeTiled = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                 const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

EncodeTiled find_encode() {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<EncodeTiled>(function);
}

}  // namespace

bool tensor_map_fits(const Tensor &t, int64_t batch, int64_t tokens) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && stride_fits(t.strides.batch, batch) &&
         stride_fits(t.strides.token, tokens) && stride_fits(t.strides.head, t.heads);
}

namespace {

cuuint64_t bytes(int64_t stride, int64_t extent, int64_t element = 2) {
  return extent > 1 ? cuuint64_t(stride * element) : 16;
}

int64_t element_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

CUtensorMapDataType type_of(DType dtype) {
  return dtype == DType::kFloat32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
         : dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

bool encode_map(CUtensorMap &map, void *data, DType dtype, cuuint32_t rank, const cuuint64_t *extents,
                const cuuint64_t *strides, const cuuint32_t *box, bool swizzled = true) {
  static const EncodeTiled encode = find_encode();
  if (!encode) return false;
  const auto type = type_of(dtype);
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const auto swizzle = !swizzled                              ? CU_TENSOR_MAP_SWIZZLE_NONE
                       : box[0] * element_bytes(dtype) == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                                                              : CU_TENSOR_MAP_SWIZZLE_64B;
  return encode(&map, type, rank, data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

bool encode_tensor_map(CUtensorMap &map, const Tensor &t, int64_t batch, int64_t tokens, DType dtype,
                       uint32_t columns) {
  const cuuint64_t extents[4] = {cuuint64_t(t.dim), cuuint64_t(tokens), cuuint64_t(t.heads), cuuint64_t(batch)};
  const cuuint64_t strides[3] = {bytes(t.strides.token, tokens), bytes(t.strides.head, t.heads),
                                 bytes(t.strides.batch, batch)};
  const cuuint32_t box[4] = {columns, kChunk, 1, 1};
  return encode_map(map, t.data, dtype, 4, extents, strides, box);
}

namespace {

bool encode_boxes(CUtensorMap &map, const Tensor &t, int64_t batch, int64_t tokens, DType dtype, uint32_t width,
                  uint32_t rows, uint32_t panels) {
  const int64_t element = element_bytes(dtype);
  const cuuint64_t extents[5] = {width, cuuint64_t(tokens), cuuint64_t(t.dim) / width, cuuint64_t(t.heads),
                                 cuuint64_t(batch)};
  const cuuint64_t strides[4] = {bytes(t.strides.token, tokens, element), 128,
                                 bytes(t.strides.head, t.heads, element), bytes(t.strides.batch, batch, element)};
  const cuuint32_t box[5] = {cuuint32_t(128 / element), rows, panels, 1, 1};
  return encode_map(map, t.data, dtype, 5, extents, strides, box);
}

}  // namespace

bool encode_panels_map(CUtensorMap &map, const Tensor &t, int64_t batch, int64_t tokens, DType dtype, uint32_t rows,
                       uint32_t panels) {
  return encode_boxes(map, t, batch, tokens, dtype, uint32_t(128 / element_bytes(dtype)), rows, panels);
}

bool encode_columns_map(CUtensorMap &map, const Tensor &t, int64_t batch, int64_t tokens, DType dtype,
                        uint32_t rows) {
  return encode_boxes(map, t, batch, tokens, dtype, uint32_t(t.dim), rows, 1);
}

bool encode_decay_map(CUtensorMap &map, const Tensor &g, int64_t batch, int64_t tokens, DType dtype,
                      uint32_t rows) {
  const int64_t element = element_bytes(dtype);
  const cuuint64_t extents[4] = {cuuint64_t(g.dim), cuuint64_t(tokens), cuuint64_t(g.heads), cuuint64_t(batch)};
  const cuuint64_t strides[3] = {bytes(g.strides.token, tokens, element), bytes(g.strides.head, g.heads, element),
                                 bytes(g.strides.batch, batch, element)};
  const cuuint32_t box[4] = {cuuint32_t(g.dim), rows, 1, 1};
  return encode_map(map, g.data, dtype, 4, extents, strides, box, false);
}

}  // namespace lasp::gpu::hopper
