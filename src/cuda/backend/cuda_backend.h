// What the passes on a GPU ask of their backend beyond the phases of backend.h: on which stream these enqueue.
// Nothing here blocks, allocates or synchronises but the constructor.
#pragma once

#include <memory>
#include <span>

#include "cuda/backend/pending_mark.h"
#include "engine/backend.h"

namespace lasp {

// A map whose transition all ranks can work out.
struct KnownMap {
  const float *state = nullptr;
  KnownTransition transition;
};

class CudaBackend : public Backend {
 public:
  // Where the phases of the pass that follows enqueue. Set before each pass.
  virtual void set_stream(lasp_stream stream) = 0;
  // The mark of the pass's exchange, where the pass leaves any; it outlives this.
  virtual void set_marks(cuda::PendingMark &marks) = 0;
  // Before the first compose() of so many heads, end - begin, where an exchange of the plan composes maps; 0: of
  // all. Waits for `stream`, where it tries. Throws where maps cannot be composed.
  virtual void prepare_to_compose(int64_t /*heads*/, lasp_stream /*stream*/) {}
  // The states of MapComposer::compose, of maps whose transitions nobody has written.
  virtual void compose_known(lasp_stream stream, float *to, std::span<const KnownMap> later, const float *earlier,
                             const float *log_decay, int64_t begin, int64_t end) = 0;
};

// What a backend is made for; problem, partition and ranges outlive it.
struct BackendPlan {
  const Problem &problem;
  const TokenPartition &partition;  // of a packed plan: as if one sequence were the whole buffer
  const TokenRanges &ranges;
  int32_t rank;
  int32_t compute_capability;  // 10*major + minor
  int32_t multiprocessors;
  double copy_bytes_per_us = 0;  // about; 0: not known
};

// Uploads what describes the tokens by `stream`, and ends when it is there; the current device is the context's.
// Throws Error (2xx for what no kernel computes).
std::unique_ptr<CudaBackend> make_cuda_backend(const BackendPlan &plan, lasp_stream stream);
// The same without a device: for its sizes alone.
std::unique_ptr<CudaBackend> make_assumed_backend(const BackendPlan &plan);

}  // namespace lasp
