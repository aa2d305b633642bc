// The states that enter runs, and this rank's own map.
//
// Serves: every plan; forward with states, reversed with their gradients.
// Needs:  ScanWorkspace: a state for each run of the finer cut, its decay where there is one.
// Launches: the runs' own parts of the state with the runs' decays (a linear pass without y and run factors, or the
//           channel states kernel for both), a scan over runs, and after an exchange the entry of what came in.
#pragma once

#include "cuda/backend/device_plan.h"

namespace lasp::cuda {

// Of one direction's scan. `slots` may lie in the state cache; null: every run begins with zero.
struct ScanWorkspace {
  float *slots = nullptr;        // [states, H, K, V] a run's own part, then the state that enters it
  float *factors = nullptr;      // [states, H(, K)] decay of a run
  float *entry_decay = nullptr;  // [states, H(, K)] from the segment's beginning to the run
  int32_t *counts = nullptr;     // LinearPass::counts, of decay per token

  void place(Carver &carver, const PlanInputs &inputs, int64_t states, int32_t heads, bool with_slots);
};

class StateScan {
 public:
  explicit StateScan(const DevicePlan &plan) : plan_(plan) {}

  // States from k and v, and their gradients from q and do. `own` is this rank's map to fill; null: nobody wants
  // it.
  void states(const ForwardBuffers &b, const ScanWorkspace &workspace, const AffineMapView &own) const;
  // `from_zero`: what enters at the end of a sequence is zero, and nobody reads it (kernels/from_zero.h).
  void gradients(const BackwardBuffers &b, const Partition &cut, const ScanWorkspace &workspace,
                 const AffineMapView &own, bool from_zero) const;
  // Adds what came in to the states that enter the runs of segments which it enters.
  void join(const Partition &cut, const ScanWorkspace &workspace, const float *incoming, bool reversed) const;
  gpu::RunFactors run_factors(const Partition &cut, const void *g, float *to) const;

 private:
  void own_parts(gpu::GenericPass &pass, const Partition &cut, const ScanWorkspace &workspace,
                 const AffineMapView &own, const char *what, bool from_zero = false) const;
  void scan(const Partition &cut, const ScanWorkspace &workspace, bool reversed, const void *decay,
            const float *first_state, const AffineMapView &own, bool from_zero = false) const;

  const DevicePlan &plan_;
};

}  // namespace lasp::cuda
