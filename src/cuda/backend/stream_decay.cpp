// The gradient of the log decay on the GPU. Its kernel wants the states around short runs. Where the passes
// themselves work on long ones, the states of short runs are found again from those at the long runs' edges, a slab
// at a time: some heads, or of one head some of the long runs, so that they never take more than a small share of
// the tensors' memory.
#include "cuda/backend/stream_backend.h"
#include "cuda/cut/cut_heads.h"

namespace lasp::cuda {

gpu::DecayGradient StreamBackend::base_decay_gradient(const BackwardBuffers &b) const {
  gpu::DecayGradient pass{backward_pass(cut_.state_runs, b)};
  pass.run_tokens = cut_.longest_state_run;
  pass.tensor_cores = tensor_cores_;
  return pass;
}

void StreamBackend::decay_gradients(const BackwardBuffers &b, const BackwardRoom &room) const {
  if (b.d_decay == nullptr) return;
  if (short_runs_) return decay_gradients_by_slab(b, room);
  gpu::DecayGradient pass = base_decay_gradient(b);
  pass.state = room.states.slots;
  pass.d_state = room.gradients.slots;
  pass.workspace = room.decay_parts;
  check_launch(gpu::launch_decay_gradient(pass, stream_), "gradients of the decay");
}

void StreamBackend::slab_states(const BackwardBuffers &b, const BackwardRoom &room, const Slab &slab) const {
  const Problem &p = problem_;
  const int64_t element = size_of(p.dtype), decay_element = size_of(p.decay_dtype);
  for (const bool reversed : {false, true}) {
    const ScanRoom &states = reversed ? room.slab_gradients : room.slab_states;
    gpu::GenericPass pass = base_pass(short_runs_->runs, nullptr);
    pass.runs += slab.window.first_run;
    pass.num_runs = slab.window.num_runs;
    pass.heads = slab.heads;
    pass.g = cut_decay(b.decay, pass.decay, pass.g_strides.head, decay_element, slab.first_head);
    pass.reversed = reversed;
    const auto cut = [&](const gpu::Tensor &x) {
      return cut_heads(x, element, p.heads, slab.first_head, slab.heads);
    };
    pass.a = k_of(nullptr);  // only its width is used
    pass.b = cut(reversed ? q_of(b.q) : k_of(b.k));
    pass.c = cut(reversed ? do_of(b.d_o) : v_of(b.v));
    pass.y = o_of(nullptr);
    pass.out_scale = reversed ? p.scale : 1;
    pass.state_out = states.slots;
    run_pass(pass, "states for the gradient of the decay");

    gpu::RunFactors factors = run_factors(cut_, pass.g, states.factors);
    factors.runs = pass.runs;
    factors.num_runs = pass.num_runs;
    factors.heads = slab.heads;
    check_launch(gpu::launch_run_factors(factors, stream_), "summing decays");

    gpu::StateScan scan;
    scan.shape = shape();
    scan.shape.heads = slab.heads;
    scan.segments = short_runs_->segments.data() + slab.window.first_segment;
    scan.num_segments = slab.window.num_segments;
    scan.reversed = reversed;
    scan.slots = states.slots;
    scan.factors = states.factors;
    scan.starts = (reversed ? room.gradients.slots : room.states.slots) + slab.first_head * p.state_size();
    scan.start_of = short_runs_->entered_at[reversed].data() + slab.window.first_segment;
    scan.start_stride = p.heads * p.state_size();
    check_launch(gpu::launch_state_scan(scan, stream_), "scanning states");
  }
}

void StreamBackend::decay_gradients_by_slab(const BackwardBuffers &b, const BackwardRoom &room) const {
  const Problem &p = problem_;
  const int64_t element = size_of(p.dtype), decay_element = size_of(p.decay_dtype);
  for (int32_t first = 0; first < p.heads; first += slab_heads_) {
    const int32_t count = std::min(slab_heads_, p.heads - first);
    gpu::DecayGradient pass = base_decay_gradient(b);
    for (gpu::Tensor *x : {&pass.q, &pass.k, &pass.v, &pass.d_o})
      *x = cut_heads(*x, element, p.heads, first, count);
    pass.g = cut_decay(pass.g, pass.decay, pass.g_strides.head, decay_element, first);
    pass.d_g = const_cast<void *>(cut_decay(pass.d_g, pass.decay, pass.d_g_strides.head, decay_element, first));
    pass.heads = count;
    pass.run_tokens = decay_run_tokens();
    pass.state = room.slab_states.slots;
    pass.d_state = room.slab_gradients.slots;
    pass.workspace = room.decay_parts;
    for (const ShortRuns::Window &window : short_runs_->windows) {
      slab_states(b, room, {first, count, window});
      pass.runs = short_runs_->runs.data() + window.first_run;
      pass.num_runs = window.num_runs;
      pass.last = &window == &short_runs_->windows.back();
      check_launch(gpu::launch_decay_gradient(pass, stream_), "gradients of the decay");
    }
  }
}

}  // namespace lasp::cuda
