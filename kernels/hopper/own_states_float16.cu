// States of runs from zero for float16 tensors.
#include "own_states.cuh"

#include "linear_pass.h"

namespace lasp::gpu::hopper {

int enqueue_own_states_float16(const PassParams &params, int32_t columns, int64_t blocks, Stream stream) {
  return enqueue_own_states_typed<__half>(params, columns, blocks, stream);
}

}  // namespace lasp::gpu::hopper
