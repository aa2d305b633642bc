#include "cuda/backend/delta_tables.h"

#include <algorithm>

#include "base/status.h"
#include "cuda/backend/device_plan.h"
#include "kernels/delta.h"

namespace lasp::cuda {
namespace {

// The most tokens of a segment, as a whole number of stretches.
int64_t longest(const TokenPartition &partition, int64_t spacing) {
  int64_t most = 1;
  for (const Segment &segment : partition.segments) most = std::max(most, segment.end - segment.begin);
  if (most > kLongestStep - spacing)
    throw fail(LASP_ERROR_UNSUPPORTED,
               "tokens: a sequence has %lld on this rank; the delta rule on a GPU takes %lld",
               static_cast<long long>(most), static_cast<long long>(kLongestStep - spacing));
  return (most + spacing - 1) / spacing * spacing;
}

Partition make_cut(Tables &tables, PackedTables *packed, const TokenPartition &partition, int64_t spacing) {
  const int64_t whole = longest(partition, spacing);
  return packed != nullptr ? Partition(*packed, partition, whole, spacing)
                           : Partition(tables, partition, whole, spacing);
}

}  // namespace

DeltaTables::DeltaTables(Tables &tables, const BackendPlan &plan, int64_t spacing)
    : backward_(plan.problem.backward),
      packed_(!plan.problem.packed ? nullptr
                                   : std::make_unique<PackedTables>(plan.problem, plan.ranges, plan.rank)),
      cut_(make_cut(tables, packed_.get(), plan.partition, spacing)),
      empty_sequences_(tables.add(plan.partition.empty_sequences)) {
  for (const Segment &segment : plan.partition.segments)
    passes_through_ = passes_through_ || (!segment.starts_here && !segment.ends_here);
  for (const RowPath &row : plan.partition.forward) consumes_ = consumes_ || row.consumer >= 0;
}

bool DeltaTables::any(bool reversed, gpu::RunFilter filter) const {
  if (filter == gpu::RunFilter::kAll) return cut_.runs[reversed].size() > 0;
  const auto *const some = filter == gpu::RunFilter::kDependent ? cut_.consumers : cut_.independent;
  return some[reversed].size() > 0;
}

void DeltaTables::adapt(cudaStream_t stream) const {
  gpu::DeltaRuns tables;
  tables.segments = cut_.segments.data();
  for (const int direction : {0, 1}) tables.runs[direction] = cut_.runs[direction].data();
  tables.num_runs = cut_.runs[0].size();
  tables.stretches = cut_.state_runs.data();
  tables.num_stretches = cut_.state_runs.size();
  tables.spacing = cut_.longest_state_run;
  check_launch(gpu::launch_delta_runs(tables, stream), "adapting tables");
}

void DeltaTables::make(void *memory, const Packing &packing, cudaStream_t stream) const {
  if (!packed_) return;
  packed_->set(memory, packing);
  packed_->make(stream);
  adapt(stream);
}

void DeltaTables::find(void *memory, const Packing &packing) const {
  if (packed_) packed_->set(memory, packing);
}

void DeltaTables::copy_empty_sequences(float *to, const float *from, int64_t size, bool adds,
                                       cudaStream_t stream) const {
  if (packed_) return packed_->copy_empty_sequences(to, from, size, adds, stream);
  check_launch(
      gpu::launch_copy_states(to, from, empty_sequences_.data(), empty_sequences_.size(), size, adds, stream),
      "handing on the states of empty sequences");
}

}  // namespace lasp::cuda
