#include "cuda/choice/kernel_finder.h"

namespace lasp::cuda {
namespace {

KernelPass of(const gpu::LinearPass &pass) {
  return pass.state_transposed ? KernelPass::kTransposed : KernelPass::kOutputs;
}

}  // namespace

KernelShape KernelFinder::shape(int32_t dim_k, int32_t dim_v) const {
  return {problem_.decay, dim_k, dim_v, problem_.dtype, capability_};
}

// Of the rows of a pass that serve a shape by tensor cores, the first whose kernel takes the tensors.
template <class Pass>
gpu::KernelSet KernelFinder::first_fit(KernelPass of, const KernelShape &shape, const Pass &pass, std::string *why,
                                       gpu::KernelSet newest) const {
  std::string reason = why == nullptr ? "" : why_no_tensor_cores(of, shape);
  for (const KernelRow &row : kernel_table()) {
    if (row.pass != of || !row.on_tensor_cores() || row.set > newest || !row.serves(shape)) continue;
    const char *const refused = refusal(row.set, pass);
    if (refused == nullptr) return row.set;
    if (why != nullptr) reason = refused;
  }
  if (why != nullptr) *why = reason;
  return gpu::KernelSet::kGeneric;
}

gpu::KernelSet KernelFinder::linear_pass(const gpu::LinearPass &pass, std::string *why) const {
  return first_fit(of(pass), shape(pass.a.dim, pass.y.dim), pass, why);
}

gpu::KernelSet KernelFinder::delta(const gpu::DeltaForward &pass, gpu::KernelSet newest, std::string *why) const {
  return first_fit(KernelPass::kDeltaForward, shape(pass.k.dim, pass.v.dim), pass, why, newest);
}
gpu::KernelSet KernelFinder::delta(const gpu::DeltaReversed &pass, gpu::KernelSet newest, std::string *why) const {
  return first_fit(KernelPass::kDeltaReversed, shape(pass.k.dim, pass.v.dim), pass, why, newest);
}
gpu::KernelSet KernelFinder::delta(const gpu::DeltaGradients &pass, gpu::KernelSet newest, std::string *why) const {
  return first_fit(KernelPass::kDeltaGradients, shape(pass.k.dim, pass.v.dim), pass, why, newest);
}

gpu::KernelSet KernelFinder::decay_gradient() const {
  const KernelRow *row = find_kernel(KernelPass::kDecayGradient, shape(problem_.head_dim_k, problem_.head_dim_v));
  return row == nullptr ? gpu::KernelSet::kGeneric : row->set;
}

bool KernelFinder::fused_backward(const gpu::FusedBackward &pass) const {
  return find_kernel(KernelPass::kFusedBackward, shape(pass.q.dim, pass.v.dim)) != nullptr &&
         refusal(pass) == nullptr;
}

gpu::KernelSet KernelFinder::channel_backward(const gpu::ChannelBackward &pass) const {
  return first_fit(KernelPass::kChannelBackward, shape(pass.q.dim, pass.v.dim), pass, nullptr);
}

bool KernelFinder::channel_states(const gpu::LinearPass &pass) const {
  return find_kernel(KernelPass::kStates, shape(pass.b.dim, pass.c.dim)) != nullptr &&
         states_refusal(pass) == nullptr;
}

int32_t KernelFinder::linear_pass_blocks(const gpu::LinearPass &pass) const {
  return blocks(find_kernel(of(pass), shape(pass.a.dim, pass.y.dim))->set, pass);
}

}  // namespace lasp::cuda
