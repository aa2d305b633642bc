// What the engine asks of a GPU beyond the phases of backend.h: the small operations on states that the exchange
// and the passes need, all enqueued on a stream. Nothing here blocks, allocates or synchronises but the
// constructor.
#pragma once

#include <memory>

#include "engine/backend.h"

namespace lasp {

class CudaBackend : public Backend {
 public:
  // Where the phases of the pass that follows enqueue. Set before each pass.
  virtual void set_stream(lasp_stream stream) = 0;

  // to[n] = from[n], or zero where `from` is null, for the empty sequences this rank owns; states [N, H, K, V].
  virtual void copy_empty_sequences(lasp_stream stream, float *to, const float *from) = 0;
};

// Uploads what describes the work by `stream`, and ends when it is there; the current device is the context's.
// `compute_capability` is 10*major + minor. Throws Error (2xx for what no kernel computes).
std::unique_ptr<CudaBackend> make_cuda_backend(const Problem &, const Work &, int32_t compute_capability,
                                               int32_t multiprocessors, lasp_stream stream);

}  // namespace lasp
