// Streams: work in order on a thread of the stream's own, as the host goes on. Moments of a stream are what events
// wait for.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/capture.h"

namespace emulator::runtime {

// Reached when the work of the stream before it is done.
class Moment {
 public:
  using Clock = std::chrono::steady_clock;
  bool reached() const;
  void reach();
  void wait() const;
  Clock::time_point time() const;

 private:
  bool reached_ = false;
  Clock::time_point time_;
};

// The thread is started by the first work, and ends with the work once the queue is left.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  explicit Queue(int device) : device_(device) {}
  int device() const { return device_; }
  void push(std::function<void()> work);
  bool idle();
  void wait();   // for what has been pushed by now
  void leave();  // nothing more will come

 private:
  void serve();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  uint64_t pushed_ = 0, done_ = 0;
  bool started_ = false, left_ = false;
};

// The stream's, or that of the current device for null and cudaStreamLegacy.
Queue &queue_of(cudaStream_t stream);
// All that were made for the device and are still there.
void wait_for_device(int device);

// One piece of work, for now or for the graph of a capture. `run` may throw Fault. Null as a kernel: none.
cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, std::function<void()> run,
                    const Kernel *kernel = nullptr);
// Does it unless something is broken; a Fault breaks all.
void run_guarded(const std::function<void()> &work);

}  // namespace emulator::runtime

struct CUstream_st {
  std::shared_ptr<emulator::runtime::Queue> queue;
  emulator::runtime::Captured captured;
};

struct CUevent_st {
  bool timed = true;
  std::shared_ptr<emulator::runtime::Moment> moment;  // null: never recorded
  emulator::runtime::Captured captured;               // of the last record
};
