// States of runs from zero for bfloat16 tensors.
#include "own_states.cuh"

#include "linear_pass.h"

namespace lasp::gpu::hopper {

int enqueue_own_states_bfloat16(const PassParams &params, int32_t columns, int64_t blocks, Stream stream) {
  return enqueue_own_states_typed<__nv_bfloat16>(params, columns, blocks, stream);
}

}  // namespace lasp::gpu::hopper
