#include "cuda/backend/tables.h"

#include <algorithm>

#include "cuda/backend/packed_tables.h"

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
  for (const auto &place : places_) place->data = block_->data() + place->offset;
  check(cudaMemcpyAsync(block_->data(), host_.data(), host_.size(), cudaMemcpyHostToDevice, stream),
        "copying a plan's tables");
  check(cudaStreamSynchronize(stream), "copying a plan's tables");
}

Partition::Partition(Tables &tables, const TokenPartition &partition, int64_t run_tokens, int64_t state_tokens)
    : longest_state_run(state_tokens) {
  const CutTables cut = cut_runs(partition, run_tokens, state_tokens);
  num_states = usual_states = static_cast<int64_t>(cut.state_runs.size());
  num_runs = usual_runs = static_cast<int64_t>(cut.runs[0].size());
  num_checkpoints = cut.num_checkpoints;
  single_runs = always_single = cut.runs[0].size() == cut.segments.size();
  segments = tables.add(cut.segments);
  state_runs = tables.add(cut.state_runs);
  for (const int direction : {0, 1}) {
    followed[direction] = tables.add(cut.followed[direction]);
    leading[direction] = tables.add(cut.leading[direction]);
    runs[direction] = tables.add(cut.runs[direction]);
    independent[direction] = tables.add(cut.independent[direction]);
    consumers[direction] = tables.add(cut.consumers[direction]);
  }
  beginnings = tables.add(cut.beginnings);
}

// `whole` is one sequence over the whole buffer.
Partition::Partition(PackedTables &tables, const TokenPartition &whole, int64_t run_tokens, int64_t state_tokens)
    : usual_states(static_cast<int64_t>(make_runs(whole, state_tokens, run_tokens).size())),
      usual_runs(static_cast<int64_t>(make_runs(whole, run_tokens, run_tokens).size())),
      longest_state_run(state_tokens) {
  tables.add(*this, {run_tokens, state_tokens});
}

ShortRuns::ShortRuns(Tables &tables, const ShortRunTables &cut)
    : all_windows(cut.windows), runs(tables.add(cut.runs)), segments(tables.add(cut.segments)), most(cut.most) {
  for (const int direction : {0, 1}) entered_at[direction] = tables.add(cut.entered_at[direction]);
}

ShortRuns::ShortRuns(PackedTables &tables, const Partition &cut, int64_t tokens_, int64_t parts_, int64_t runs_)
    : tokens(tokens_), parts(parts_), runs_in_window(runs_), wholes(cut.runs[0]), most(parts_ * runs_) {
  for (int64_t first = 0; first < std::max<int64_t>(cut.num_runs, 1); first += runs_) {
    const int64_t count = std::min(runs_, cut.num_runs - first);
    all_windows.push_back({first * parts_, count * parts_, first, count});
  }
  tables.add(*this, cut);
}

std::span<const ShortRuns::Window> ShortRuns::windows() const {
  if (runs_in_window == 0) return all_windows;
  const int64_t count = std::max<int64_t>(1, (wholes.size() + runs_in_window - 1) / runs_in_window);
  return std::span(all_windows).first(static_cast<size_t>(count));
}

}  // namespace lasp::cuda
