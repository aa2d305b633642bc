// The unmasked form: every token reads one state, the sum over its whole sequence.
//
// Serves: bidirectional plans, which have no decay.
// Needs:  the runs' own parts of the state (StateScan), a sum [segments, H, K, V], StagedGradients for shared
// heads. Launches: sums over segments, totals with what came in, and passes of the generic kernel with a fixed
// state.
#pragma once

#include "cuda/backend/group_sums.h"

namespace lasp::cuda {

class Bidirectional {
 public:
  Bidirectional(Tables &tables, const DevicePlan &plan);

  // Each segment's sum, and this rank's maps from all of them.
  void sums(const float *slots, const float *own, bool reversed, float *sums, const AffineMapView &left,
            const AffineMapView &right) const;
  void totals(const float *sums, const Incoming &incoming, bool reversed, float *totals, float *edge_state,
              bool edge_adds) const;
  void outputs(const ForwardBuffers &b, const float *totals) const;
  void query_gradients(const BackwardBuffers &b, void *staged) const;
  void other_gradients(const BackwardBuffers &b, const float *totals, const StagedGradients &staged) const;

 private:
  const DevicePlan &plan_;
  GroupSums groups_;
  DeviceArray<gpu::Run> by_segment_;  // Run::state is the segment
};

}  // namespace lasp::cuda
