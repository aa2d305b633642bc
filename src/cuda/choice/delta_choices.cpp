#include "cuda/choice/delta_choices.h"

#include "kernels/delta.h"

namespace lasp::cuda {

DeltaChoices make_delta_choices(const Problem &problem, int32_t compute_capability) {
  const KernelShape shape = {problem.decay, problem.head_dim_k, problem.head_dim_v, problem.dtype,
                             compute_capability};
  const auto set_of = [&](KernelPass pass) {
    const KernelRow *row = find_kernel(pass, shape);
    return row == nullptr ? gpu::KernelSet::kGeneric : row->set;
  };
  const gpu::KernelSet set = set_of(KernelPass::kDeltaForward);
  const bool all = !problem.backward ||
                   (set_of(KernelPass::kDeltaReversed) == set && set_of(KernelPass::kDeltaGradients) == set);
  return {all ? set : gpu::KernelSet::kGeneric};
}

std::string DeltaChoices::describe(int32_t compute_capability) const {
  std::string text = "CUDA, compute capability " + std::to_string(compute_capability / 10) + "." +
                     std::to_string(compute_capability % 10) + ": delta rule by ";
  text += set == gpu::KernelSet::kGeneric ? "walks in float32, token by token" : "tensor-core kernels";
  return text + ", checkpoints every " + std::to_string(gpu::delta_checkpoint_tokens(set)) + " tokens";
}

}  // namespace lasp::cuda
