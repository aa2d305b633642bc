// Backward with per-channel decay where its gradient is asked for: dq, dk and d_decay by two walks on tensor cores,
// dv by the linear pass.
#include "cuda/backend/stream_backend.h"

namespace lasp::cuda {

gpu::ChannelBackward StreamBackend::channel_pass(const BackwardBuffers &b, const BackwardRoom &room) const {
  const Problem &p = problem_;
  const auto gradient = [&](void *data, const Layout &layout, int32_t heads, void *staged) {
    return heads == p.heads ? tensor(data, layout, heads, p.head_dim_k)
                            : staged_tensor(staged, p.heads, p.head_dim_k);
  };
  gpu::ChannelBackward pass{backward_pass(cut_.runs[0], b)};
  pass.d_q = gradient(b.dq, p.dq, p.heads_q, room.dq);
  pass.d_k = gradient(b.dk, p.dk, p.heads_k, room.dk);
  pass.reversed_runs = cut_.runs[1].data();
  pass.state = room.states.slots;
  pass.d_state = room.gradients.slots;
  pass.ends = room.channel_ends;
  return pass;
}

// Without the gradient of the decay the linear passes do as well.
bool StreamBackend::channel_serves(const BackwardBuffers &b) const {
  return channel_ && b.d_decay != nullptr &&
         gpu::channel_backward_supported(channel_pass(b, {}), compute_capability_, nullptr);
}

void StreamBackend::channel_gradients(const BackwardBuffers &b, const BackwardRoom &room) const {
  const Problem &p = problem_;
  const gpu::ChannelBackward pass = channel_pass(b, room);
  check_launch(gpu::launch_channel_backward(pass, stream_), "gradients of q, k and the decay");
  const auto sum = [&](void *data, const Layout &layout, int32_t heads, const void *staged) {
    if (heads == p.heads) return;
    check_launch(gpu::launch_sum_groups(tensor(data, layout, heads, p.head_dim_k), pass.dtype, staged, pass.dtype,
                                        p.batch, p.tokens, p.heads, stream_),
                 "gradients of groups of heads");
  };
  sum(b.dq, p.dq, p.heads_q, room.dq);
  sum(b.dk, p.dk, p.heads_k, room.dk);
  value_gradients(b, room, gpu::RunFilter::kAll);
}

}  // namespace lasp::cuda
