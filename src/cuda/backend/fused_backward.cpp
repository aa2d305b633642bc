#include "cuda/backend/fused_backward.h"

#include "kernels/from_zero.h"

namespace lasp::cuda {

FusedBackward::FusedBackward(Tables &tables, const DevicePlan &plan) : plan_(plan), sums_(plan) {
  const Choices &choices = plan.choices;
  if (choices.fused)
    cut_.reset(new Partition(plan.make_cut(tables, choices.fused_run_tokens, choices.fused_state_tokens)));
}

gpu::FusedBackward FusedBackward::pass(const BackwardBuffers &b, const Workspace &workspace) const {
  gpu::FusedBackward pass =
      fused_pass(plan_.inputs, cut_->runs[1].span(), b, workspace.staged.dq, workspace.staged.dk);
  pass.num_checkpoints = cut_->num_checkpoints;
  pass.checkpoints = workspace.checkpoints;
  pass.d_state_in = workspace.gradients.slots;
  pass.workspace = workspace.kernel;
  return pass;
}

bool FusedBackward::can_add(const BackwardBuffers &b) {
  return (b.add & ~(LASP_ADD_D_DECAY | LASP_ADD_D_INITIAL_STATE)) == 0;
}

bool FusedBackward::serves(const BackwardBuffers &b) const {
  if (plan_.choices.fused_for_decay && b.d_decay == nullptr) return false;
  return serves_plan() && can_add(b) && plan_.kernels.fused_backward(pass(b, {}));
}

void *FusedBackward::cached_checkpoints(void *cache) const {
  if (cache == nullptr || !keeps_checkpoints()) return nullptr;
  return static_cast<float *>(cache) + plan_.inputs.floats(plan_.cut.num_states);
}

int64_t FusedBackward::checkpoint_bytes() const {
  const Problem &p = plan_.problem();
  return plan_.cut.num_checkpoints * p.heads * p.state_size() * size_of(p.dtype);
}

void FusedBackward::place_gradients(Carver &carver, Workspace &workspace) const {
  if (cut_) workspace.gradients.place(carver, plan_.inputs, cut_->num_states, plan_.problem().heads, true);
}

void FusedBackward::place(Carver &carver, Workspace &workspace, const void *cache) const {
  if (!cut_) return;
  place_gradients(carver, workspace);
  workspace.checkpoints = keeps_checkpoints() ? cached_checkpoints(const_cast<void *>(cache))
                                              : carver.take<std::byte>(checkpoint_bytes());
  if (!plan_.choices.fused_sums) workspace.staged.place(carver, plan_.inputs, plan_.choices);
  if (!plan_.inputs.forgets()) return;
  gpu::FusedBackward whole = pass(PlanInputs::aligned_buffers(), {});
  whole.num_runs = cut_->num_runs;
  workspace.kernel = carver.take<float>(plan_.kernels.fused_backward_workspace(whole));
}

void FusedBackward::find_checkpoints(const BackwardBuffers &b, const ScanWorkspace &states,
                                     const Workspace &workspace) const {
  const PlanInputs &inputs = plan_.inputs;
  gpu::GenericPass pass = inputs.base_pass(plan_.cut.runs[0].span(), b.decay);
  pass.a = inputs.k_of(nullptr);  // only its width is used
  pass.b = inputs.k_of(b.k);
  pass.c = inputs.v_of(b.v);
  pass.y = inputs.o_of(nullptr);
  pass.state_in = states.slots;
  pass.checkpoints = workspace.checkpoints;
  plan_.run_pass(pass, "states at checkpoints");
}

void FusedBackward::run(const BackwardBuffers &b, const Workspace &workspace, bool from_zero) const {
  const gpu::FusedBackward fused = pass(b, workspace);
  check_launch(from_zero ? gpu::launch_fused_backward_from_zero(fused, plan_.stream)
                         : gpu::launch_fused_backward(fused, plan_.stream),
               "gradients");
  if (plan_.choices.fused_sums) return;
  sums_.sum(plan_.inputs.dq(b), workspace.staged.dq);
  sums_.sum(plan_.inputs.dk(b), workspace.staged.dk);
}

}  // namespace lasp::cuda
