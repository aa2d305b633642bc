// A rank's tokens as kernels read them: runs and segments in device memory, made once with the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/problem.h"
#include "cuda/choice/plan_inputs.h"
#include "cuda/cut/runs.h"
#include "cuda/device/cuda_call.h"

namespace lasp::cuda {

// Device memory, freed on the device that it was allocated on.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  ~DeviceBlock();
  DeviceBlock(const DeviceBlock &) = delete;
  DeviceBlock &operator=(const DeviceBlock &) = delete;

  void allocate(size_t bytes);  // once, on the current device
  std::byte *data() const { return data_; }

 private:
  std::byte *data_ = nullptr;
  int device_ = 0;
};

// One of a plan's tables in device memory: there from Tables::upload() on.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  const T *data() const {  // null where there is nothing, or not yet
    const bool there = size_ > 0 && block_->data() != nullptr;
    return there ? reinterpret_cast<const T *>(block_->data() + offset_) : nullptr;
  }
  int64_t size() const { return size_; }
  // As launches take runs.
  RunSpan span() const requires std::is_same_v<T, gpu::Run> { return {data(), size()}; }

 private:
  friend class Tables;
  DeviceArray(std::shared_ptr<const DeviceBlock> block, size_t offset, size_t size)
      : block_(std::move(block)), offset_(offset), size_(static_cast<int64_t>(size)) {}

  std::shared_ptr<const DeviceBlock> block_;
  size_t offset_ = 0;
  int64_t size_ = 0;
};

// A plan's tables on their way to the device: added one by one, then all of them by one allocation and one copy.
class Tables {
 public:
  template <class T>
  DeviceArray<T> add(const std::vector<T> &values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t offset = (host_.size() + kAlignment - 1) / kAlignment * kAlignment;
    host_.resize(offset + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(host_.data() + offset, values.data(), values.size() * sizeof(T));
    return DeviceArray<T>(block_, offset, values.size());
  }
  // Ends when the tables are on the device, so that passes on any stream find them there. `stream` carries nothing
  // else that takes time.
  void upload(cudaStream_t stream);

 private:
  static constexpr size_t kAlignment = 256;
  std::vector<std::byte> host_;
  std::shared_ptr<DeviceBlock> block_ = std::make_shared<DeviceBlock>();
};

// A cut of the rank's segments into runs of at most `run_tokens` tokens, and a finer one, of `state_tokens`, for
// finding the states between runs: more blocks share that work. Where a segment has several runs, `run_tokens` is a
// multiple of `state_tokens`. States are indexed by the finer cut everywhere; of what a scan leaves at them, only
// what enters a run of the coarser cut is a state. In arrays of two, [0] is forward and [1] reversed.
struct Partition {
  Partition(Tables &tables, const TokenPartition &partition, int64_t run_tokens, int64_t state_tokens);

  int64_t num_states() const { return state_runs.size(); }
  int64_t num_checkpoints = 0;  // of all runs of passes

  DeviceArray<gpu::Segment> segments;  // by the finer cut
  DeviceArray<gpu::Run> state_runs;    // the finer cut
  DeviceArray<gpu::Run>
      followed[2];  // of it, those of runs after which, in scan order, another of their segment comes
  DeviceArray<gpu::Run> leading[2];  // the same, and all of segments whose end state leaves the rank
  bool single_runs = false;          // no segment has two runs
  int64_t longest_state_run = 0;     // tokens; no run of `state_runs` has more
  // The runs of passes: all, those of such segments, and the others. Run::state is the state that enters the run.
  DeviceArray<gpu::Run> runs[2], consumers[2], independent[2];
  DeviceArray<gpu::Run> beginnings;  // of runs[1], those with a sequence's first token
};

// ShortRunTables of a Partition in device memory.
struct ShortRuns {
  ShortRuns(Tables &tables, const ShortRunTables &cut);

  using Window = ShortRunTables::Window;
  std::vector<Window> windows;
  DeviceArray<gpu::Run> runs;
  DeviceArray<gpu::Segment> segments;
  DeviceArray<int64_t> entered_at[2];
  int64_t most = 0;  // runs of the largest window
};

}  // namespace lasp::cuda
