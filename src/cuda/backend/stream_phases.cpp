// The phases of forward, backward and step: which strategy runs when.
#include "base/status.h"
#include "cuda/backend/stream_backend.h"
#include "cuda/cut/runs.h"

namespace lasp::cuda {

// ---- Forward ----------------------------------------------------------------------------------------------------

void StreamBackend::forward_alone(const ForwardBuffers &b) {
  if (plan_.problem().bidirectional) {
    forward_states(b, {}, {});
    return forward_finish(b, {});
  }
  plan_.make_tables(b, state_bytes());
  ForwardWorkspace w = forward_workspace(b);
  const bool cached = plan_.problem().backward && plan_.problem().cache_chunks;  // the states are wanted as such
  if (without_states(b.initial_state) || (!cached && DevicePlan::begin_with_zero(plan_.cut, b.initial_state)))
    w.scan.slots = nullptr;
  scan_.states(b, w.scan, {});
  outputs_.run(b, w.scan, w.checkpoints, plan_.cut.runs[0]);
}

void StreamBackend::forward_states(const ForwardBuffers &b, const AffineMapView &left, const AffineMapView &right) {
  plan_.make_tables(b, state_bytes());
  const ForwardWorkspace w = forward_workspace(b);
  scan_.states(b, w.scan, left);
  if (plan_.problem().bidirectional) bidirectional_.sums(w.scan.slots, b.initial_state, false, w.sums, left, right);
}

void StreamBackend::forward_ahead(const ForwardBuffers &b, const Progress &) {
  if (plan_.problem().bidirectional) return;
  const ForwardWorkspace w = forward_workspace(b);
  if (plan_.filters_runs(false))
    return outputs_.run(b, w.scan, w.checkpoints, plan_.cut.runs[0], gpu::RunFilter::kIndependent);
  outputs_.run(b, w.scan, w.checkpoints, plan_.cut.independent[0]);
}

void StreamBackend::forward_finish(const ForwardBuffers &b, const Incoming &incoming) {
  const Problem &p = plan_.problem();
  const ForwardWorkspace w = forward_workspace(b);
  if (p.bidirectional) {
    float *totals = p.backward ? static_cast<float *>(b.state_cache) : w.sums;
    bidirectional_.totals(w.sums, incoming, false, totals, b.final_state, false);
    return bidirectional_.outputs(b, totals);
  }
  scan_.join(plan_.cut, w.scan, incoming.left, false);
  if (p.backward && !p.cache_chunks && plan_.cut.consumers[0].size() > 0) {
    const int64_t floats = plan_.inputs.floats(plan_.partition().rows());
    if (incoming.left == nullptr) {
      plan_.zero(b.state_cache, floats, "keeping the incoming state");
    } else {
      check(cudaMemcpyAsync(b.state_cache, incoming.left, static_cast<size_t>(floats) * sizeof(float),
                            cudaMemcpyDeviceToDevice, plan_.stream),
            "keeping the incoming state");
    }
  }
  if (plan_.filters_runs(false)) {
    outputs_.run(b, w.scan, w.checkpoints, plan_.cut.runs[0], gpu::RunFilter::kDependent);
  } else {
    outputs_.run(b, w.scan, w.checkpoints, plan_.cut.consumers[0]);
  }
}

void StreamBackend::forward_from_cache(const ForwardBuffers &b) {
  plan_.find_tables(b, state_bytes());
  const Problem &p = plan_.problem();
  ForwardWorkspace w = forward_workspace(b);
  if (p.bidirectional) {
    float *totals = static_cast<float *>(b.state_cache);
    if (b.final_state != nullptr) bidirectional_.totals(totals, {}, false, totals, b.final_state, false);
    return bidirectional_.outputs(b, totals);
  }
  if (p.cache_chunks && without_states(b.initial_state)) w.scan.slots = nullptr;
  if (!p.cache_chunks) {
    scan_.states(b, w.scan, {});
    scan_.join(plan_.cut, w.scan, static_cast<const float *>(b.state_cache), false);
  }
  outputs_.run(b, w.scan, nullptr, plan_.cut.runs[0]);  // checkpoints are in the cache
}

void StreamBackend::clear_padding(const ForwardBuffers &b) {
  if (!plan_.packed->may_pad() || plan_.packed->is_cleared()) return;
  const Padded o = {plan_.inputs.o_of(b.o), plan_.problem().dtype};
  plan_.packed->zero_padding({&o, 1}, plan_.stream);
}

// ---- Backward ---------------------------------------------------------------------------------------------------

void StreamBackend::backward_alone(const BackwardBuffers &b) {
  if (plan_.problem().bidirectional) {
    backward_states(b, {}, {});
    backward_ahead(b, [] { return false; });
    return backward_finish(b, {});
  }
  plan_.find_tables(b, state_bytes());
  BackwardWorkspace w = backward_workspace(b);
  const bool by_products = b.d_decay != nullptr && !fuses(b) && !channel_.serves(b);  // want states as such
  if (!by_products && DevicePlan::begin_with_zero(gradient_cut(b), b.d_final_state))
    w.gradients.slots = w.fused.gradients.slots = nullptr;
  if (plan_.problem().cache_chunks && without_states(b.initial_state)) w.states.slots = nullptr;
  // Of offsets in device memory most sequences may have one run, or all of them.
  const bool from_zero = fuses(b) && b.d_final_state == nullptr && plan_.packed && plan_.packed->live_segments();
  w.fused.gradients.entry_decay = w.gradients.entry_decay = nullptr;  // of what comes from other ranks
  scan_.gradients(b, gradient_cut(b), gradient_workspace(b, w), {}, from_zero);
  local_gradients(b, w);
  other_gradients(b, w, gpu::RunFilter::kAll, from_zero);
}

void StreamBackend::backward_states(const BackwardBuffers &b, const AffineMapView &left,
                                    const AffineMapView &right) {
  plan_.find_tables(b, state_bytes());
  const BackwardWorkspace w = backward_workspace(b);
  scan_.gradients(b, gradient_cut(b), gradient_workspace(b, w), right, false);
  if (plan_.problem().bidirectional)
    bidirectional_.sums(w.gradients.slots, b.d_final_state, true, w.sums, left, right);
}

void StreamBackend::backward_resume(const BackwardBuffers &b) {
  if (adds_apart(b)) return backward_states(b, {}, {});
  plan_.find_tables(b, state_bytes());
}

void StreamBackend::local_gradients(const BackwardBuffers &b, const BackwardWorkspace &w) const {
  if (!plan_.problem().cache_chunks) {
    ForwardBuffers forward{};
    forward.k = b.k;
    forward.v = b.v;
    forward.decay = b.decay;
    forward.initial_state = b.initial_state;
    scan_.states(forward, w.states, {});
    scan_.join(plan_.cut, w.states, static_cast<const float *>(b.state_cache), false);
  }
  if (fuses(b)) {
    if (!fused_.keeps_checkpoints()) fused_.find_checkpoints(b, w.states, w.fused);
    return;
  }
  if (!channel_.serves(b)) three_passes_.query(b, w.states, w.staged.dq);
}

void StreamBackend::other_gradients(const BackwardBuffers &b, const BackwardWorkspace &w, gpu::RunFilter filter,
                                    bool from_zero) const {
  if (fuses(b)) return fused_.run(b, w.fused, from_zero);
  if (channel_.serves(b)) return channel_.run(b, w.states, w.gradients, w.staged, w.channel_ends);
  three_passes_.value(b, w.gradients, w.staged.dv, filter);
  three_passes_.key(b, w.gradients, w.staged.dk, filter);
  if (decay_gradients_) decay_gradients_->run(b, w.states, w.gradients, w.decay);
}

void StreamBackend::backward_ahead(const BackwardBuffers &b, const Progress &) {
  const BackwardWorkspace w = backward_workspace(b);
  if (plan_.problem().bidirectional) return bidirectional_.query_gradients(b, w.staged.dq);
  local_gradients(b, w);
  if (!plan_.filters_runs(true) || fuses(b) || channel_.serves(b)) return;
  three_passes_.value(b, w.gradients, w.staged.dv, gpu::RunFilter::kIndependent);
  three_passes_.key(b, w.gradients, w.staged.dk, gpu::RunFilter::kIndependent);
}

void StreamBackend::backward_finish(const BackwardBuffers &b, const Incoming &incoming) {
  const BackwardWorkspace w = backward_workspace(b);
  if (plan_.problem().bidirectional) {
    bidirectional_.totals(w.sums, incoming, true, w.sums, b.d_initial_state, b.adds(LASP_ADD_D_INITIAL_STATE));
    return bidirectional_.other_gradients(b, w.sums, w.staged);
  }
  scan_.join(gradient_cut(b), gradient_workspace(b, w), incoming.right, true);
  other_gradients(b, w, plan_.filters_runs(true) ? gpu::RunFilter::kDependent : gpu::RunFilter::kAll);
}

void StreamBackend::clear_padding(const BackwardBuffers &b) {
  if (!plan_.packed->may_pad()) return;
  const Problem &p = plan_.problem();
  std::vector<Padded> results;
  for (const Gradient &gradient : {plan_.inputs.dq(b), plan_.inputs.dk(b), plan_.inputs.dv(b)})
    if (!gradient.adds) results.push_back({gradient.to, gradient.type});
  const int32_t channels = p.decay == Decay::kChannel ? p.head_dim_k : 1;
  if (b.d_decay != nullptr && !b.adds(LASP_ADD_D_DECAY) &&
      (p.decay == Decay::kScalar || p.decay == Decay::kChannel))
    results.push_back({plan_.inputs.tensor(b.d_decay, p.d_decay_layout, p.heads, channels), p.d_decay_dtype});
  plan_.packed->zero_padding(results, plan_.stream);
}

// ---- Stages -----------------------------------------------------------------------------------------------------

void StreamBackend::require_stage(const BackwardBuffers &b) const {
  if (fused_.serves_plan() && !adds_apart(b) && !fused_.serves(b))
    throw fail(LASP_ERROR_MISALIGNED,
               "q, k, v, d_o, dq, dk or dv: the stages of this plan take tensors that are aligned to 16 bytes");
}

// ---- Decoding ---------------------------------------------------------------------------------------------------

void StreamBackend::step(const StepBuffers &b) {
  const Problem &p = plan_.problem();
  if (p.tokens > kLongestStep)
    throw fail(LASP_ERROR_UNSUPPORTED, "tokens = %lld: a step on a GPU takes at most %lld; use lasp_forward",
               static_cast<long long>(p.tokens), static_cast<long long>(kLongestStep));
  const PlanInputs &inputs = plan_.inputs;
  gpu::GenericPass pass = inputs.base_pass(whole_segments_.span(), b.decay);
  pass.a = inputs.q_of(b.q);
  pass.b = inputs.k_of(b.k);
  pass.c = inputs.v_of(b.v);
  pass.y = inputs.o_of(b.o);
  pass.scale = p.scale;
  pass.tokens = b.tokens;
  pass.state_in = b.state;
  pass.state_out = b.state;
  if (pass.num_runs > 0) check_launch(gpu::launch_generic_pass(pass, plan_.stream), "a step");
}

}  // namespace lasp::cuda
