// The CUDA backend of the delta rule. What a token writes depends on the state before it, so that a walk takes a
// segment's tokens in order, for a head and some columns of V, and states are known as it passes. Three launches
// (kernels/delta.h): the walk forward, the walk back, and the gradients of stretches between checkpoints, all at
// once.
//
// Serves: every plan of the delta rule.
// Needs:  states at checkpoints and their gradients; in a rank in the middle of a sequence, its transition M, which
//         backward finds in the state cache; StagedGradients for shared heads; the launches' own workspaces.
// Launches: where a state from another rank enters a segment, its walk from zero, and from the identity for M,
//         before the exchange, and what is left of it with what came in; the other segments' walks once, ahead of
//         it. By sets of kernels that keep checkpoints alike (delta_choices.h); a step by the general ones.
#pragma once

#include <optional>
#include <string>

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/delta_tables.h"
#include "cuda/backend/dense_maps.h"
#include "cuda/backend/device_plan.h"
#include "cuda/choice/delta_choices.h"
#include "kernels/delta.h"

namespace lasp::cuda {

class DeltaBackend final : public CudaBackend {
 public:
  // What it adds to `tables` is there once these are uploaded.
  DeltaBackend(Tables &tables, const BackendPlan &plan);

  // All that it launches, into the current context, so that no later launch does so.
  void load_kernels() const;
  // After the upload of `tables`; ends when they are as the launches want them.
  void adapt_tables(lasp_stream stream) const;

  uint64_t forward_workspace_bytes() const override { return forward_workspace(nullptr, nullptr).bytes; }
  uint64_t backward_workspace_bytes() const override { return backward_workspace(nullptr, nullptr).bytes; }
  uint64_t cache_bytes(bool chunks) const override;
  const char *description() const override { return description_.c_str(); }

  void set_stream(lasp_stream stream) override { stream_ = stream; }
  void set_marks(PendingMark &marks) override { marks_ = &marks; }
  void forward_alone(const ForwardBuffers &) override;
  void forward_states(const ForwardBuffers &, const AffineMapView &left, const AffineMapView &right) override;
  void forward_ahead(const ForwardBuffers &, const Progress &) override;
  void forward_finish(const ForwardBuffers &, const Incoming &) override;
  void forward_from_cache(const ForwardBuffers &) override;
  void backward_alone(const BackwardBuffers &) override;
  void backward_states(const BackwardBuffers &, const AffineMapView &left, const AffineMapView &right) override;
  void backward_ahead(const BackwardBuffers &, const Progress &) override;
  void backward_finish(const BackwardBuffers &, const Incoming &) override;
  // What it hands on is M, which the state cache of the second stage keeps for backward. The walks that begin here
  // run once more, as those do that a state enters.
  uint64_t forward_carry_bytes() const override {
    return problem_.backward ? static_cast<uint64_t>(transition_floats()) * sizeof(float) : 0;
  }
  uint64_t backward_carry_bytes() const override { return 0; }
  void forward_resume(const ForwardBuffers &) override;
  void backward_resume(const BackwardBuffers &b) override { backward_states(b, {}, {}); }
  void fill_identity(const AffineMapView &map) override;
  void step(const StepBuffers &) override;
  void copy_empty_sequences(float *to, const float *from, bool add) override;
  void clear_padding(const ForwardBuffers &) override;
  void clear_padding(const BackwardBuffers &) override;

  void prepare_to_compose(int64_t heads, lasp_stream stream) override;
  size_t most_composed() const override { return 1; }
  void compose(lasp_stream, AffineMapView to, std::span<const AffineMapView> later, AffineMapView earlier,
               int64_t begin, int64_t end) override;
  void fill_known_transition(lasp_stream, float *, const KnownTransition &, const float *) override {}
  void compose_known(lasp_stream, float *, std::span<const KnownMap>, const float *, const float *, int64_t,
                     int64_t) override {}  // no transition of these is known

