// Backward by the fused tensor-core pass, one walk over q, k, v and do for all gradients.
//
// Serves: K = V = 128 and other multiples of 64; some of them only where the gradient of the decay is wanted
//         (Choices::fused_for_decay). What else: gpu::fused_backward_refusal. Pointers are looked at in each call.
// Needs:  gradients of states by its own, longer runs (ScanWorkspace); states at checkpoints. The forward pass
// keeps
//         these in the state cache where that holds the states at runs; else they are found first, into workspace.
// Launches: a linear pass for missing checkpoints; the fused kernel; sums over heads that share q and k.
#pragma once

#include <memory>

#include "cuda/backend/group_sums.h"
#include "cuda/backend/state_scan.h"

namespace lasp::cuda {

class FusedBackward {
 public:
  struct Workspace {
    ScanWorkspace gradients;
    void *checkpoints = nullptr;  // they may lie in the state cache
    float *kernel = nullptr;      // gpu::FusedBackward::workspace
    StagedGradients staged;       // of shared heads of q and k, where v has one for each output head
  };

  FusedBackward(Tables &tables, const DevicePlan &plan);

  const Partition &cut() const { return *cut_; }
  bool serves(const BackwardBuffers &b) const;
  // Whether it can add to all that a call adds to: d_decay and d_initial_state. TMA would round the others twice.
  static bool can_add(const BackwardBuffers &b);
  // Serves the plan's passes, pointers permitting.
  bool serves_plan() const { return cut_ && plan_.cut.num_runs > 0; }

  // Whether the forward pass keeps checkpoints; how many bytes they take, and where they are in the state cache.
  bool keeps_checkpoints() const { return cut_ && plan_.problem().cache_chunks; }
  int64_t checkpoint_bytes() const;
  void *cached_checkpoints(void *cache) const;  // null where the forward pass keeps none

  void place_gradients(Carver &carver, Workspace &workspace) const;
  void place(Carver &carver, Workspace &workspace, const void *cache) const;
  void find_checkpoints(const BackwardBuffers &b, const ScanWorkspace &states, const Workspace &workspace) const;
  void run(const BackwardBuffers &b, const Workspace &workspace, bool from_zero) const;

 private:
  gpu::FusedBackward pass(const BackwardBuffers &b, const Workspace &workspace) const;

  const DevicePlan &plan_;
  GroupSums sums_;
  std::unique_ptr<Partition> cut_;  // where the pass serves the plan: its blocks hold a head's whole state
};

}  // namespace lasp::cuda
