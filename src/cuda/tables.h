// The work of a rank as kernels read it: runs and segments in device memory, made once with the plan.
#pragma once

#include <cstdint>
#include <vector>

#include "../device_runs.h"
#include "../problem.h"
#include "cuda_call.h"

namespace lasp::cuda {

// An array copied to the current device once. Freed on the device it was made on.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(const std::vector<T> &values) : size_(static_cast<int64_t>(values.size())) {
    if (values.empty()) return;
    const size_t bytes = values.size() * sizeof(T);
    void *memory = nullptr;
    check(cudaGetDevice(&device_), "asking for the current device");
    check(cudaMalloc(&memory, bytes), "allocating a plan's tables");
    data_ = static_cast<T *>(memory);
    if (const cudaError_t error = cudaMemcpy(data_, values.data(), bytes, cudaMemcpyHostToDevice)) {
      cudaFree(data_);
      check(error, "copying a plan's tables");
    }
  }
  ~DeviceArray() { reset(); }
  DeviceArray(DeviceArray &&other) noexcept { *this = static_cast<DeviceArray &&>(other); }
  DeviceArray &operator=(DeviceArray &&other) noexcept {
    if (this == &other) return *this;
    reset();
    data_ = other.data_, size_ = other.size_, device_ = other.device_;
    other.data_ = nullptr, other.size_ = 0;
    return *this;
  }

  const T *data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  void reset() noexcept {
    if (data_ == nullptr) return;
    int previous = -1;
    cudaGetDevice(&previous);
    cudaSetDevice(device_);
    cudaFree(data_);
    if (previous >= 0) cudaSetDevice(previous);
    data_ = nullptr;
  }

  T *data_ = nullptr;
  int64_t size_ = 0;
  int device_ = 0;
};

// A cut of the rank's segments into runs of at most `run_tokens` tokens, and a finer one, of `state_tokens`, for
// finding the states between runs: more blocks share that work. Where a segment has several runs, `run_tokens` is a
// multiple of `state_tokens`. States are indexed by the finer cut everywhere; of what a scan leaves at them, only
// what enters a run of the coarser cut is a state. In arrays of two, [0] is forward and [1] reversed.
struct Partition {
  Partition(const Work &work, int64_t run_tokens, int64_t state_tokens);

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
  explicit ShortRuns(const ShortRunTables &cut);

  using Window = ShortRunTables::Window;
  std::vector<Window> windows;
  DeviceArray<gpu::Run> runs;
  DeviceArray<gpu::Segment> segments;
  DeviceArray<int64_t> entered_at[2];
  int64_t most = 0;  // runs of the largest window
};

}  // namespace lasp::cuda
