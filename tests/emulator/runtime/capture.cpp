// Capture of streams into graphs, with what CUDA refuses meanwhile.
#include "runtime/capture.h"

#include <algorithm>
#include <set>

#include "runtime/stream.h"

namespace emulator::runtime {
namespace {

std::vector<std::shared_ptr<Capture>> &captures() {
  static auto *const all = new std::vector<std::shared_ptr<Capture>>;
  return *all;
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

bool has_stream(cudaStream_t stream) {
  return stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
}

// Whether the origin comes after all nodes.
bool joined(const Captured &origin) {
  std::set<const CUgraphNode_st *> seen;
  std::vector<CUgraphNode_st *> next = origin.after;
  while (!next.empty()) {
    CUgraphNode_st *const node = next.back();
    next.pop_back();
    if (seen.insert(node).second) next.insert(next.end(), node->after.begin(), node->after.end());
  }
  return seen.size() == origin.capture->nodes.size();
}

// Relaxed calls spoil nothing; else those of this thread, and of mode global those of all threads.
bool forbids(const Capture &capture) {
  if (thread_mode == cudaStreamCaptureModeRelaxed || capture.mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return capture.mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
}

}  // namespace

std::mutex &capture_mutex() {
  static auto *const mutex = new std::mutex;
  return *mutex;
}

bool in_capture(cudaStream_t stream) {
  if (!has_stream(stream) || !stream->captured.capture) return false;
  if (stream->captured.capture->ended) stream->captured = {};
  return stream->captured.capture != nullptr;
}

cudaError_t add_node(Captured &where, std::shared_ptr<CUgraphNode_st> node) {
  if (where.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  node->after = where.after;
  where.after = {node.get()};
  where.capture->nodes.push_back(std::move(node));
  return cudaSuccess;
}

cudaError_t refuse_captured(cudaStream_t stream) {
  const std::lock_guard lock(capture_mutex());
  if (!in_capture(stream)) return cudaSuccess;
  stream->captured.capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_unsafe() {
  const std::lock_guard lock(capture_mutex());
  for (const auto &capture : captures()) {
    if (!forbids(*capture)) continue;
    capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

}  // namespace emulator::runtime

using namespace emulator::runtime;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  std::swap(*mode, thread_mode);
  return note(broken());
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  return call([&] {
    const std::lock_guard lock(capture_mutex());
    *status = !in_capture(stream)                 ? cudaStreamCaptureStatusNone
              : stream->captured.capture->invalid ? cudaStreamCaptureStatusInvalidated
                                                  : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&] {
    const std::lock_guard lock(capture_mutex());
    if (!has_stream(stream)) return cudaErrorStreamCaptureUnsupported;
    if (in_capture(stream)) return cudaErrorIllegalState;
    stream->captured = {std::make_shared<Capture>(), {}};
    Capture &capture = *stream->captured.capture;
    capture.mode = mode, capture.thread = std::this_thread::get_id(), capture.origin = stream;
    captures().push_back(stream->captured.capture);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  return call([&] {
    *graph = nullptr;
    const std::lock_guard lock(capture_mutex());
    if (!in_capture(stream)) return cudaErrorIllegalState;
    const Captured origin = stream->captured;
    Capture &capture = *origin.capture;
    if (capture.origin != stream) return capture.invalid = true, cudaErrorStreamCaptureUnmatched;
    if (capture.mode != cudaStreamCaptureModeRelaxed && capture.thread != std::this_thread::get_id())
      return cudaErrorStreamCaptureWrongThread;
    capture.ended = true;
    stream->captured = {};
    captures().erase(std::find(captures().begin(), captures().end(), origin.capture));
    if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
    if (!joined(origin)) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{capture.nodes};
    return cudaSuccess;
  });
}
