// Graphs, and how they come out of captured streams.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/runtime.h"

struct CUgraphNode_st {
  cudaGraphNodeType type;
  std::function<void()> run;
  const emulator::runtime::Kernel *kernel;
  std::vector<CUgraphNode_st *> after;
};

namespace emulator::runtime {

// In the order of capture, which is one that their dependencies allow.
using Nodes = std::vector<std::shared_ptr<CUgraphNode_st>>;

struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  cudaStream_t origin;
  Nodes nodes;
  bool invalid = false, ended = false;
};

// Where a stream or a recorded event is in a capture: after these nodes.
struct Captured {
  std::shared_ptr<Capture> capture;
  std::vector<CUgraphNode_st *> after;
};

// Guards the captures of all streams and events.
std::mutex &capture_mutex();
// Whether the stream is in a capture; one that has ended does not count. With the mutex held.
bool in_capture(cudaStream_t stream);
// Adds a node to the stream's capture. With the mutex held.
cudaError_t add_node(Captured &where, std::shared_ptr<CUgraphNode_st> node);
// Refuses what a capture does not allow on its stream, and spoils the capture.
cudaError_t refuse_captured(cudaStream_t stream);
// The same for calls that no capture of this thread (or, of mode global, of any) allows.
cudaError_t refuse_unsafe();

}  // namespace emulator::runtime

struct CUgraph_st {
  emulator::runtime::Nodes nodes;
};
struct CUgraphExec_st {
  emulator::runtime::Nodes nodes;
};