 private:
  struct ForwardWorkspace {
    void *checkpoints;   // in the state cache; null: not kept
    float *maps;         // likewise
    float *incoming;     // likewise, [paths, H, K, V]: the states from other ranks
    float *transitions;  // likewise, [paths, H, K, K]
    float *launch;
    uint64_t bytes;
  };
  struct BackwardWorkspace {
    void *checkpoints, *d_checkpoints;  // the former in the state cache, where that has them
    float *maps;                        // in the state cache
    const float *incoming, *transitions;
    float *staged[3];           // dq, dk, dv by output head, in float32; null: not staged
    float *launch, *gradients;  // of the walks, one after the other; of the last launch
    uint64_t bytes;
  };
  ForwardWorkspace forward_workspace(void *workspace, void *cache) const;
  BackwardWorkspace backward_workspace(void *workspace, const void *cache) const;
  int64_t checkpoint_bytes(bool back) const;
  int64_t maps_floats() const;
  int64_t transition_floats() const {
    return tables_.passes_through() ? problem_.runs * map_.transition_floats() : 0;
  }
  // What is in the state cache, each null where it is not: checkpoints, the states that came in, transitions. The
  // tables of a packing lie behind it.
  struct Cached {
    std::byte *checkpoints;
    float *maps, *incoming, *transitions;
    uint64_t bytes;
  };
  Cached cached(const void *cache, bool chunks) const;
  uint64_t cached_bytes(bool chunks) const { return cached(nullptr, chunks).bytes; }
  void make_tables(const ForwardBuffers &b) const;
  void find_tables(const void *state_cache, const Packing &packing) const;

  gpu::DeltaForward forward_pass(const ForwardBuffers &b, const ForwardWorkspace &w, gpu::RunFilter filter) const;
  gpu::DeltaReversed reversed_pass(const BackwardBuffers &b, const BackwardWorkspace &w,
                                   gpu::RunFilter filter) const;
  void walk(const gpu::DeltaForward &pass, const char *what) const;
  bool walks_once(const gpu::DeltaReversed &pass, const BackwardBuffers &b, const BackwardWorkspace &w) const {
    return gpu::delta_walks_once(choices_.reversed, pass, gradients_pass(b, w, true));
  }
  void walk_back(gpu::DeltaReversed pass, const BackwardBuffers &b, const BackwardWorkspace &w,
                 const char *what) const;
  gpu::DeltaForward own_pass(const ForwardBuffers &b, const ForwardWorkspace &w) const;
  void fill_map(const AffineMapView &map, bool reversed, const float *cached) const;
  void find_checkpoints(const BackwardBuffers &b, const BackwardWorkspace &w) const;
  void gradients(const BackwardBuffers &b, const BackwardWorkspace &w, gpu::RunFilter filter) const;
  // One walk back adds dq and dk up before it rounds them.
  const LeftGradients &left(bool walked_once) const { return walked_once ? choices_.left_once : choices_.left; }
  gpu::DeltaGradients gradients_pass(const BackwardBuffers &b, const BackwardWorkspace &w, bool walked_once) const;
  void copy(void *to, const void *from, int64_t floats, const char *what) const;
  gpu::Mark take_mark() const { return marks_ != nullptr ? marks_->take() : gpu::Mark{}; }

  static constexpr gpu::KernelSet kOfStep = gpu::KernelSet::kGeneric;
  PlanInputs inputs_;
  const Problem &problem_;
  AffineMap map_;
  Kernels kernels_;
  DeltaChoices choices_;
  DeltaTables tables_;
  bool in_halves_;                 // DeltaInputs::in_halves
  std::optional<DenseMaps> maps_;  // where an exchange of the plan composes
  lasp_stream stream_ = nullptr;   // of the pass that runs
  bool rest_ahead_ = false;        // forward, of independent runs, so far, only what leaves has been found
  std::optional<gpu::DeltaHalf> rest_back_;  // backward, what of them is still to be found
  PendingMark *marks_ = nullptr;
  std::string description_;
};

}  // namespace lasp::cuda
