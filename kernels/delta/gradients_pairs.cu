// The gradients of stretches, where two heads share one of q and k: blocks of a cluster add dq and dk up.
#include "gradients.h"
#include "gradients_kernel.cuh"

namespace lasp::gpu::delta_hopper {

int launch_gradients_of_pairs(const DeltaGradients &p, const Slots &slots, const Stretches &kept, float *partial,
                              Stream stream) {
  return gradients::launch<true>(p, slots, kept, partial, stream);
}
int load_gradients_of_pairs() { return gradients::load<true>(); }

}  // namespace lasp::gpu::delta_hopper
