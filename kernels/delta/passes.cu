// The three launches of the fast delta kernels: what they refuse, the workspace they need, and their order.
#include "passes.h"

#include <cmath>

#include "forward.h"
#include "gradients.h"
#include "layout.cuh"
#include "reversed.h"

namespace lasp::gpu::delta_hopper {
namespace {

// Rows all begin as the tensor does, counted in pieces of 16 bytes; where that is not on one, copies are slow.
bool even(const Tensor &t) {
  return t.strides.batch % 8 == 0 && t.strides.token % 8 == 0 && t.strides.head % 8 == 0;
}
constexpr const char *kStrides = "needs strides that are multiples of 8";
const char *inputs_refusal(const DeltaInputs &p) {
  if (p.dtype == DType::kFloat32) return "needs 16-bit tensors";
  if (p.decay == Decay::kChannel) return "has no decay per channel";
  if (p.k.dim != kDim || p.v.dim != kDim) return "needs head dimensions of 128";
  if (p.heads > 65535) return "needs at most 65535 heads";
  for (const Tensor *t : {&p.q, &p.k, &p.v})
    if (!even(*t)) return kStrides;
  return nullptr;
}
// Walks back hold the gradient of the state over `scale`.
bool divides(float scale) { return std::isnormal(scale) && std::isnormal(1 / scale); }
constexpr const char *kScale = "divides by the scale";

int64_t floats(int64_t bytes) { return round_up(bytes, 256) / 4; }
int64_t most_slots(int64_t tokens, int64_t num_runs) { return tokens / kChunk + num_runs; }

// Few runs do not fill the GPU and are long: they are walked in windows, and while one is walked the next is
// prepared. More runs have all their slots at once.
struct Windows {
  int64_t count = 1;
  int32_t chunks = 0;  // 0: no windows
};
constexpr int64_t kMultiprocessors = 132, kSlices = kDim / kSlice;
Windows windows_of(const PassInputs &p, int64_t num_runs) {
  constexpr int64_t kMost = 8, kLeast = int64_t{1} << 40;   // none, until a graph of windows is known to end
  const int64_t chunks = (p.tokens + kChunk - 1) / kChunk;  // of a run, at most
  Windows w;
  if (num_runs * p.heads * kSlices > kMultiprocessors || chunks < 2 * kLeast) return w;
  w.chunks = int32_t(round_up(std::max(kLeast, (chunks + kMost - 1) / kMost), 4));
  w.count = (chunks + w.chunks - 1) / w.chunks;
  return w;
}

int64_t window_bytes(const PassInputs &p, const Windows &w, int64_t num_runs) {
  return num_runs * w.chunks * p.heads * kSlotBytes;
}
// Of num_runs runs, with the state between windows, and M's, too.
int64_t walk_bytes(const PassInputs &p, int64_t num_runs) {
  const Windows w = windows_of(p, num_runs);
  if (w.chunks == 0) return slots_bytes(num_runs, most_slots(p.batch * p.tokens, num_runs), p.heads);
  return 2 * window_bytes(p, w, num_runs) + 2 * num_runs * p.heads * kDim * kDim * 4;
}
// Of as many or fewer: fewer may go by windows where all do not.
int64_t walk_workspace(const PassInputs &p) {
  const int64_t few = std::min(p.num_runs, kMultiprocessors / (p.heads * kSlices));
  return floats(std::max(walk_bytes(p, p.num_runs), few > 0 ? walk_bytes(p, few) : 0));
}
// Prepares and walks, by `walk`.
template <class Pass, class Walk>
int run_walk(const Pass &p, bool reversed, Walk walk, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  const Windows w = windows_of(p, p.num_runs);
  const int64_t window = window_bytes(p, w, p.num_runs);
  for (int64_t n = 0; n < w.count; ++n) {
    Slots slots;
    if (w.chunks == 0) {
      slots = place_slots(p.num_runs, most_slots(p.batch * p.tokens, p.num_runs), p.workspace);
    } else {
      char *const memory = reinterpret_cast<char *>(p.workspace);
      slots.most = p.num_runs * w.chunks;
      slots.window = int32_t(reversed ? w.count - 1 - n : n), slots.chunks = w.chunks;
      slots.data = memory + n % 2 * window;
      slots.carried = reinterpret_cast<float *>(memory + 2 * window);
    }
    slots.filter = p.filter;
    if (const int error = launch_prepare(p, slots, n > 0, stream)) return error;
    if (const int error = walk(p, slots, stream)) return error;
  }
  return cudaSuccess;
}

}  // namespace

const char *forward_refusal(const DeltaForward &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  return even(p.o) ? nullptr : kStrides;
}
int64_t forward_workspace(const DeltaForward &p) { return walk_workspace(p); }
int run_forward(const DeltaForward &p, Stream stream) { return run_walk(p, false, launch_forward, stream); }

const char *reversed_refusal(const DeltaReversed &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  if (!divides(p.scale)) return kScale;
  return even(p.d_o) ? nullptr : kStrides;
}
int64_t reversed_workspace(const DeltaReversed &p) { return walk_workspace(p); }
int run_reversed(const DeltaReversed &p, Stream stream) { return run_walk(p, true, launch_reversed, stream); }

const char *gradients_refusal(const DeltaGradients &p) {
  if (const char *const why = inputs_refusal(p)) return why;
  if (!divides(p.scale)) return kScale;
  for (const Tensor *t : {&p.d_q, &p.d_k, &p.d_v}) {
    if (!even(*t)) return kStrides;
    if (t->heads != p.heads) return "adds no groups of heads up";
  }
  return even(p.d_o) ? nullptr : kStrides;
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
  char *const memory = reinterpret_cast<char *>(p.workspace);
  float *const partial = p.workspace;
  const int64_t window = window_runs(p);
  Slots slots = place_slots(window, window * Stretches::kChunks, memory + partial_bytes(p));
  slots.filter = p.filter;
  Stretches kept;
  kept.checkpoints = p.checkpoints;
  kept.data = memory + partial_bytes(p) + window_slots_bytes(p);
  for (int64_t first = 0; first < p.num_runs; first += window) {
    DeltaGradients part = p;
    part.runs = p.runs + first, part.num_runs = std::min(window, p.num_runs - first);
    DeltaForward states;
    static_cast<DeltaInputs &>(states) = part;
    states.filter = p.filter;
    for (const int error :
         {launch_prepare(part, slots, false, stream), launch_stretches(states, slots, kept, stream),
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
