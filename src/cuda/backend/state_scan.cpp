#include "cuda/backend/state_scan.h"

#include "cuda/backend/packed_tables.h"
#include "kernels/from_zero.h"

namespace lasp::cuda {
namespace {

// Of one run to a segment nobody asks for the decay but who gets its end state.
bool sums_decays(const Partition &cut, const ScanWorkspace &workspace, const AffineMapView &own) {
  return workspace.factors != nullptr && (!cut.single_runs || own.state != nullptr);
}

// Runs whose own part of the state anybody asks for: where no state leaves the rank, not the last ones.
const DeviceArray<gpu::Run> &runs_with_own_parts(const DevicePlan &plan, const Partition &cut,
                                                 const AffineMapView &own, bool reversed) {
  if (plan.problem().bidirectional) return cut.state_runs;
  return own.state != nullptr ? cut.leading[reversed] : cut.followed[reversed];
}

}  // namespace

void ScanWorkspace::place(Carver &carver, const PlanInputs &inputs, int64_t states, int32_t heads,
                          bool with_slots) {
  const bool decays = inputs.problem().decay != Decay::kNone;
  const int64_t count = decays ? states * heads * inputs.factor_size() : 0;
  slots = carver.take<float>(with_slots ? states * heads * inputs.problem().state_size() : 0);
  factors = carver.take<float>(count);
  entry_decay = carver.take<float>(count);
  counts = carver.take<int32_t>(count);
  if (!decays) factors = entry_decay = nullptr;
  if (inputs.problem().decay != Decay::kScalar) counts = nullptr;
}

void StateScan::states(const ForwardBuffers &b, const ScanWorkspace &workspace, const AffineMapView &own) const {
  const PlanInputs &inputs = plan_.inputs;
  gpu::GenericPass pass = inputs.base_pass(runs_with_own_parts(plan_, plan_.cut, own, false).span(), b.decay);
  pass.a = inputs.k_of(nullptr);  // only its width is used
  pass.b = inputs.k_of(b.k);
  pass.c = inputs.v_of(b.v);
  pass.y = inputs.o_of(nullptr);
  own_parts(pass, plan_.cut, workspace, own, "states of runs");
  if (!plan_.problem().bidirectional) scan(plan_.cut, workspace, false, b.decay, b.initial_state, own);
}

void StateScan::gradients(const BackwardBuffers &b, const Partition &cut, const ScanWorkspace &workspace,
                          const AffineMapView &own, bool from_zero) const {
  const PlanInputs &inputs = plan_.inputs;
  gpu::GenericPass pass = inputs.base_pass(runs_with_own_parts(plan_, cut, own, true).span(), b.decay);
  pass.reversed = true;
  pass.a = inputs.q_of(nullptr);
  pass.b = inputs.q_of(b.q);
  pass.c = inputs.do_of(b.d_o);
  pass.y = inputs.o_of(nullptr);
  pass.out_scale = inputs.backward_scale();
  own_parts(pass, cut, workspace, own, "gradients of the states of runs", from_zero);
  if (!plan_.problem().bidirectional) scan(cut, workspace, true, b.decay, b.d_final_state, own, from_zero);
}

gpu::RunFactors StateScan::run_factors(const Partition &cut, const void *g, float *to) const {
  gpu::RunFactors factors{plan_.inputs.pass_inputs(cut.state_runs.span(), g)};
  factors.dim_k = plan_.problem().head_dim_k;
  factors.factors = to;
  return factors;
}

void StateScan::own_parts(gpu::GenericPass &pass, const Partition &cut, const ScanWorkspace &workspace,
                          const AffineMapView &own, const char *what, bool from_zero) const {
  pass.state_out = workspace.slots;
  pass.total_runs = cut.usual_states;
  const bool with_decays = sums_decays(cut, workspace, own);
  // With per-channel decay: states and decays at once.
  if (plan_.choices.tensor_cores && plan_.kernels.channel_states(pass))
    return check_launch(gpu::launch_channel_states(pass, with_decays ? workspace.factors : nullptr, plan_.stream),
                        what);
  if (with_decays && plan_.problem().decay == Decay::kHead) {
    pass.counts_by_head = true;
  } else if (with_decays) {
    gpu::RunFactors factors = run_factors(cut, pass.g, workspace.factors);
    factors.reversed = pass.reversed;
    factors.counts = workspace.counts;
    check_launch(from_zero ? gpu::launch_run_factors_from_zero(factors, plan_.packed->followed(cut), plan_.stream)
                           : gpu::launch_run_factors(factors, plan_.stream),
                 "summing decays");
    pass.counts = workspace.counts;
  }
  plan_.run_pass(pass, what);
}

void StateScan::scan(const Partition &cut, const ScanWorkspace &workspace, bool reversed, const void *decay,
                     const float *first_state, const AffineMapView &own, bool from_zero) const {
  if (workspace.slots == nullptr && own.state == nullptr) return;  // every run begins with zero
  const PlanInputs &inputs = plan_.inputs;
  const int64_t *const live = plan_.packed != nullptr ? plan_.packed->live_segments() : nullptr;
  if (cut.single_runs && own.state == nullptr && live == nullptr) {
    plan_.zero(workspace.slots, inputs.floats(cut.state_runs.size()), "clearing states");
    if (first_state == nullptr) return;
  }
  gpu::ScanFromZero scan;
  scan.shape = inputs.state_shape();
  scan.segments = cut.segments.data();
  scan.num_segments = cut.segments.size();
  scan.live = live;
  scan.reversed = reversed;
  scan.slots = workspace.slots;
  if (sums_decays(cut, workspace, own) && plan_.problem().decay == Decay::kHead) {
    scan.head_decay = static_cast<const float *>(decay);
  } else if (sums_decays(cut, workspace, own)) {
    scan.factors = workspace.factors;
    scan.counts = workspace.counts;
  }
  scan.runs = cut.state_runs.data();
  scan.entry_decay = workspace.entry_decay;
  scan.first_state = first_state;
  scan.map_state = own.state;
  scan.map_factor = own.transition;
  if (from_zero) scan.followed = plan_.packed->followed(cut);
  check_launch(from_zero ? gpu::launch_scan_from_zero(scan, plan_.stream)
                         : gpu::launch_state_scan(scan, plan_.take_mark(), plan_.stream),
               "scanning states");
  if (own.state != nullptr && cut.segments.size() == 0) {  // no tokens: the identity
    plan_.zero(own.state, inputs.floats(plan_.partition().rows()), "clearing a state");
    plan_.fill_factors(own, reversed);
  }
}

void StateScan::join(const Partition &cut, const ScanWorkspace &workspace, const float *incoming,
                     bool reversed) const {
  const DeviceArray<gpu::Run> &runs = cut.consumers[reversed];
  if (incoming == nullptr || runs.size() == 0) return;
  gpu::StateJoin join;
  join.shape = plan_.inputs.state_shape();
  join.runs = runs.data();
  join.num_runs = runs.size();
  join.slots = workspace.slots;
  join.entry_decay = cut.single_runs ? nullptr : workspace.entry_decay;
  join.incoming = incoming;
  check_launch(gpu::launch_state_join(join, plan_.take_mark(), plan_.stream), "joining the incoming state");
}

}  // namespace lasp::cuda
