// The delta rule by mma.sync, for compute capability 8.0 and later: bfloat16 and float16, K to 256, V to 512, any
// decay but per channel. As kernels/delta.h has them for KernelSet::kMma.
#pragma once

#include "../delta.h"

namespace lasp::gpu::mma_delta {

const char *forward_refusal(const DeltaForward &pass);
const char *reversed_refusal(const DeltaReversed &pass);
const char *gradients_refusal(const DeltaGradients &pass);
int64_t checkpoint_bytes(const DeltaInputs &inputs, bool back);  // DeltaInputs::own_checkpoints
// In floats.
int64_t forward_workspace(const DeltaForward &pass);
int64_t reversed_workspace(const DeltaReversed &pass);
int64_t gradients_workspace(const DeltaGradients &pass);
int run_forward(const DeltaForward &pass, Stream stream);
int run_reversed(const DeltaReversed &pass, Stream stream);
int run_gradients(const DeltaGradients &pass, Stream stream);
int load_kernels_of_delta();
// Of a block of either walk, with one chunk in it.
int64_t walk_shared_bytes(int32_t dim_k);
int64_t gradients_shared_bytes(int32_t dim_k);

}  // namespace lasp::gpu::mma_delta
