// The general kernels of the delta rule (KernelSet::kGeneric) among themselves.
#pragma once

#include "delta.h"

namespace lasp::gpu::delta {

// A walk that may also keep what gradients of a stretch are made of, [B, T, H, V] without gaps: e_t of a forward
// walk, z_t of a reversed one.
struct ForwardWalk : DeltaForward {  // with `transition` nothing else
  float *errors = nullptr;
};
struct ReversedWalk : DeltaReversed {
  float *d_written = nullptr;
};
int launch_forward(const ForwardWalk &walk, Stream stream);
int launch_reversed(const ReversedWalk &walk, Stream stream);

// The gradients of stretches from the two walks' results.
struct Stretches : DeltaGradients {
  const float *errors = nullptr, *d_written = nullptr;
  float *token_d_g = nullptr;  // decay per head: [B, H, T]
  DType d_g_dtype = DType::kFloat32;
};
int launch_stretches(const Stretches &pass, Stream stream);

int load_forward();
int load_reversed();
int load_stretches();

}  // namespace lasp::gpu::delta

namespace lasp::gpu {
int load_delta_maps();
}
