// The gradient of the log decay. Its kernel wants the states around short runs. Where the passes themselves work on
// long ones, the states of short runs are found again from those at the long runs' edges, a tile at a time: some
// heads, or of one head some of the long runs, so that they never take more than a small share of the tensors'
// memory.
//
// Serves: plans with a decay, in calls that neither the fused pass nor the channel walks serve.
// Needs:  the states that enter the runs and their gradients; Workspace: the kernel's own, and the states of a
// tile. Launches: the gradient's kernels; for each tile before them the linear passes, run factors and scans of its
// states.
#pragma once

#include <optional>

#include "cuda/backend/state_scan.h"

namespace lasp::cuda {

class DecayGradients {
 public:
  struct Workspace {
    float *kernel = nullptr;          // DecayGradient::workspace
    ScanWorkspace states, gradients;  // of a tile
  };

  // `spare`: it serves unaligned pointers alone. `other_bytes`: what other states of the backward pass take;
  // `staged_bytes`: what is there before the tile's states, in the same place.
  DecayGradients(Tables &tables, const DevicePlan &plan, bool spare, uint64_t other_bytes, uint64_t staged_bytes);

  // Whether it wants the states that enter runs in memory, be they zero.
  bool wants_states() const { return !short_runs_; }
  void place(Carver &carver, Workspace &workspace) const;
  void run(const BackwardBuffers &b, const ScanWorkspace &states, const ScanWorkspace &gradients,
           const Workspace &workspace) const;

 private:
  struct HeadTile {
    int32_t first_head, heads;
    ShortRuns::Window window;
  };
  void choose_tiles(Tables &tables, bool spare, uint64_t most);
  void make_packed_windows(int64_t parts, int64_t runs);
  void place_tile(Carver &carver, Workspace &workspace, int32_t heads, int64_t runs) const;
  gpu::DecayGradient base_pass(const BackwardBuffers &b) const;
  void run_by_tile(const BackwardBuffers &b, const ScanWorkspace &states, const ScanWorkspace &gradients,
                   const Workspace &workspace) const;
  void tile_states(const BackwardBuffers &b, bool reversed, const ScanWorkspace &entering,
                   const ScanWorkspace &workspace, const HeadTile &tile) const;

  const DevicePlan &plan_;
  StateScan scan_;
  std::optional<ShortRuns> short_runs_;  // where the passes' runs are too long
  int32_t tile_heads_ = 0;
};

}  // namespace lasp::cuda
