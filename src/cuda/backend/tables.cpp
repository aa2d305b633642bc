#include "cuda/backend/tables.h"

namespace lasp::cuda {

DeviceBlock::~DeviceBlock() {
  if (data_ == nullptr) return;
  int previous = -1;
  cudaGetDevice(&previous);
  cudaSetDevice(device_);
  cudaFree(data_);
  if (previous >= 0) cudaSetDevice(previous);
}

void DeviceBlock::allocate(size_t bytes) {
  void *memory = nullptr;
  check(cudaGetDevice(&device_), "asking for the current device");
  check_allocation(cudaMalloc(&memory, bytes), "allocating a plan's tables");
  data_ = static_cast<std::byte *>(memory);
}

void Tables::upload(cudaStream_t stream) {
  if (host_.empty()) return;
  block_->allocate(host_.size());
  check(cudaMemcpyAsync(block_->data(), host_.data(), host_.size(), cudaMemcpyHostToDevice, stream),
        "copying a plan's tables");
  check(cudaStreamSynchronize(stream), "copying a plan's tables");
}

Partition::Partition(Tables &tables, const TokenPartition &partition, int64_t run_tokens, int64_t state_tokens) {
  const std::vector<gpu::Segment> all_segments = make_segments(partition, state_tokens);
  const auto segment_of = [&](const gpu::Run &run) -> const gpu::Segment & {
    return all_segments[static_cast<size_t>(run.segment)];
  };
  const std::vector<gpu::Run> fine = make_runs(partition, state_tokens, run_tokens),
                              coarse = make_runs(partition, run_tokens, run_tokens);
  segments = tables.add(all_segments);
  state_runs = tables.add(fine);
  single_runs = coarse.size() == all_segments.size();
  longest_state_run = state_tokens;
  for (int direction = 0; direction < 2; ++direction) {
    std::vector<gpu::Run> inner, led;
    for (const gpu::Run &run : fine) {
      const Segment &segment = partition.segments[static_cast<size_t>(run.segment)];
      const bool is_last = direction == 0 ? run.begin + run.length + run.after == segment.end
                                          : run.begin - run.before == segment.begin;
      if (!is_last) inner.push_back(run);
      if (!is_last || segment_of(run).produces[direction]) led.push_back(run);
    }
    followed[direction] = tables.add(inner);
    leading[direction] = tables.add(led);

    std::vector<gpu::Run> all, chosen[2], first_of_all;
    int64_t first = 0, kept = 0;  // states of the finer cut, checkpoints
    for (gpu::Run run : coarse) {
      const int64_t within = (run.length + state_tokens - 1) / state_tokens;
      run.state = direction == 0 ? first : first + within - 1;
      run.entered = segment_of(run).consumes[direction];
      run.checkpoint = static_cast<int32_t>(kept);
      first += within;
      kept += (run.length + gpu::kFusedCheckpoint - 1) / gpu::kFusedCheckpoint;
      all.push_back(run);
      chosen[segment_of(run).consumes[direction]].push_back(run);
      if (run.starts >= 0) first_of_all.push_back(run);
    }
    if (direction == 1) beginnings = tables.add(first_of_all);
    num_checkpoints = kept;
    runs[direction] = tables.add(all);
    independent[direction] = tables.add(chosen[0]);
    consumers[direction] = tables.add(chosen[1]);
  }
}

ShortRuns::ShortRuns(Tables &tables, const ShortRunTables &cut)
    : windows(cut.windows), runs(tables.add(cut.runs)), segments(tables.add(cut.segments)), most(cut.most) {
  for (const int direction : {0, 1}) entered_at[direction] = tables.add(cut.entered_at[direction]);
}

}  // namespace lasp::cuda
