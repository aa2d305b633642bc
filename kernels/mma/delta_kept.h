// What walks of the delta rule by mma.sync keep of a chunk and head for its gradients
// (DeltaInputs::own_checkpoints), in 16 bits: forward the state before it and E; back R, the gradient of the state
// after it, and Z, both over `scale`, and what rounding took from Z, for a dv that must not be rounded twice.
//
// It is made of 8 x 8 matrices of 128 bytes, as a warp has them in its accumulators: a row is a column of V, with 8
// rows of K or 8 tokens. Of 8 columns of V, matrices of K come first, then those of E or Z, then those of the rest
// of Z. A walk back puts the chunk's factors behind all.
#pragma once

#include "../delta.h"

namespace lasp::gpu::mma_delta {

constexpr int kMatrix = 128, kKeptFactors = 1280;  // bytes

// Bytes of 8 columns of V; of a chunk and head.
constexpr int32_t kept_columns(const DeltaInputs &p, bool back) {
  return 16 * (p.k.dim + (back ? 2 : 1) * delta_checkpoint_tokens(KernelSet::kMma));
}
constexpr int64_t kept_factors(const DeltaInputs &p) {  // where they lie
  return int64_t{kept_columns(p, true)} * (p.v.dim / 8);
}
constexpr int64_t kept_bytes(const DeltaInputs &p, bool back) {
  return back ? kept_factors(p) + kKeptFactors : int64_t{kept_columns(p, false)} * (p.v.dim / 8);
}
// Of a checkpoint and head.
constexpr int64_t kept_at(const DeltaInputs &p, bool back, int64_t checkpoint, int32_t head) {
  return (checkpoint * p.heads + head) * kept_bytes(p, back);
}

}  // namespace lasp::gpu::mma_delta
