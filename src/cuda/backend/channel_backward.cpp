#include "cuda/backend/channel_backward.h"

namespace lasp::cuda {

bool ChannelBackward::serves(const BackwardBuffers &b) const {
  constexpr int32_t kOwn = LASP_ADD_DQ | LASP_ADD_DK | LASP_ADD_D_DECAY;  // the walks' results
  return plan_.choices.channel && b.d_decay != nullptr && !b.adds(kOwn) &&
         plan_.kernels.channel_backward(
             channel_pass(plan_.inputs, plan_.cut.runs[0].span(), b, nullptr, nullptr)) != gpu::KernelSet::kGeneric;
}

float *ChannelBackward::place_ends(Carver &carver) const {
  return plan_.choices.channel ? carver.take<float>(plan_.inputs.factors(plan_.cut.num_runs)) : nullptr;
}

void ChannelBackward::run(const BackwardBuffers &b, const ScanWorkspace &states, const ScanWorkspace &gradients,
                          const StagedGradients &staged, float *ends) const {
  const PlanInputs &inputs = plan_.inputs;
  gpu::ChannelBackward pass = channel_pass(inputs, plan_.cut.runs[0].span(), b, staged.dq, staged.dk);
  pass.reversed_runs = plan_.cut.runs[1].data();
  pass.state = states.slots;
  pass.d_state = gradients.slots;
  pass.ends = ends;
  check_launch(gpu::launch_channel_backward(plan_.kernels.channel_backward(pass), pass, plan_.stream),
               "gradients of q, k and the decay");
  sums_.sum(inputs.dq(b), staged.dq);
  sums_.sum(inputs.dk(b), staged.dk);
  passes_.value(b, gradients, staged.dv, gpu::RunFilter::kAll);
}

}  // namespace lasp::cuda
