// The CUDA backend: which strategy serves each phase, and where their workspaces lie. Every phase only enqueues on
// the pass's stream.
//
// The rank's tokens are cut into runs. Each run's own part of the state is found first, a scan over runs gives the
// state that enters each, and from there all runs are worked on at once, for o, dq, dv and dk by one and the same
// pass (kernels/launch.h). What depends on another rank's state waits in `finish`; the rest is done ahead.
#pragma once

#include <optional>
#include <string>

#include "cuda/backend/bidirectional.h"
#include "cuda/backend/channel_backward.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/decay_gradient.h"
#include "cuda/backend/fused_backward.h"
#include "cuda/backend/outputs.h"
#include "cuda/backend/state_scan.h"
#include "cuda/backend/three_passes.h"

namespace lasp::cuda {

class StreamBackend final : public CudaBackend {
 public:
  // What it adds to `tables` is there once these are uploaded.
  StreamBackend(Tables &tables, const BackendPlan &plan);
  // So that no later launch does so.
  void load_kernels() const;
  StreamBackend(const StreamBackend &) = delete;
  StreamBackend &operator=(const StreamBackend &) = delete;

  uint64_t forward_workspace_bytes() const override { return forward_workspace(nullptr, nullptr).bytes; }
  uint64_t backward_workspace_bytes() const override { return backward_workspace(nullptr, nullptr).bytes; }
  uint64_t cache_bytes(bool chunks) const override;
  uint64_t forward_result_bytes() const override;
  uint64_t backward_result_bytes() const override;
  const char *description() const override { return description_.c_str(); }

  void set_stream(lasp_stream stream) override { plan_.set_stream(stream); }
  void set_marks(PendingMark &marks) override { plan_.marks = &marks; }
  void forward_alone(const ForwardBuffers &) override;
  void forward_states(const ForwardBuffers &, const AffineMapView &left, const AffineMapView &right) override;
  void forward_ahead(const ForwardBuffers &, const Progress &) override;
  void forward_finish(const ForwardBuffers &, const Incoming &) override;
  void forward_from_cache(const ForwardBuffers &) override;
  void backward_alone(const BackwardBuffers &) override;
  void backward_states(const BackwardBuffers &, const AffineMapView &left, const AffineMapView &right) override;
  void backward_ahead(const BackwardBuffers &, const Progress &) override;
  void backward_finish(const BackwardBuffers &, const Incoming &) override;
  uint64_t forward_carry_bytes() const override;
  uint64_t backward_carry_bytes() const override;
  // All that a phase hands on lies in the carry.
  void forward_resume(const ForwardBuffers &b) override { plan_.make_tables(b, state_bytes()); }
  void backward_resume(const BackwardBuffers &b) override;
  void require_stage(const BackwardBuffers &) const override;
  void clear_padding(const ForwardBuffers &) override;
  void clear_padding(const BackwardBuffers &) override;
  void step(const StepBuffers &) override;
  void copy_empty_sequences(float *to, const float *from, bool add) override;
  size_t most_composed() const override { return gpu::ComposeMaps::kMost; }
  void compose(lasp_stream, AffineMapView to, std::span<const AffineMapView> later, AffineMapView earlier,
               int64_t begin, int64_t end) override;
  void compose_known(lasp_stream, float *to, std::span<const KnownMap> later, const float *earlier,
                     const float *log_decay, int64_t begin, int64_t end) override;
  void fill_known_transition(lasp_stream, float *transition, const KnownTransition &known,
                             const float *log_decay) override;

 private:
  struct ForwardWorkspace {
    ScanWorkspace scan;
    void *checkpoints = nullptr;  // the fused pass's, in the state cache
    float *sums = nullptr;        // bidirectional: [segments, H, K, V]
    uint64_t bytes = 0;
  };
  struct BackwardWorkspace {
    ScanWorkspace states, gradients;  // their factors are the same
    FusedBackward::Workspace fused;   // its gradients in place of `gradients`
    StagedGradients staged;
    DecayGradients::Workspace decay;
    float *channel_ends = nullptr;
    float *sums = nullptr;  // bidirectional
    uint64_t bytes = 0;
  };
  ForwardWorkspace forward_workspace(void *workspace, void *cache) const;
  BackwardWorkspace backward_workspace(void *workspace, const void *cache) const;
  ForwardWorkspace forward_workspace(const ForwardBuffers &b) const;
  BackwardWorkspace backward_workspace(const BackwardBuffers &b) const;
  bool slots_in_cache() const;
  // What the state cache holds of states, and before the tables of a packing.
  uint64_t state_bytes(bool chunks) const;
  uint64_t state_bytes() const { return state_bytes(plan_.problem().cache_chunks); }
  // In an apply stage, too: what summarize left it in the carry, by the fused pass's cut, is then found again.
  bool adds_apart(const BackwardBuffers &b) const { return fused_.serves_plan() && !FusedBackward::can_add(b); }
  bool fuses(const BackwardBuffers &b) const {
    return b.staged ? fused_.serves_plan() && !adds_apart(b) : fused_.serves(b);
  }
  void place_gradients(Carver &, BackwardWorkspace &) const;
  void place_causal(Carver &, BackwardWorkspace &, const void *cache) const;
  void plan_decay_gradients(Tables &tables);

  // Zero enters every run, whatever the packing: then the state cache has no states that enter runs, and passes
  // read none. (Checkpoints it has.)
  bool without_states(const float *initial_state) const {
    return plan_.alone && plan_.cut.always_single && initial_state == nullptr &&
           !(decay_gradients_ && decay_gradients_->wants_states());
  }
  const Partition &gradient_cut(const BackwardBuffers &b) const { return fuses(b) ? fused_.cut() : plan_.cut; }
  const ScanWorkspace &gradient_workspace(const BackwardBuffers &b, const BackwardWorkspace &w) const {
    return fuses(b) ? w.fused.gradients : w.gradients;
  }
  // What needs no state from later tokens, and what does.
  void local_gradients(const BackwardBuffers &, const BackwardWorkspace &) const;
  void other_gradients(const BackwardBuffers &, const BackwardWorkspace &, gpu::RunFilter filter,
                       bool from_zero = false) const;

  DevicePlan plan_;
  StateScan scan_;
  Outputs outputs_;
  ThreePasses three_passes_;
  FusedBackward fused_;
  ChannelBackward channel_;
  Bidirectional bidirectional_;
  std::optional<DecayGradients> decay_gradients_;  // where the plan has a decay and a backward pass
  DeviceArray<gpu::Run> whole_segments_;           // step: Run::state is the sequence
  DeviceArray<int64_t> empty_sequences_;
  std::string description_;
};

}  // namespace lasp::cuda
