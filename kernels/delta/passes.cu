// The three launches of the fast delta kernels: what they refuse, the workspace they need, and their order.
#include "passes.h"

#include "forward.h"
#include "gradients.h"
#include "layout.cuh"
#include "reversed.h"

namespace lasp::gpu::delta_hopper {
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
int64_t most_slots(const PassInputs &p) { return p.batch * p.tokens / kChunk + p.num_runs; }
int64_t all_slots(const PassInputs &p) { return floats(slots_bytes(p.num_runs, most_slots(p), p.heads)); }

}  // namespace

const char *forward_refusal(const DeltaForward &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  return aligned(p.o) ? nullptr : "needs rows that begin on 16 bytes";
}
int64_t forward_workspace(const DeltaForward &p) { return all_slots(p); }
int run_forward(const DeltaForward &p, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  const Slots slots = place_slots(p.num_runs, most_slots(p), p.workspace);
  if (const int error = launch_prepare(p, slots, stream)) return error;
  return launch_forward(p, slots, stream);
}

const char *reversed_refusal(const DeltaReversed &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  return aligned(p.d_o) ? nullptr : "needs rows that begin on 16 bytes";
}
int64_t reversed_workspace(const DeltaReversed &p) { return all_slots(p); }
int run_reversed(const DeltaReversed &p, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  const Slots slots = place_slots(p.num_runs, most_slots(p), p.workspace);
  if (const int error = launch_prepare(p, slots, stream)) return error;
  return launch_reversed(p, slots, stream);
}

const char *gradients_refusal(const DeltaGradients &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  for (const Tensor *t : {&p.d_q, &p.d_k, &p.d_v}) {
    if (!aligned(*t)) return "needs rows that begin on 16 bytes";
    if (t->heads != p.heads) return "adds no groups of heads up";
  }
  return aligned(p.d_o) ? nullptr : "needs rows that begin on 16 bytes";
}

namespace {

// Stretches are worked on in windows, so that what they keep in between stays small: of enough (stretch, head) to
// keep the largest Hopper GPU's 132 multiprocessors busy four times over.
constexpr int64_t kWindow = 4 * 132;
int64_t window_runs(const DeltaGradients &p) {
  return std::min(p.num_runs, std::max<int64_t>(1, kWindow / p.heads));
}
int64_t partial_bytes(const DeltaGradients &p) {
  return p.decay == Decay::kHead ? round_up(4 * p.num_runs * p.heads, 256) : 0;
}
int64_t window_slots_bytes(const DeltaGradients &p) {
  const int64_t runs = window_runs(p);
  return round_up(slots_bytes(runs, runs * Stretches::kChunks, p.heads), 256);
}

}  // namespace

int64_t gradients_workspace(const DeltaGradients &p) {
  return floats(partial_bytes(p) + window_slots_bytes(p) + window_runs(p) * p.heads * Stretches::kBytes);
}
int run_gradients(const DeltaGradients &p, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  char *const memory = reinterpret_cast<char *>(p.workspace);
  float *const partial = p.workspace;
  const int64_t window = window_runs(p);
  const Slots slots = place_slots(window, window * Stretches::kChunks, memory + partial_bytes(p));
  Stretches kept;
  kept.checkpoints = p.checkpoints;
  kept.data = memory + partial_bytes(p) + window_slots_bytes(p);
  for (int64_t first = 0; first < p.num_runs; first += window) {
    DeltaGradients part = p;
    part.runs = p.runs + first, part.num_runs = std::min(window, p.num_runs - first);
    DeltaForward states;
    static_cast<DeltaInputs &>(states) = part;
    states.filter = p.filter;
    for (const int error : {launch_prepare(part, slots, stream), launch_stretches(states, slots, kept, stream),
                            launch_gradients(part, slots, kept, partial + first * p.heads, stream)})
      if (error) return error;
  }
  return p.decay == Decay::kHead && p.d_g && p.last ? launch_sum_partial(p, partial, stream) : cudaSuccess;
}

int load_kernels_of_delta() {
  for (const auto load : {load_prepare, load_forward, load_reversed, load_gradients})
    if (const int error = load()) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu::delta_hopper
