#include "cuda/backend/outputs.h"

namespace lasp::cuda {

void Outputs::run(const ForwardBuffers &b, const ScanWorkspace &states, void *checkpoints,
                  const DeviceArray<gpu::Run> &runs, gpu::RunFilter filter) const {
  const PlanInputs &inputs = plan_.inputs;
  gpu::GenericPass pass = inputs.base_pass(runs.span(), b.decay);
  pass.total_runs = plan_.cut.usual_runs;
  pass.filter = filter;
  pass.entry_decay = states.entry_decay;
  pass.a = inputs.q_of(b.q);
  pass.b = inputs.k_of(b.k);
  pass.c = inputs.v_of(b.v);
  pass.y = inputs.o_of(b.o);
  pass.scale = plan_.problem().scale;
  pass.state_in = states.slots;
  pass.checkpoints = checkpoints;
  pass.edge_state = b.final_state;
  plan_.run_pass(pass, "outputs");
}

}  // namespace lasp::cuda
