// The phases of forward, backward and step under the delta rule.
#include "cuda/backend/delta_backend.h"

#include <utility>

namespace lasp::cuda {

using gpu::RunFilter;

// ---- Forward ----------------------------------------------------------------------------------------------------

// Without a state that enters, and without a place for one that leaves the rank.
gpu::DeltaForward DeltaBackend::forward_pass(const ForwardBuffers &b, const ForwardWorkspace &w,
                                             RunFilter filter) const {
  gpu::DeltaForward pass = delta_forward_pass(inputs_, tables_.runs(false).span(), b);
  pass.segments = tables_.segments().data();
  pass.spacing = choices_.spacing;
  pass.own_checkpoints = choices_.own_checkpoints;
  pass.in_halves = in_halves_;
  pass.edge_state = b.final_state;
  pass.checkpoints = w.checkpoints;
  pass.maps = w.maps;
  pass.filter = filter;
  pass.workspace = w.launch;
  return pass;
}

void DeltaBackend::walk(const gpu::DeltaForward &pass, const char *what) const {
  if (tables_.any(false, pass.filter))
    check_launch(gpu::launch_delta_forward(choices_.forward, pass, stream_), what);
}

void DeltaBackend::forward_alone(const ForwardBuffers &b) {
  make_tables(b);
  gpu::DeltaForward pass = forward_pass(b, forward_workspace(b.workspace, b.state_cache), RunFilter::kAll);
  pass.state_in = b.initial_state;
  walk(pass, "outputs");
}

// What is to be done before the state is there that enters: with what a segment does to it.
gpu::DeltaForward DeltaBackend::own_pass(const ForwardBuffers &b, const ForwardWorkspace &w) const {
  gpu::DeltaForward own = forward_pass(b, w, RunFilter::kDependent);
  own.half = gpu::DeltaHalf::kOwn;
  return own;
}

// First what other ranks wait for.
void DeltaBackend::forward_states(const ForwardBuffers &b, const AffineMapView &left, const AffineMapView &) {
  make_tables(b);
  const ForwardWorkspace w = forward_workspace(b.workspace, b.state_cache);
  gpu::DeltaForward own = own_pass(b, w);
  if (left.state != nullptr) {
    fill_map(left, false, nullptr);
    own.leaving = left.state;
    own.transition = left.transition;
  } else if (b.keep_map) {
    own.transition = w.transitions;
  }
  walk(own, "a rank's map");
  if (left.state != nullptr) {
    if (w.transitions != nullptr) copy(w.transitions, left.transition, transition_floats(), "keeping a transition");
    if (b.carry != nullptr) copy(b.carry, left.transition, transition_floats(), "handing on a transition");
  }
  gpu::DeltaForward pass = forward_pass(b, w, RunFilter::kIndependent);
  pass.state_in = b.initial_state;
  pass.leaving = left.state;
  rest_ahead_ = in_halves_ && left.state != nullptr;
  if (rest_ahead_) pass.half = gpu::DeltaHalf::kOwn;
  walk(pass, "outputs");
}

// The rest of what no other rank waits for, while the maps travel.
void DeltaBackend::forward_ahead(const ForwardBuffers &b, const Progress &) {
  if (!std::exchange(rest_ahead_, false)) return;
  const ForwardWorkspace w = forward_workspace(b.workspace, b.state_cache);
  gpu::DeltaForward pass = forward_pass(b, w, RunFilter::kIndependent);
  pass.half = gpu::DeltaHalf::kEntered;
  pass.state_in = b.initial_state;
  walk(pass, "outputs");
}

void DeltaBackend::forward_resume(const ForwardBuffers &b) {
  const ForwardWorkspace w = forward_workspace(b.workspace, b.state_cache);
  copy(w.transitions, b.carry, transition_floats(), "keeping a transition");
  forward_states(b, {}, {});
}

void DeltaBackend::forward_finish(const ForwardBuffers &b, const Incoming &incoming) {
  const ForwardWorkspace w = forward_workspace(b.workspace, b.state_cache);
  if (w.incoming != nullptr && tables_.consumes())
    check_launch(gpu::launch_copy(w.incoming, incoming.left, inputs_.floats(inputs_.partition().rows()),
                                  take_mark(), stream_),
                 "keeping the incoming state");
  gpu::DeltaForward pass = forward_pass(b, w, RunFilter::kDependent);
  pass.half = gpu::DeltaHalf::kEntered;
  pass.state_in = incoming.left;
  walk(pass, "outputs");
}

// From checkpoints of the general kernels all stretches at once; else the walks again.
void DeltaBackend::forward_from_cache(const ForwardBuffers &b) {
  find_tables(b.state_cache, b.packing);
  const ForwardWorkspace w = forward_workspace(b.workspace, b.state_cache);
  gpu::DeltaForward pass = forward_pass(b, w, RunFilter::kAll);
  pass.checkpoints = nullptr;
  pass.maps = nullptr;
  if (w.incoming == nullptr) {
    pass.runs = tables_.stretches().data();
    pass.num_runs = tables_.stretches().size();
    pass.state_in = static_cast<const float *>(w.checkpoints);
    return walk(pass, "outputs");
  }
  pass.filter = RunFilter::kIndependent;
  pass.state_in = b.initial_state;
  walk(pass, "outputs");
  pass.filter = RunFilter::kDependent;  // in halves, as they were found first, for the same bits
  pass.half = gpu::DeltaHalf::kOwn;
  pass.state_in = nullptr;
  walk(pass, "outputs");
  pass.half = gpu::DeltaHalf::kEntered;
  pass.state_in = w.incoming;
  walk(pass, "outputs");
}

// ---- Backward ---------------------------------------------------------------------------------------------------

// Without a gradient that enters, and without a place for one that leaves the rank.
gpu::DeltaReversed DeltaBackend::reversed_pass(const BackwardBuffers &b, const BackwardWorkspace &w,
                                               RunFilter filter) const {
  gpu::DeltaReversed pass = delta_reversed_pass(inputs_, tables_.runs(true).span(), b);
  pass.segments = tables_.segments().data();
  pass.spacing = choices_.spacing;
  pass.own_checkpoints = choices_.own_checkpoints;
  pass.in_halves = in_halves_ && problem_.cache_chunks;  // else walks forward take the workspace in between
  pass.d_edge_state = b.d_initial_state;
  pass.edge_adds = b.adds(LASP_ADD_D_INITIAL_STATE);
  pass.d_checkpoints = w.d_checkpoints;
  if (problem_.cache_chunks && maps_floats() > 0) pass.maps = w.maps, pass.maps_runs = tables_.runs(false).size();
  pass.filter = filter;
  pass.workspace = w.launch;
  return pass;
}

gpu::DeltaGradients DeltaBackend::gradients_pass(const BackwardBuffers &b, const BackwardWorkspace &w,
                                                 bool walked_once) const {
  gpu::DeltaGradients pass =
      delta_gradients_pass(inputs_, tables_.stretches().span(), b, w.staged, left(walked_once));
  pass.segments = tables_.segments().data();
  pass.spacing = choices_.spacing;
  pass.own_checkpoints = choices_.own_checkpoints;
  pass.checkpoints = w.checkpoints;
  pass.d_checkpoints = w.d_checkpoints;
  pass.workspace = w.gradients;
  if (problem_.cache_chunks) pass.prepared = w.launch, pass.prepared_runs = tables_.runs(true).size();
  return pass;
}

// With all gradients, where that takes one walk.
void DeltaBackend::walk_back(gpu::DeltaReversed pass, const BackwardBuffers &b, const BackwardWorkspace &w,
                             const char *what) const {
  if (!tables_.any(true, pass.filter)) return;
  const gpu::DeltaGradients all = gradients_pass(b, w, true);
  if (walks_once(pass, b, w)) pass.gradients = &all;
  check_launch(gpu::launch_delta_reversed(choices_.reversed, pass, stream_), what);
}

// Where the forward pass kept the incoming state alone.
void DeltaBackend::find_checkpoints(const BackwardBuffers &b, const BackwardWorkspace &w) const {
  if (problem_.cache_chunks) return;
  ForwardBuffers forward{};  // neither q nor o: states alone
  forward.k = b.k;
  forward.v = b.v;
  forward.decay = b.decay;
  forward.beta = b.beta;
  ForwardWorkspace of_walk{};
  of_walk.checkpoints = w.checkpoints;
  of_walk.launch = w.launch;
  gpu::DeltaForward pass = forward_pass(forward, of_walk, RunFilter::kIndependent);
  pass.state_in = b.initial_state;
  walk(pass, "states");
  pass.filter = RunFilter::kDependent;
  pass.state_in = w.incoming;
  walk(pass, "states");
}

// Of the stretches that `filter` names, the independent ones first; with the others also what waits for all of
// them.
void DeltaBackend::gradients(const BackwardBuffers &b, const BackwardWorkspace &w, RunFilter filter) const {
  const bool last = filter != RunFilter::kIndependent;
  if (!last && !tables_.any(true, filter)) return;
  const bool once = walks_once(reversed_pass(b, w, filter), b, w);
  gpu::DeltaGradients pass = gradients_pass(b, w, once);
  pass.filter = filter;
  pass.first = filter != RunFilter::kDependent || !tables_.any(true, RunFilter::kIndependent);
  pass.last = last;
  pass.walked = once;
  if (pass.num_runs > 0 || (last && pass.d_g != nullptr))
    check_launch(gpu::launch_delta_gradients(choices_.gradients, pass, stream_), "gradients");
  if (!last) return;
  const Gradient gradients_of[] = {inputs_.dq(b), inputs_.dk(b), inputs_.dv(b)};
  for (int i = 0; i < 3; ++i) {
    const auto &[to, type, adds] = gradients_of[i];
    const int32_t heads = i < 2 ? left(once).heads : problem_.heads;
    if (is_staged(left(once), problem_.heads, to.heads, i == 2))
      check_launch(gpu::launch_sum_groups(to, dtype_of(type), adds, w.staged[i], gpu::DType::kFloat32, pass.batch,
                                          pass.tokens, heads, stream_),
                   "sums over groups of heads");
  }
}

void DeltaBackend::backward_alone(const BackwardBuffers &b) {
  find_tables(b.state_cache, b.packing);
  const BackwardWorkspace w = backward_workspace(b.workspace, b.state_cache);
  find_checkpoints(b, w);
  gpu::DeltaReversed pass = reversed_pass(b, w, RunFilter::kAll);
  pass.d_state_in = b.d_final_state;
  walk_back(pass, b, w, "gradients of states");
  gradients(b, w, RunFilter::kAll);
}

void DeltaBackend::backward_states(const BackwardBuffers &b, const AffineMapView &, const AffineMapView &right) {
  find_tables(b.state_cache, b.packing);
  const BackwardWorkspace w = backward_workspace(b.workspace, b.state_cache);
  if (right.state != nullptr) fill_map(right, true, w.transitions);
  gpu::DeltaReversed own = reversed_pass(b, w, RunFilter::kDependent);
  own.half = gpu::DeltaHalf::kOwn;
  own.d_leaving = right.state;
  walk_back(own, b, w, "a rank's map");
  gpu::DeltaReversed pass = reversed_pass(b, w, RunFilter::kIndependent);
  pass.d_state_in = b.d_final_state;
  pass.d_leaving = right.state;
  rest_back_.reset();
  if (pass.in_halves && right.state != nullptr) {
    pass.half = gpu::DeltaHalf::kOwn;
    rest_back_ = gpu::DeltaHalf::kEntered;
  } else if (walks_once(pass, b, w)) {
    rest_back_ = gpu::DeltaHalf::kBoth;  // nothing leaves, and a first stage has no place for gradients
    return;
  }
  walk_back(pass, b, w, "gradients of states");
}

void DeltaBackend::backward_ahead(const BackwardBuffers &b, const Progress &) {
  const BackwardWorkspace w = backward_workspace(b.workspace, b.state_cache);
  if (const auto half = std::exchange(rest_back_, std::nullopt)) {
    gpu::DeltaReversed pass = reversed_pass(b, w, RunFilter::kIndependent);
    pass.half = *half;
    pass.d_state_in = b.d_final_state;
    walk_back(pass, b, w, "gradients of states");
  }
  find_checkpoints(b, w);
  gradients(b, w, RunFilter::kIndependent);
}

void DeltaBackend::backward_finish(const BackwardBuffers &b, const Incoming &incoming) {
  const BackwardWorkspace w = backward_workspace(b.workspace, b.state_cache);
  gpu::DeltaReversed pass = reversed_pass(b, w, RunFilter::kDependent);
  pass.half = gpu::DeltaHalf::kEntered;
  pass.d_state_in = incoming.right;
  walk_back(pass, b, w, "gradients of states");
  gradients(b, w, RunFilter::kDependent);
}

// ---- Decoding ---------------------------------------------------------------------------------------------------

// Of a plan that is not packed: a row is a sequence, and its state is found by either. There is no workspace, which
// only the general kernels do without.
void DeltaBackend::step(const StepBuffers &b) {
  ForwardBuffers of_step{};
  of_step.q = b.q, of_step.k = b.k, of_step.v = b.v, of_step.decay = b.decay, of_step.beta = b.beta;
  of_step.o = b.o;
  gpu::DeltaForward pass = forward_pass(of_step, {}, RunFilter::kAll);
  pass.tokens = b.tokens;
  pass.state_in = b.state;
  pass.state_out = b.state;
  if (pass.num_runs > 0) check_launch(gpu::launch_delta_forward(kOfStep, pass, stream_), "a step");
}

}  // namespace lasp::cuda
