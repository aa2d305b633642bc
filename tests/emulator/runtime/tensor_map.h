// cuTensorMapEncodeTiled of the stand-in CUDA runtime.
#pragma once

#include <cuda.h>

namespace emulator::runtime {

CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                      const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                      const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

}  // namespace emulator::runtime
