#include "cuda/backend/bidirectional.h"

namespace lasp::cuda {
namespace {

std::vector<gpu::Run> chunks_by_segment(const TokenPartition &partition) {
  std::vector<gpu::Run> runs;
  for (const Chunk &chunk : partition.chunks) {
    gpu::Run run;
    run.row = partition.segments[static_cast<size_t>(chunk.segment)].row;
    run.begin = chunk.begin;
    run.segment = run.state = chunk.segment;
    run.length = chunk.length;
    runs.push_back(run);
  }
  return runs;
}

}  // namespace

Bidirectional::Bidirectional(Tables &tables, const DevicePlan &plan) : plan_(plan), groups_(plan) {
  if (plan.problem().bidirectional) by_segment_ = tables.add(chunks_by_segment(plan.partition()));
}

void Bidirectional::sums(const float *slots, const float *own, bool reversed, float *sums,
                         const AffineMapView &left, const AffineMapView &right) const {
  const DeviceArray<gpu::Segment> &segments = plan_.cut.segments;
  gpu::SegmentSums pass;
  pass.shape = plan_.inputs.state_shape();
  pass.segments = segments.data();
  pass.num_segments = segments.size();
  pass.reversed = reversed;
  pass.slots = slots;
  pass.own = own;
  pass.sums = sums;
  pass.left = left.state;
  pass.right = right.state;
  check_launch(gpu::launch_segment_sums(pass, plan_.take_mark(), plan_.stream), "summing states");
  if (segments.size() == 0) {
    const int64_t floats = plan_.inputs.floats(plan_.partition().rows());
    if (left.state != nullptr) plan_.zero(left.state, floats, "clearing a state");
    if (right.state != nullptr) plan_.zero(right.state, floats, "clearing a state");
  }
  plan_.fill_factors(left, false);
  plan_.fill_factors(right, true);
}

void Bidirectional::totals(const float *sums, const Incoming &incoming, bool reversed, float *totals,
                           float *edge_state, bool edge_adds) const {
  gpu::SegmentTotals pass;
  pass.shape = plan_.inputs.state_shape();
  pass.segments = plan_.cut.segments.data();
  pass.num_segments = plan_.cut.segments.size();
  pass.reversed = reversed;
  pass.sums = sums;
  pass.from_left = incoming.left;
  pass.from_right = incoming.right;
  pass.totals = totals;
  pass.edge_state = edge_state;
  pass.edge_adds = edge_adds;
  check_launch(gpu::launch_segment_totals(pass, plan_.take_mark(), plan_.stream), "adding up incoming states");
}

void Bidirectional::outputs(const ForwardBuffers &b, const float *totals) const {
  gpu::GenericPass pass = plan_.inputs.base_pass(by_segment_.span(), nullptr);
  pass.fixed_state = true;
  pass.a = plan_.inputs.q_of(b.q);
  pass.y = plan_.inputs.o_of(b.o);
  pass.scale = plan_.problem().scale;
  pass.state_in = totals;
  plan_.run_pass(pass, "outputs");
}

void Bidirectional::query_gradients(const BackwardBuffers &b, void *staged) const {
  gpu::GenericPass pass = plan_.inputs.base_pass(by_segment_.span(), nullptr);
  pass.fixed_state = true;
  pass.a = plan_.inputs.do_of(b.d_o);
  pass.scale = plan_.inputs.backward_scale();
  pass.state_in = static_cast<const float *>(b.state_cache);
  pass.state_transposed = true;
  groups_.run(pass, plan_.inputs.dq(b), staged, "gradients of q");
}

void Bidirectional::other_gradients(const BackwardBuffers &b, const float *totals,
                                    const StagedGradients &staged) const {
  gpu::GenericPass pass = plan_.inputs.base_pass(by_segment_.span(), nullptr);
  pass.fixed_state = true;
  pass.state_in = totals;
  gpu::GenericPass dv = pass, dk = pass;
  dv.a = plan_.inputs.k_of(b.k);
  groups_.run(dv, plan_.inputs.dv(b), staged.dv, "gradients of v");
  dk.a = plan_.inputs.v_of(b.v);
  dk.state_transposed = true;
  groups_.run(dk, plan_.inputs.dk(b), staged.dk, "gradients of k");
}

}  // namespace lasp::cuda
