// The three launches of the fast delta kernels: what they refuse, the workspace they need, and their order.
#include "passes.h"

#include "forward.h"
#include "layout.cuh"
#include "reversed.h"

namespace lasp::gpu::delta {
namespace {

// Rows of 16-byte pieces.
bool aligned(const Tensor &t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.strides.batch % 8 == 0 && t.strides.token % 8 == 0 &&
         t.strides.head % 8 == 0;
}
const char *inputs_refusal(const DeltaInputs &p) {
  if (p.dtype == DType::kFloat32) return "needs 16-bit tensors";
  if (p.decay == Decay::kChannel) return "has no decay per channel";
  if (p.k.dim != kDim || p.v.dim != kDim) return "needs head dimensions of 128";
  if (p.heads > 65535) return "needs at most 65535 heads";
  for (const Tensor *t : {&p.q, &p.k, &p.v})
    if (!aligned(*t)) return "needs rows that begin on 16 bytes";
  return nullptr;
}
int64_t floats(int64_t bytes) { return round_up(bytes, 256) / 4; }

}  // namespace

const char *forward_refusal(const DeltaForward &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  return aligned(p.o) ? nullptr : "needs rows that begin on 16 bytes";
}
int64_t forward_workspace(const DeltaForward &p) { return floats(slots_bytes(p)); }
int run_forward(const DeltaForward &p, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  const Slots slots = place_slots(p, p.workspace);
  if (const int error = launch_prepare(p, slots, stream)) return error;
  return launch_forward(p, slots, stream);
}

const char *reversed_refusal(const DeltaReversed &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  return aligned(p.d_o) ? nullptr : "needs rows that begin on 16 bytes";
}
int64_t reversed_workspace(const DeltaReversed &p) { return floats(slots_bytes(p)); }
int run_reversed(const DeltaReversed &p, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  const Slots slots = place_slots(p, p.workspace);
  if (const int error = launch_prepare(p, slots, stream)) return error;
  return launch_reversed(p, slots, stream);
}

int load_kernels_of_delta() {
  for (const auto load : {load_prepare, load_forward, load_reversed})
    if (const int error = load()) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta
