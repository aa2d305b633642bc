// What the passes on a GPU ask of their backend beyond the phases of backend.h: on which stream these enqueue.
// Nothing here blocks, allocates or synchronises but the constructor.
#pragma once

#include <memory>

#include "engine/backend.h"

namespace lasp {

class CudaBackend : public Backend {
 public:
  // Where the phases of the pass that follows enqueue. Set before each pass.
  virtual void set_stream(lasp_stream stream) = 0;
};

// Uploads what describes the tokens by `stream`, and ends when it is there; the current device is the context's.
// `compute_capability` is 10*major + minor. Throws Error (2xx for what no kernel computes).
std::unique_ptr<CudaBackend> make_cuda_backend(const Problem &, const TokenPartition &, int32_t compute_capability,
                                               int32_t multiprocessors, lasp_stream stream);

}  // namespace lasp
