// The fast kernels of the delta rule for compute capability 9.0: bfloat16 and float16, K to 128 and V to 512, of
// every decay. As kernels/delta.h has them for a KernelSet.
#pragma once

#include "../delta.h"

namespace lasp::gpu::delta_hopper {

const char *forward_refusal(const DeltaForward &pass);
const char *reversed_refusal(const DeltaReversed &pass);
const char *gradients_refusal(const DeltaGradients &pass);
// In floats.
int64_t forward_workspace(const DeltaForward &pass);
int64_t reversed_workspace(const DeltaReversed &pass);
int64_t gradients_workspace(const DeltaGradients &pass);
int64_t maps_floats(const DeltaForward &pass);
// Whether run_reversed takes `gradients`; and whether that should take less time than run_gradients afterwards.
bool can_walk_once(const DeltaReversed &pass, const DeltaGradients &gradients);
bool walks_once(const DeltaReversed &pass, const DeltaGradients &gradients);
int run_forward(const DeltaForward &pass, Stream stream);
int run_reversed(const DeltaReversed &pass, Stream stream);
int run_gradients(const DeltaGradients &pass, Stream stream);
int load_kernels_of_delta();
// Of a block of each walk and of a stretch's.
int64_t forward_shared_bytes();
int64_t reversed_shared_bytes();
int64_t gradients_shared_bytes();
namespace channel {  // where decay is per channel
int64_t forward_shared_bytes();
int64_t reversed_shared_bytes();
int64_t walk_back_shared_bytes();
}  // namespace channel

}  // namespace lasp::gpu::delta_hopper
