// Backward by the fused tensor-core pass, one walk over q, k, v and do for all gradients. It needs states at its
// checkpoints: the forward pass keeps them in the state cache where that holds the states at runs, else they are
// found first.
#include "cuda/backend/stream_backend.h"

namespace lasp::cuda {

gpu::FusedBackward StreamBackend::fused_pass(const BackwardBuffers &b, const BackwardRoom &room) const {
  const Problem &p = problem_;
  const Partition &cut = fused_cut_ ? *fused_cut_ : cut_;  // not yet where the kernel is asked what it serves
  gpu::FusedBackward pass{backward_pass(cut.runs[1], b)};
  pass.d_q = tensor(b.dq, p.dq, p.heads_q, p.head_dim_k);
  pass.d_k = tensor(b.dk, p.dk, p.heads_k, p.head_dim_k);
  pass.d_v = tensor(b.dv, p.dv, p.heads_v, p.head_dim_v);
  pass.num_checkpoints = cut.num_checkpoints;
  pass.checkpoints = room.states.checkpoints;
  pass.d_state_in = room.fused_gradients.slots;
  pass.d_edge_state = b.d_initial_state;
  pass.workspace = room.fused_parts;
  return pass;
}

bool StreamBackend::fused_serves(const BackwardBuffers &b) const {
  if (!fused_ || cut_.runs[1].size() == 0) return false;
  return gpu::fused_backward_supported(fused_pass(b, {}), compute_capability_, nullptr);
}

void *StreamBackend::cached_checkpoints(void *cache) const {
  return cache != nullptr && keeps_checkpoints() ? static_cast<float *>(cache) + floats(cut_.num_states())
                                                 : nullptr;
}

int64_t StreamBackend::checkpoint_bytes() const {
  return cut_.num_checkpoints * problem_.heads * problem_.state_size() * size_of(problem_.dtype);
}

void StreamBackend::find_checkpoints(const BackwardBuffers &b, const BackwardRoom &room) const {
  gpu::GenericPass pass = base_pass(cut_.runs[0], b.decay);
  pass.a = k_of(nullptr);  // only its width is used
  pass.b = k_of(b.k);
  pass.c = v_of(b.v);
  pass.y = o_of(nullptr);
  pass.state_in = room.states.slots;
  pass.checkpoints = room.states.checkpoints;
  run_pass(pass, "states at checkpoints");
}

void StreamBackend::fused_gradients(const BackwardBuffers &b, const BackwardRoom &room) const {
  check_launch(gpu::launch_fused_backward(fused_pass(b, room), stream_), "gradients");
}

}  // namespace lasp::cuda
