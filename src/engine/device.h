// What the engine asks of a device other than the CPU: passes that are enqueued on a stream, and a way to compare
// notes with the other ranks. Plain interfaces, so that the engine compiles without CUDA: cuda/ implements them,
// and in a build without CUDA cuda/absent/ says so.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "core/problem.h"
#include "core/token_partition.h"
#include "engine/backend.h"
#include "exchange/agreement.h"
#include "exchange/exchange.h"

namespace lasp {

// What passes need of their plan, which outlives them. An exchange that a pass does not make is null.
struct PassPlan {
  const Problem &problem;
  const Work &work;
  const ExchangePlan *forward_left, *forward_right, *backward_left, *backward_right;
  const std::vector<int64_t> &final_begin;  // as Plan's
};

class DevicePasses {
 public:
  virtual ~DevicePasses() = default;
  virtual const Backend &backend() const = 0;
  // Enqueue on the stream and return. Throw Error.
  virtual void forward(const ForwardBuffers &buffers, bool reuse_state_cache, lasp_stream stream) = 0;
  virtual void backward(const BackwardBuffers &buffers, lasp_stream stream) = 0;
  virtual void step(const StepBuffers &buffers, lasp_stream stream) = 0;
  // Makes the connections that any of the passes uses, all at once: made one by one, as messages come to need them,
  // two ranks could each wait for the other's next step. Collective, once, at plan creation; ends when it has run.
  virtual void connect() = 0;
  // What a first call would do lazily. Collective; ends when it has run.
  virtual void prepare(lasp_stream stream) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  // "CUDA device 0, NVIDIA H100, compute capability 9.0, ..., messages by NCCL 2.28.9".
  virtual const std::string &description() const = 0;
  // Every rank's record of `bytes` bytes (at most kMostRecordBytes) into `all`, in rank order. Collective.
  virtual void gather(const void *own, void *all, size_t bytes) = 0;
  // Throws what went wrong since the last call: a failed kernel, a failed link, a peer that does not come.
  // Never blocks.
  virtual void check() = 0;
  virtual std::unique_ptr<DevicePasses> make_passes(const PassPlan &plan) = 0;
};

// `policy` outlives it. Throws Error: no such device, or a comm whose messages cannot reach its memory.
std::unique_ptr<Device> make_cuda_device(Comm &comm, const lasp_context_options &options, const WaitPolicy &policy);

}  // namespace lasp
