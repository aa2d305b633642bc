// Forward, backward and step of the causal form, and the hand-over to the bidirectional one.
#include "base/status.h"
#include "cuda/backend/stream_backend.h"

namespace lasp::cuda {

// ---- Forward ----------------------------------------------------------------------------------------------------

void StreamBackend::scan_states(const ForwardBuffers &b, const ScanRoom &room, const AffineMapView &carry) const {
  gpu::GenericPass pass = base_pass(runs_with_own_states(cut_, carry, false), b.decay);
  pass.a = k_of(nullptr);  // only its width is used
  pass.b = k_of(b.k);
  pass.c = v_of(b.v);
  pass.y = o_of(nullptr);
  own_states(pass, cut_, room, carry, "states of runs");
  if (!problem_.bidirectional) scan(cut_, room, false, b.initial_state, carry);
}

void StreamBackend::outputs(const ForwardBuffers &b, const ScanRoom &room, const DeviceArray<gpu::Run> &runs,
                            gpu::RunFilter which) const {
  gpu::GenericPass pass = base_pass(runs, b.decay);
  pass.total_runs = cut_.runs[0].size();
  pass.filter = which;
  pass.entry_decay = room.reach;
  pass.a = q_of(b.q);
  pass.b = k_of(b.k);
  pass.c = v_of(b.v);
  pass.y = o_of(b.o);
  pass.scale = problem_.scale;
  pass.state_in = room.slots;
  pass.checkpoints = room.checkpoints;
  pass.edge_state = b.final_state;
  run_pass(pass, "outputs");
}

void StreamBackend::forward_alone(const ForwardBuffers &b) {
  if (problem_.bidirectional) {
    forward_states(b, {}, {});
    return forward_finish(b, {});
  }
  ForwardRoom room = forward_room(b.workspace, b.state_cache);
  const bool cached = problem_.backward && problem_.cache_chunks;  // the states are wanted as such
  if (!cached && begin_with_zero(cut_, b.initial_state)) room.scan.slots = nullptr;
  scan_states(b, room.scan, {});
  outputs(b, room.scan, cut_.runs[0]);
}

void StreamBackend::forward_states(const ForwardBuffers &b, const AffineMapView &left, const AffineMapView &right) {
  const ForwardRoom room = forward_room(b.workspace, b.state_cache);
  scan_states(b, room.scan, left);
  if (problem_.bidirectional) segment_sums(room.scan.slots, b.initial_state, false, room.sums, left, right);
}

void StreamBackend::forward_ahead(const ForwardBuffers &b, const Progress &) {
  if (problem_.bidirectional) return;
  const ForwardRoom room = forward_room(b.workspace, b.state_cache);
  if (reach_tells(false)) return outputs(b, room.scan, cut_.runs[0], gpu::RunFilter::kIndependent);
  outputs(b, room.scan, cut_.independent[0]);
}

void StreamBackend::forward_finish(const ForwardBuffers &b, const Incoming &incoming) {
  const ForwardRoom room = forward_room(b.workspace, b.state_cache);
  if (problem_.bidirectional) {
    float *totals = problem_.backward ? static_cast<float *>(b.state_cache) : room.sums;
    segment_totals(room.sums, incoming, false, totals, b.final_state);
    return bidirectional_outputs(b, totals);
  }
  join(cut_, room.scan, incoming.left, false);
  if (problem_.backward && !problem_.cache_chunks && incoming.left != nullptr)
    check(cudaMemcpyAsync(b.state_cache, incoming.left, static_cast<size_t>(floats(work_.rows())) * sizeof(float),
                          cudaMemcpyDeviceToDevice, stream_),
          "keeping the incoming state");
  if (reach_tells(false)) return outputs(b, room.scan, cut_.runs[0], gpu::RunFilter::kDependent);
  outputs(b, room.scan, cut_.consumers[0]);
}

void StreamBackend::forward_from_cache(const ForwardBuffers &b) {
  ForwardRoom room = forward_room(b.workspace, b.state_cache);
  room.scan.checkpoints = nullptr;  // they are in the cache
  if (problem_.bidirectional) {
    float *totals = static_cast<float *>(b.state_cache);
    if (b.final_state != nullptr) segment_totals(totals, {}, false, totals, b.final_state);
    return bidirectional_outputs(b, totals);
  }
  if (!problem_.cache_chunks) {
    scan_states(b, room.scan, {});
    join(cut_, room.scan, static_cast<const float *>(b.state_cache), false);
  }
  outputs(b, room.scan, cut_.runs[0]);
}

// ---- Backward ---------------------------------------------------------------------------------------------------

void StreamBackend::scan_gradients(const BackwardBuffers &b, const ScanRoom &room,
                                   const AffineMapView &carry) const {
  const Partition &cut = gradient_cut(b);
  gpu::GenericPass pass = base_pass(runs_with_own_states(cut, carry, true), b.decay);
  pass.reversed = true;
  pass.a = q_of(nullptr);
  pass.b = q_of(b.q);
  pass.c = do_of(b.d_o);
  pass.y = o_of(nullptr);
  pass.out_scale = problem_.scale;
  own_states(pass, cut, room, carry, "gradients of the states of runs");
  if (!problem_.bidirectional) scan(cut, room, true, b.d_final_state, carry);
}

void StreamBackend::query_gradients(const BackwardBuffers &b, const BackwardRoom &room) const {
  gpu::GenericPass pass = base_pass(cut_.runs[0], b.decay);
  pass.a = do_of(b.d_o);
  pass.b = v_of(b.v);
  pass.c = k_of(b.k);
  pass.scale = problem_.scale;
  pass.state_in = room.states.slots;
  pass.state_transposed = true;
  run_gradient(pass, tensor(b.dq, problem_.dq, problem_.heads_q, problem_.head_dim_k), room.dq, "gradients of q");
}

gpu::GenericPass StreamBackend::base_other_gradients(const BackwardBuffers &b, const BackwardRoom &room,
                                                     gpu::RunFilter which) const {
  gpu::GenericPass pass = base_pass(cut_.runs[1], b.decay);
  pass.filter = which;
  pass.entry_decay = room.gradients.reach;
  pass.reversed = true;
  pass.scale = problem_.scale;
  pass.in_scale = 1 / problem_.scale;  // the gradient of the state holds the scale already
  pass.out_scale = problem_.scale;
  pass.state_in = room.gradients.slots;
  return pass;
}

void StreamBackend::value_gradients(const BackwardBuffers &b, const BackwardRoom &room,
                                    gpu::RunFilter which) const {
  gpu::GenericPass dv = base_other_gradients(b, room, which);
  dv.a = k_of(b.k);
  dv.b = q_of(b.q);
  dv.c = do_of(b.d_o);
  // What a strong decay leaves of a first token's part is below float16, which the per-channel kernel weighs by:
  // there the recurrent kernel finds it.
  const bool too_small = tensor_cores_ && problem_.decay == Decay::kChannel && problem_.dtype == DType::kFloat16;
  if (!too_small) dv.edge_state = b.d_initial_state;
  run_gradient(dv, tensor(b.dv, problem_.dv, problem_.heads_v, problem_.head_dim_v), room.dv, "gradients of v");
  if (!too_small || b.d_initial_state == nullptr || cut_.beginnings.size() == 0) return;
  dv.y = o_of(nullptr);
  dv.edge_state = b.d_initial_state;
  dv.runs = cut_.beginnings.data();
  dv.num_runs = cut_.beginnings.size();
  dv.filter = gpu::RunFilter::kAll;
  check_launch(gpu::launch_generic_pass(dv, stream_), "gradients of initial states");
}

void StreamBackend::key_gradients(const BackwardBuffers &b, const BackwardRoom &room, gpu::RunFilter which) const {
  gpu::GenericPass dk = base_other_gradients(b, room, which);
  dk.a = v_of(b.v);
  dk.b = do_of(b.d_o);
  dk.c = q_of(b.q);
  dk.state_transposed = true;
  run_gradient(dk, tensor(b.dk, problem_.dk, problem_.heads_k, problem_.head_dim_k), room.dk, "gradients of k");
}

void StreamBackend::backward_alone(const BackwardBuffers &b) {
  if (problem_.bidirectional) {
    backward_states(b, {}, {});
    backward_ahead(b, [] { return false; });
    return backward_finish(b, {});
  }
  BackwardRoom room = backward_room(b.workspace, b.state_cache);
  const bool by_products = b.d_decay != nullptr && !fused_serves(b) && !channel_serves(b);  // want states as such
  if (!by_products && begin_with_zero(gradient_cut(b), b.d_final_state))
    room.gradients.slots = room.fused_gradients.slots = nullptr;
  scan_gradients(b, gradient_room(b, room), {});
  local_gradients(b, room);
  other_gradients(b, room, gpu::RunFilter::kAll);
}

void StreamBackend::backward_states(const BackwardBuffers &b, const AffineMapView &left,
                                    const AffineMapView &right) {
  const BackwardRoom room = backward_room(b.workspace, b.state_cache);
  scan_gradients(b, gradient_room(b, room), right);
  if (problem_.bidirectional) segment_sums(room.gradients.slots, b.d_final_state, true, room.sums, left, right);
}

// What needs no state from later tokens.
void StreamBackend::local_gradients(const BackwardBuffers &b, const BackwardRoom &room) const {
  if (!problem_.cache_chunks) {
    ForwardBuffers forward{};
    forward.k = b.k;
    forward.v = b.v;
    forward.decay = b.decay;
    forward.initial_state = b.initial_state;
    scan_states(forward, room.states, {});
    join(cut_, room.states, static_cast<const float *>(b.state_cache), false);
  }
  if (fused_serves(b)) {
    if (!keeps_checkpoints()) find_checkpoints(b, room);
    return;
  }
  if (!channel_serves(b)) query_gradients(b, room);
}

void StreamBackend::other_gradients(const BackwardBuffers &b, const BackwardRoom &room,
                                    gpu::RunFilter which) const {
  if (fused_serves(b)) return fused_gradients(b, room);
  if (channel_serves(b)) return channel_gradients(b, room);
  value_gradients(b, room, which);
  key_gradients(b, room, which);
  decay_gradients(b, room);
}

void StreamBackend::backward_ahead(const BackwardBuffers &b, const Progress &) {
  const BackwardRoom room = backward_room(b.workspace, b.state_cache);
  if (problem_.bidirectional) return bidirectional_query_gradients(b, room);
  local_gradients(b, room);
  if (!reach_tells(true) || fused_serves(b) || channel_serves(b)) return;
  value_gradients(b, room, gpu::RunFilter::kIndependent);
  key_gradients(b, room, gpu::RunFilter::kIndependent);
}

void StreamBackend::backward_finish(const BackwardBuffers &b, const Incoming &incoming) {
  const BackwardRoom room = backward_room(b.workspace, b.state_cache);
  if (problem_.bidirectional) {
    segment_totals(room.sums, incoming, true, room.sums, b.d_initial_state);
    return bidirectional_other_gradients(b, room);
  }
  join(gradient_cut(b), gradient_room(b, room), incoming.right, true);
  other_gradients(b, room, reach_tells(true) ? gpu::RunFilter::kDependent : gpu::RunFilter::kAll);
}

void StreamBackend::step(const StepBuffers &b) {
  if (problem_.tokens > kLongestStep)
    throw fail(LASP_ERROR_UNSUPPORTED, "tokens = %lld: a step on a GPU takes at most %lld; use lasp_forward",
               static_cast<long long>(problem_.tokens), static_cast<long long>(kLongestStep));
  gpu::GenericPass pass = base_pass(whole_segments_, b.decay);
  pass.a = q_of(b.q);
  pass.b = k_of(b.k);
  pass.c = v_of(b.v);
  pass.y = o_of(b.o);
  pass.scale = problem_.scale;
  pass.state_in = b.state;
  pass.state_out = b.state;
  if (pass.num_runs > 0) check_launch(gpu::launch_generic_pass(pass, stream_), "a step");
}

}  // namespace lasp::cuda
