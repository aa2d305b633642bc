// Tensor maps: the arguments are checked as the driver checks them, and written down in the clear.
#include "runtime/tensor_map.h"

#include <cstring>

#include "machine/machine.h"

namespace emulator::runtime {
namespace {

bool take_type(TensorMap &map, CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: map.kind = TensorMap::kFloat32, map.element_bytes = 4; return true;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: map.kind = TensorMap::kFloat16, map.element_bytes = 2; return true;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: map.kind = TensorMap::kBFloat16, map.element_bytes = 2; return true;
    default: return false;
  }
}

bool take_swizzle(TensorMap &map, CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE: map.swizzle = 0; return true;
    case CU_TENSOR_MAP_SWIZZLE_32B: map.swizzle = 32; return true;
    case CU_TENSOR_MAP_SWIZZLE_64B: map.swizzle = 64; return true;
    case CU_TENSOR_MAP_SWIZZLE_128B: map.swizzle = 128; return true;
    default: return false;
  }
}

// Extents up to 2^32, strides in steps of 16 bytes below 2^40, boxes of at most 256.
bool take_dimension(TensorMap &map, int n, cuuint64_t extent, cuuint64_t stride, cuuint32_t box, cuuint32_t step) {
  if (extent == 0 || extent > 0xffffffffu || box == 0 || box > 256 || step != 1) return false;
  if (n > 0 && (stride % 16 != 0 || stride == 0 || stride >= cuuint64_t{1} << 40)) return false;
  map.extent[n] = static_cast<uint32_t>(extent);
  map.stride[n] = n == 0 ? map.element_bytes : stride;
  map.box[n] = static_cast<uint16_t>(box);
  return true;
}

}  // namespace

// What no kernel here uses is refused: other types, element strides, interleaving, NaN beyond the tensor.
CUresult encode_tiled(CUtensorMap *to, CUtensorMapDataType type, cuuint32_t rank, void *address,
                      const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                      const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  TensorMap map;
  if (to == nullptr || reinterpret_cast<uintptr_t>(to) % 64 != 0 || rank == 0 || rank > 5)
    return CUDA_ERROR_INVALID_VALUE;
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
      !take_type(map, type) || !take_swizzle(map, swizzle))
    return CUDA_ERROR_INVALID_VALUE;
  map.rank = static_cast<uint8_t>(rank);
  map.address = reinterpret_cast<uintptr_t>(address);
  if (map.address == 0 || map.address % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  for (int n = 0; n < map.rank; ++n)
    if (!take_dimension(map, n, extents[n], n == 0 ? 0 : strides[n - 1], box[n], steps[n]))
      return CUDA_ERROR_INVALID_VALUE;
  const uint32_t inner = map.box[0] * map.element_bytes;
  if (inner % 16 != 0 || (map.swizzle != 0 && inner > map.swizzle)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(to, 0, sizeof *to);
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace emulator::runtime
