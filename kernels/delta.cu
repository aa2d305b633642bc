// The launches of the delta rule: those of the set that was chosen, the general kernels or those of delta/.
#include "delta/passes.h"
#include "delta_general.h"
#include "device.cuh"

namespace lasp::gpu {
namespace {

// e and z of all tokens, and the shares of tokens in the gradient of a decay per head.
int64_t tokens_floats(const DeltaGradients &p) { return p.batch * p.tokens * p.heads * p.v.dim; }

constexpr const char *kNoSet = "no kernels of this set compute the delta rule";

}  // namespace

const char *delta_forward_refusal(KernelSet set, const DeltaForward &p) {
  if (set == KernelSet::kHopper) return delta_hopper::forward_refusal(p);
  return set == KernelSet::kGeneric ? nullptr : kNoSet;
}
const char *delta_reversed_refusal(KernelSet set, const DeltaReversed &p) {
  if (set == KernelSet::kHopper) return delta_hopper::reversed_refusal(p);
  return set == KernelSet::kGeneric ? nullptr : kNoSet;
}
const char *delta_gradients_refusal(KernelSet set, const DeltaGradients &p) {
  if (set == KernelSet::kHopper) return delta_hopper::gradients_refusal(p);
  return set == KernelSet::kGeneric ? nullptr : kNoSet;
}

int64_t delta_forward_workspace(KernelSet set, const DeltaForward &p) {
  return set == KernelSet::kHopper ? delta_hopper::forward_workspace(p) : 0;
}
int64_t delta_reversed_workspace(KernelSet set, const DeltaReversed &p) {
  return set == KernelSet::kHopper ? delta_hopper::reversed_workspace(p) : 0;
}
int64_t delta_gradients_workspace(KernelSet set, const DeltaGradients &p) {
  if (set == KernelSet::kHopper) return delta_hopper::gradients_workspace(p);
  return 2 * tokens_floats(p) + (p.decay == Decay::kHead ? p.batch * p.heads * p.tokens : 0);
}
int64_t delta_maps_floats(KernelSet set, const DeltaForward &p) {
  return set == KernelSet::kHopper ? delta_hopper::maps_floats(p) : 0;
}

int launch_delta_forward(KernelSet set, const DeltaForward &p, Stream stream) {
  if (set == KernelSet::kHopper) return delta_hopper::run_forward(p, stream);
  if (set != KernelSet::kGeneric) return cudaErrorInvalidValue;
  delta::ForwardWalk walk{p};
  walk.transition = nullptr;
  if (const int error = delta::launch_forward(walk, stream)) return error;
  if (p.transition == nullptr) return cudaSuccess;
  walk.transition = p.transition;
  walk.o.data = walk.checkpoints = nullptr;
  return delta::launch_forward(walk, stream);
}

int launch_delta_reversed(KernelSet set, const DeltaReversed &p, Stream stream) {
  if (set == KernelSet::kHopper) return delta_hopper::run_reversed(p, stream);
  if (set != KernelSet::kGeneric) return cudaErrorInvalidValue;
  return delta::launch_reversed(delta::ReversedWalk{p}, stream);
}

// Both walks once more, over all stretches at once, then the gradients of each.
int launch_delta_gradients(KernelSet set, const DeltaGradients &p, Stream stream) {
  if (set == KernelSet::kHopper) return delta_hopper::run_gradients(p, stream);
  if (set != KernelSet::kGeneric) return cudaErrorInvalidValue;
  float *const errors = p.workspace, *const d_written = errors + tokens_floats(p);
  float *const token_d_g = d_written + tokens_floats(p);
  if (p.decay == Decay::kHead && p.first)  // tokens of no run count nothing
    if (const cudaError_t error = cudaMemsetAsync(
            token_d_g, 0, static_cast<size_t>(p.batch * p.heads * p.tokens) * sizeof(float), stream))
      return error;
  delta::ForwardWalk forward{{static_cast<const DeltaInputs &>(p)}};
  forward.state_in = static_cast<const float *>(p.checkpoints);
  forward.filter = p.filter;
  forward.errors = errors;
  if (const int error = delta::launch_forward(forward, stream)) return error;
  delta::ReversedWalk reversed{{static_cast<const DeltaInputs &>(p)}};
  reversed.d_o = p.d_o;
  reversed.d_state_in = static_cast<const float *>(p.d_checkpoints);
  reversed.filter = p.filter;
  reversed.d_written = d_written;
  if (const int error = delta::launch_reversed(reversed, stream)) return error;
  delta::Stretches stretches{p};
  stretches.errors = errors;
  stretches.d_written = d_written;
  stretches.token_d_g = token_d_g;
  return delta::launch_stretches(stretches, stream);
}

int load_delta_kernels(KernelSet set) {
  if (set == KernelSet::kHopper) {
    const int error = delta_hopper::load_kernels_of_delta();
    return error ? error : load_delta_maps();
  }
  if (set != KernelSet::kGeneric) return cudaErrorInvalidValue;
  for (const auto load : {delta::load_forward, delta::load_reversed, delta::load_stretches, load_delta_maps})
    if (const int error = load()) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu
