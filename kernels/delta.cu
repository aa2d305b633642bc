// The launches of the delta rule: those of the set that was chosen, the general kernels or those of delta/ or mma/.
#include "delta/passes.h"
#include "delta_general.h"
#include "device.cuh"
#include "mma/delta_passes.h"

namespace lasp::gpu {
namespace {

bool has_halves(KernelSet set, const DeltaInputs &p) { return p.in_halves && delta_has_halves(set); }
// A walk of all the runs' tokens in place of a half. False: there is nothing to do.
bool whole_walk(DeltaForward &p) {
  if (p.filter == RunFilter::kIndependent) {
    if (p.half == DeltaHalf::kEntered) return false;
  } else if (p.half == DeltaHalf::kOwn) {
    p.q.data = p.o.data = p.checkpoints = nullptr, p.maps = p.edge_state = nullptr;
    if (!p.leaving && !p.transition) return false;
  }
  p.half = DeltaHalf::kBoth;
  return true;
}
bool whole_walk(DeltaReversed &p) {
  if (p.filter == RunFilter::kIndependent) {
    if (p.half == DeltaHalf::kEntered) return false;
  } else if (p.half == DeltaHalf::kOwn) {
    p.d_checkpoints = nullptr, p.d_edge_state = nullptr;
    if (!p.d_leaving) return false;
  }
  p.half = DeltaHalf::kBoth;
  return true;
}

// e and z of all tokens, and the shares of tokens in the gradient of a decay per head.
int64_t tokens_floats(const DeltaGradients &p) { return p.batch * p.tokens * p.heads * p.v.dim; }

}  // namespace

int64_t delta_checkpoint_bytes(KernelSet set, const DeltaInputs &p, bool back) {
  if (set == KernelSet::kMma && p.own_checkpoints) return mma_delta::checkpoint_bytes(p, back);
  return int64_t{p.heads} * p.k.dim * p.v.dim * (set == KernelSet::kHopper ? 2 : 4);
}

const char *delta_forward_refusal(KernelSet set, const DeltaForward &p) {
  if (set == KernelSet::kHopper) return delta_hopper::forward_refusal(p);
  return set == KernelSet::kMma ? mma_delta::forward_refusal(p) : nullptr;
}
const char *delta_reversed_refusal(KernelSet set, const DeltaReversed &p) {
  if (set == KernelSet::kHopper) return delta_hopper::reversed_refusal(p);
  return set == KernelSet::kMma ? mma_delta::reversed_refusal(p) : nullptr;
}
const char *delta_gradients_refusal(KernelSet set, const DeltaGradients &p) {
  if (set == KernelSet::kHopper) return delta_hopper::gradients_refusal(p);
  return set == KernelSet::kMma ? mma_delta::gradients_refusal(p) : nullptr;
}

int64_t delta_forward_workspace(KernelSet set, const DeltaForward &p) {
  if (set == KernelSet::kHopper) return delta_hopper::forward_workspace(p);
  return set == KernelSet::kMma ? mma_delta::forward_workspace(p) : 0;
}
int64_t delta_reversed_workspace(KernelSet set, const DeltaReversed &p) {
  if (set == KernelSet::kHopper) return delta_hopper::reversed_workspace(p);
  return set == KernelSet::kMma ? mma_delta::reversed_workspace(p) : 0;
}
bool delta_walks_once(KernelSet set, const DeltaReversed &p, const DeltaGradients &gradients) {
  return set == KernelSet::kHopper && delta_hopper::walks_once(p, gradients);
}
int64_t delta_gradients_workspace(KernelSet set, const DeltaGradients &p) {
  if (set == KernelSet::kHopper) return delta_hopper::gradients_workspace(p);
  if (set == KernelSet::kMma) return mma_delta::gradients_workspace(p);
  return 2 * tokens_floats(p) + (p.decay == Decay::kHead ? p.batch * p.heads * p.tokens : 0);
}
int64_t delta_maps_floats(KernelSet set, const DeltaForward &p) {
  return set == KernelSet::kHopper ? delta_hopper::maps_floats(p) : 0;
}

int launch_delta_forward(KernelSet set, const DeltaForward &pass, Stream stream) {
  DeltaForward p = pass;
  if (!has_halves(set, p) && !whole_walk(p)) return cudaSuccess;
  if (set == KernelSet::kHopper) return delta_hopper::run_forward(p, stream);
  if (set == KernelSet::kMma) return mma_delta::run_forward(p, stream);
  delta::ForwardWalk walk{p};
  walk.transition = nullptr;
  if (const int error = delta::launch_forward(walk, stream)) return error;
  if (p.transition == nullptr) return cudaSuccess;
  walk.transition = p.transition;
  walk.o.data = walk.checkpoints = nullptr;
  return delta::launch_forward(walk, stream);
}

int launch_delta_reversed(KernelSet set, const DeltaReversed &pass, Stream stream) {
  DeltaReversed p = pass;
  if (!has_halves(set, p) && !whole_walk(p)) return cudaSuccess;
  if (set == KernelSet::kHopper) return delta_hopper::run_reversed(p, stream);
  if (set == KernelSet::kMma) return mma_delta::run_reversed(p, stream);
  return delta::launch_reversed(delta::ReversedWalk{p}, stream);
}

// The general kernels: both walks once more, over all stretches at once, then the gradients of each.
int launch_delta_gradients(KernelSet set, const DeltaGradients &p, Stream stream) {
  if (set == KernelSet::kHopper) return delta_hopper::run_gradients(p, stream);
  if (set == KernelSet::kMma) return mma_delta::run_gradients(p, stream);
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
  if (set == KernelSet::kMma) return mma_delta::load_kernels_of_delta();
  for (const auto load : {delta::load_forward, delta::load_reversed, delta::load_stretches, load_delta_maps})
    if (const int error = load()) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu
