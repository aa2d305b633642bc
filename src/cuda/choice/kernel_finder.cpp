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

gpu::KernelSet KernelFinder::linear_pass(const gpu::LinearPass &pass, std::string *why) const {
  const KernelShape of_pass = shape(pass.a.dim, pass.y.dim);
  std::string reason = why == nullptr ? "" : why_no_tensor_cores(of(pass), of_pass);
  for (const KernelRow &row : kernel_table()) {
    if (row.pass != of(pass) || !row.on_tensor_cores() || !row.serves(of_pass)) continue;
    const char *const refused = refusal(row.set, pass);
    if (refused == nullptr) return row.set;
    if (why != nullptr) reason = refused;
  }
  if (why != nullptr) *why = reason;
  return gpu::KernelSet::kGeneric;
}

gpu::KernelSet KernelFinder::decay_gradient() const {
  const KernelRow *row = find_kernel(KernelPass::kDecayGradient, shape(problem_.head_dim_k, problem_.head_dim_v));
  return row == nullptr ? gpu::KernelSet::kGeneric : row->set;
}

bool KernelFinder::fused_backward(const gpu::FusedBackward &pass) const {
  return find_kernel(KernelPass::kFusedBackward, shape(pass.q.dim, pass.v.dim)) != nullptr &&
         refusal(pass) == nullptr;
}

bool KernelFinder::channel_backward(const gpu::ChannelBackward &pass) const {
  return find_kernel(KernelPass::kChannelBackward, shape(pass.q.dim, pass.v.dim)) != nullptr &&
         refusal(pass) == nullptr;
}

bool KernelFinder::channel_states(const gpu::LinearPass &pass) const {
  return find_kernel(KernelPass::kStates, shape(pass.b.dim, pass.c.dim)) != nullptr &&
         states_refusal(pass) == nullptr;
}

int32_t KernelFinder::linear_pass_blocks(const gpu::LinearPass &pass) const {
  return blocks(find_kernel(of(pass), shape(pass.a.dim, pass.y.dim))->set, pass);
}

}  // namespace lasp::cuda
