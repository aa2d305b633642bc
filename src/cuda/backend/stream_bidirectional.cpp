// The unmasked form on the GPU: every token reads one state, the sum over its whole sequence.
#include "cuda/backend/stream_backend.h"

namespace lasp::cuda {

void StreamBackend::segment_sums(const float *slots, const float *own, bool reversed, float *sums,
                                 const AffineMapView &left, const AffineMapView &right) const {
  gpu::SegmentSums pass;
  pass.shape = shape();
  pass.segments = cut_.segments.data();
  pass.num_segments = cut_.segments.size();
  pass.reversed = reversed;
  pass.slots = slots;
  pass.own = own;
  pass.sums = sums;
  pass.left = left.state;
  pass.right = right.state;
  check_launch(gpu::launch_segment_sums(pass, stream_), "summing states");
  if (cut_.segments.size() == 0) {
    if (left.state != nullptr) zero(left.state, floats(work_.rows()), "clearing a state");
    if (right.state != nullptr) zero(right.state, floats(work_.rows()), "clearing a state");
  }
  fill_carry(left, resets_[0]);
  fill_carry(right, resets_[1]);
}

void StreamBackend::segment_totals(const float *sums, const Incoming &incoming, bool reversed, float *totals,
                                   float *edge_state) const {
  gpu::SegmentTotals pass;
  pass.shape = shape();
  pass.segments = cut_.segments.data();
  pass.num_segments = cut_.segments.size();
  pass.reversed = reversed;
  pass.sums = sums;
  pass.from_left = incoming.left;
  pass.from_right = incoming.right;
  pass.totals = totals;
  pass.edge_state = edge_state;
  check_launch(gpu::launch_segment_totals(pass, stream_), "adding up incoming states");
}

void StreamBackend::bidirectional_outputs(const ForwardBuffers &b, const float *totals) const {
  gpu::GenericPass pass = base_pass(by_segment_, nullptr);
  pass.fixed_state = true;
  pass.a = q_of(b.q);
  pass.y = o_of(b.o);
  pass.scale = problem_.scale;
  pass.state_in = totals;
  run_pass(pass, "outputs");
}

void StreamBackend::bidirectional_query_gradients(const BackwardBuffers &b, const BackwardRoom &room) const {
  gpu::GenericPass pass = base_pass(by_segment_, nullptr);
  pass.fixed_state = true;
  pass.a = do_of(b.d_o);
  pass.scale = problem_.scale;
  pass.state_in = static_cast<const float *>(b.state_cache);
  pass.state_transposed = true;
  run_gradient(pass, tensor(b.dq, problem_.dq, problem_.heads_q, problem_.head_dim_k), room.dq, "gradients of q");
}

void StreamBackend::bidirectional_other_gradients(const BackwardBuffers &b, const BackwardRoom &room) const {
  gpu::GenericPass pass = base_pass(by_segment_, nullptr);
  pass.fixed_state = true;
  pass.state_in = room.sums;
  gpu::GenericPass dv = pass, dk = pass;
  dv.a = k_of(b.k);
  run_gradient(dv, tensor(b.dv, problem_.dv, problem_.heads_v, problem_.head_dim_v), room.dv, "gradients of v");
  dk.a = v_of(b.v);
  dk.state_transposed = true;
  run_gradient(dk, tensor(b.dk, problem_.dk, problem_.heads_k, problem_.head_dim_k), room.dk, "gradients of k");
}

}  // namespace lasp::cuda
