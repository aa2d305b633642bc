// A plan on a GPU as its strategies share it: the problem, what was chosen, how the tokens are cut, and the stream
// of the pass that runs. And the launch that all of them make: one linear pass over runs.
#pragma once

#include <memory>

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/packed_tables.h"
#include "cuda/backend/tables.h"
#include "cuda/choice/choices.h"

namespace lasp::cuda {

// The launchers of kernels/ answer with the number of a cudaError_t.
inline void check_launch(int error, const char *what) { check(static_cast<cudaError_t>(error), what); }

// The kernels of this build and the current device.
class Kernels final : public KernelFinder {
 public:
  using KernelFinder::KernelFinder;
  int64_t fused_backward_blocks(const gpu::FusedBackward &, int32_t multiprocessors) const override;
  int64_t fused_backward_workspace(const gpu::FusedBackward &) const override;

 private:
  const char *refusal(gpu::KernelSet, const gpu::LinearPass &) const override;
  const char *refusal(const gpu::FusedBackward &) const override;
  const char *refusal(gpu::KernelSet, const gpu::ChannelBackward &) const override;
  const char *states_refusal(const gpu::LinearPass &) const override;
  int32_t blocks(gpu::KernelSet, const gpu::LinearPass &) const override;
  const char *refusal(gpu::KernelSet, const gpu::DeltaForward &) const override;
  const char *refusal(gpu::KernelSet, const gpu::DeltaReversed &) const override;
  const char *refusal(gpu::KernelSet, const gpu::DeltaGradients &) const override;
};

struct DevicePlan {
  // What it adds to `tables` is there once these are uploaded.
  DevicePlan(Tables &tables, const BackendPlan &plan);

  PlanInputs inputs;
  Kernels kernels;
  int32_t multiprocessors;
  bool alone;  // the plan's only rank
  Choices choices;
  std::unique_ptr<PackedTables> packed;  // of a packed plan; else null
  Partition cut;                         // of the passes
  DeviceArray<float> resets[2];          // [rows]: the factor of a row without decay, forward and reversed
  DeviceArray<float> zeros;              // PlanInputs::set_zeros
  lasp_stream stream = nullptr;          // of the pass that runs
  PendingMark *marks = nullptr;

  const Problem &problem() const { return inputs.problem(); }
  const TokenPartition &partition() const { return inputs.partition(); }

  // Another cut, for as long as the plan lives. What it adds to `tables` is there once these are uploaded.
  Partition make_cut(Tables &tables, int64_t run_tokens, int64_t state_tokens) const;
  // The tables of a packing are made by the forward pass and kept in the state cache, behind `states` bytes, where
  // there is one; else in the workspace, at its beginning. So does a stage of the backward pass that is given no
  // cache.
  uint64_t tables_in_workspace(bool forward) const {
    return packed && !(forward && problem().backward) ? packed->bytes() : 0;
  }
  uint64_t tables_in_cache() const { return packed && problem().backward ? packed->bytes() : 0; }
  void make_tables(const ForwardBuffers &b, uint64_t states) const;
  void find_tables(const ForwardBuffers &b, uint64_t states) const;
  void find_tables(const BackwardBuffers &b, uint64_t states) const;

  // By tensor cores where they serve this pass, else by the generic kernel.
  void run_pass(const gpu::GenericPass &pass, const char *what) const;
  void zero(void *to, int64_t floats, const char *what) const;
  gpu::Mark take_mark() const { return marks != nullptr ? marks->take() : gpu::Mark{}; }
  // Before each pass.
  void set_stream(lasp_stream of_pass) {
    stream = of_pass;
    inputs.set_zeros(zeros.data());
  }
  // The factors of rows without tokens or without decay.
  void fill_factors(const AffineMapView &map, bool reversed) const;
  // Whether a zero state enters every run of a plan that exchanges nothing: passes then read no states at all.
  static bool begin_with_zero(const Partition &cut, const float *first_state) {
    return cut.single_runs && first_state == nullptr;
  }
  // Whether runs that a state from another rank does not change go ahead of the exchange. Which ones the device
  // knows, so what goes ahead and what waits are launches over the same runs. Not with tensor cores: their blocks
  // hold a whole multiprocessor for a whole run, and the exchange's own kernels wait longer for one than is won
  // (docs/history/gpu-speed.md).
  bool filters_runs(bool reversed) const {
    return !choices.tensor_cores && !cut.single_runs && inputs.forgets() && cut.consumers[reversed].size() > 0;
  }
};

}  // namespace lasp::cuda
