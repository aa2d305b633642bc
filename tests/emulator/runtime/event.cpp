// Events of the stand-in CUDA runtime.
#include "runtime/stream.h"

using namespace emulator::runtime;

namespace {

cudaError_t make(cudaEvent_t *event, bool timed) {
  *event = new CUevent_st;
  (*event)->timed = timed;
  return cudaSuccess;
}

std::shared_ptr<Moment> moment_of(cudaEvent_t event) {
  const std::lock_guard lock(capture_mutex());
  return event->moment;
}

// What is recorded in a capture has no moment.
cudaError_t refuse_captured_event(cudaEvent_t event) {
  const std::lock_guard lock(capture_mutex());
  Capture *const capture = event->captured.capture.get();
  if (capture == nullptr) return cudaSuccess;
  capture->invalid = true;
  return cudaErrorCapturedEvent;
}

cudaError_t add(std::vector<CUgraphNode_st *> &to, const std::vector<CUgraphNode_st *> &after) {
  to.insert(to.end(), after.begin(), after.end());
  return cudaSuccess;
}

// A stream that waits for an event of a capture joins the capture. With the mutex held.
cudaError_t join(cudaStream_t stream, const Captured &captured) {
  if (captured.capture->ended) return cudaErrorCapturedEvent;
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
    return captured.capture->invalid = true, cudaErrorStreamCaptureImplicit;
  if (!in_capture(stream)) stream->captured = {captured.capture, {}};
  if (stream->captured.capture != captured.capture) {
    stream->captured.capture->invalid = captured.capture->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  return add(stream->captured.after, captured.after);
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  return call([&] { return make(event, (flags & cudaEventDisableTiming) == 0); });
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return call([&] { return make(event, true); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return note(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(capture_mutex());
  delete event;
  return note(broken());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&] {
    const std::lock_guard lock(capture_mutex());
    event->moment.reset();
    event->captured = {};
    if (in_capture(stream)) return event->captured = stream->captured, cudaSuccess;
    event->moment = std::make_shared<Moment>();
    queue_of(stream).push([moment = event->moment] { moment->reach(); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call([&] {
    const std::lock_guard lock(capture_mutex());
    if (event->captured.capture) return join(stream, event->captured);
    if (in_capture(stream) && event->moment) {
      stream->captured.capture->invalid = true;
      return cudaErrorStreamCaptureIsolation;
    }
    if (event->moment) queue_of(stream).push([moment = event->moment] { moment->wait(); });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&] {
    if (const cudaError_t error = refuse_captured_event(event)) return error;
    const auto moment = moment_of(event);
    return !moment || moment->reached() ? broken() : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&] {
    if (const cudaError_t error = refuse_captured_event(event)) return error;
    if (const auto moment = moment_of(event)) moment->wait();
    return broken();
  });
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return call([&] {
    const auto begin = moment_of(from), end = moment_of(to);
    if (!begin || !end || !from->timed || !to->timed) return cudaErrorInvalidResourceHandle;
    if (!begin->reached() || !end->reached()) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->time() - begin->time()).count();
    return cudaSuccess;
  });
}
