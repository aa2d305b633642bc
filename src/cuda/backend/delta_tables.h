// A rank's tokens as the launches of the delta rule read them, also those of a packed plan: the only place that
// knows how a plan's tables are made. They are those of a cut (tables.h) with a run for each segment and parts that
// begin at checkpoints, in which a kernel then says of each run what the launches want to know.
#pragma once

#include <memory>

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/packed_tables.h"

namespace lasp::cuda {

class DeltaTables {
 public:
  // Checkpoints stand before every `spacing` tokens of a segment. Throws for segments that no run counts. Of a plan
  // that is not packed the tables are there once `tables` are uploaded and adapt() has run.
  DeltaTables(Tables &tables, const BackendPlan &plan, int64_t spacing);

  int64_t num_checkpoints() const { return cut_.num_states; }
  const DeviceArray<gpu::Segment> &segments() const { return cut_.segments; }
  // A run for each segment, in the direction of the pass: Run::state is the row where a state from another rank
  // enters, else the sequence.
  const DeviceArray<gpu::Run> &runs(bool reversed) const { return cut_.runs[reversed]; }
  const DeviceArray<gpu::Run> &stretches() const { return cut_.state_runs; }  // between checkpoints
  // Whether there may be runs that a pass with this filter works on.
  bool any(bool reversed, gpu::RunFilter filter) const;
  // Whether a state may go through a row of this rank, in on one side and out on the other; whether one may enter.
  bool passes_through() const { return passes_through_; }
  bool consumes() const { return consumes_; }

  void adapt(cudaStream_t stream) const;
  // Those of a packing lie in the state cache, made by the forward pass, or without one in the workspace.
  uint64_t bytes(bool cached) const { return packed_ && cached == backward_ ? packed_->bytes() : 0; }
  void make(void *memory, const Packing &packing, cudaStream_t stream) const;
  void find(void *memory, const Packing &packing) const;
  const PackedTables *packed() const { return packed_.get(); }
  void copy_empty_sequences(float *to, const float *from, int64_t size, bool adds, cudaStream_t stream) const;

 private:
  bool backward_;
  std::unique_ptr<PackedTables> packed_;
  Partition cut_;
  DeviceArray<int64_t> empty_sequences_;
  bool passes_through_ = false, consumes_ = false;
};

}  // namespace lasp::cuda
