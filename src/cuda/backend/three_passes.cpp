#include "cuda/backend/three_passes.h"

namespace lasp::cuda {

void ThreePasses::query(const BackwardBuffers &b, const ScanWorkspace &states, void *staged) const {
  const PlanInputs &inputs = plan_.inputs;
  gpu::GenericPass pass = inputs.base_pass(plan_.cut.runs[0].span(), b.decay);
  pass.a = inputs.do_of(b.d_o);
  pass.b = inputs.v_of(b.v);
  pass.c = inputs.k_of(b.k);
  pass.scale = inputs.backward_scale();
  pass.state_in = states.slots;
  pass.state_transposed = true;
  sums_.run(pass, inputs.dq(b), staged, "gradients of q");
}

gpu::GenericPass ThreePasses::reversed_pass(const BackwardBuffers &b, const ScanWorkspace &gradients,
                                            gpu::RunFilter filter) const {
  const float scale = plan_.inputs.backward_scale();
  gpu::GenericPass pass = plan_.inputs.base_pass(plan_.cut.runs[1].span(), b.decay);
  pass.filter = filter;
  pass.entry_decay = gradients.entry_decay;
  pass.reversed = true;
  pass.scale = scale;
  pass.in_scale = 1 / scale;  // the gradient of the state holds the scale already
  pass.out_scale = scale;
  pass.state_in = gradients.slots;
  return pass;
}

void ThreePasses::value(const BackwardBuffers &b, const ScanWorkspace &gradients, void *staged,
                        gpu::RunFilter filter) const {
  const PlanInputs &inputs = plan_.inputs;
  const Problem &p = plan_.problem();
  gpu::GenericPass dv = reversed_pass(b, gradients, filter);
  dv.a = inputs.k_of(b.k);
  dv.b = inputs.q_of(b.q);
  dv.c = inputs.do_of(b.d_o);
  // What a strong decay leaves of a first token's part is below float16, in which the per-channel kernel scales
  // tokens: there the recurrent kernel finds it. It alone adds to states, too.
  const bool too_small = p.decay == Decay::kChannel && p.dtype == DType::kFloat16;
  dv.edge_adds = b.adds(LASP_ADD_D_INITIAL_STATE);
  const bool apart = plan_.choices.tensor_cores && (too_small || dv.edge_adds);
  if (!apart) dv.edge_state = b.d_initial_state;
  sums_.run(dv, inputs.dv(b), staged, "gradients of v");
  const DeviceArray<gpu::Run> &beginnings = plan_.cut.beginnings;
  if (!apart || b.d_initial_state == nullptr || beginnings.size() == 0) return;
  dv.y = inputs.o_of(nullptr);
  dv.edge_state = b.d_initial_state;
  dv.runs = beginnings.data();
  dv.num_runs = beginnings.size();
  dv.filter = gpu::RunFilter::kAll;
  check_launch(gpu::launch_generic_pass(dv, plan_.stream), "gradients of initial states");
}

void ThreePasses::key(const BackwardBuffers &b, const ScanWorkspace &gradients, void *staged,
                      gpu::RunFilter filter) const {
  const PlanInputs &inputs = plan_.inputs;
  gpu::GenericPass dk = reversed_pass(b, gradients, filter);
  dk.a = inputs.v_of(b.v);
  dk.b = inputs.do_of(b.d_o);
  dk.c = inputs.q_of(b.q);
  dk.state_transposed = true;
  sums_.run(dk, inputs.dk(b), staged, "gradients of k");
}

}  // namespace lasp::cuda
