// The launches of the delta rule by mma.sync: what they refuse, the workspace they need, and their order.
#include "delta_passes.h"

#include <algorithm>
#include <cmath>

#include "delta_kept.h"
#include "delta_walks.h"

namespace lasp::gpu::mma_delta {
namespace {

using delta_hopper::kChunk, delta_hopper::Slots;

bool even(const Tensor &t) {
  return t.strides.batch % 8 == 0 && t.strides.token % 8 == 0 && t.strides.head % 8 == 0;
}
constexpr const char *kStrides = "needs strides that are multiples of 8";
// Walks back hold the gradient of the state over `scale`.
bool divides(float scale) { return std::isnormal(scale) && std::isnormal(1 / scale); }
constexpr const char *kScale = "divides by the scale";
const char *inputs_refusal(const DeltaInputs &p, const Tensor &of_outputs) {
  if (p.dtype == DType::kFloat32) return "needs 16-bit tensors";
  if (p.decay == Decay::kChannel) return "needs a decay that is not per channel";
  const auto fits = [](int32_t dim, int32_t most) { return dim % 16 == 0 && dim <= most; };
  if (!fits(p.k.dim, 256)) return "needs K to be a multiple of 16 up to 256";
  if (!fits(p.v.dim, 512)) return "needs V to be a multiple of 16 up to 512";
  if (p.heads > 65535) return "needs at most 65535 heads";
  for (const Tensor *t : {&p.q, &p.k, &p.v, &of_outputs})
    if (!even(*t)) return kStrides;
  return nullptr;
}
int64_t most_slots(const DeltaInputs &p) { return p.batch * p.tokens / kChunk + p.num_runs; }
int64_t walk_workspace(const DeltaInputs &p) {
  const int64_t bytes = delta_hopper::slots_bytes(p.num_runs, most_slots(p), p.heads, delta_hopper::kSlotBytes);
  return delta_hopper::round_up(bytes, 256) / 4;
}

// As many chunks in shared memory as there is room for; whether all blocks find a multiprocessor each. Those that
// share one hide copies themselves.
struct Room {
  int stages = 0;
  bool at_once = false;
};
template <class Pass>
int find_room(const WalkKernel<Pass> &kernel, int64_t blocks, Room *room) {
  cudaFuncAttributes attributes;
  int device = 0, most = 0, multiprocessors = 0;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel.function)) return error;
  if (const int error = most_dynamic_shared(attributes, &most)) return error;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device))
    return error;
  room->at_once = blocks <= multiprocessors;
  room->stages = std::min((most - kernel.besides) / kernel.bytes, room->at_once ? kMostStages : 1);
  return cudaSuccess;
}

// Prepares chunks, then walks all columns of V of each run and head, and where `maps` those of M. kernel_of(split):
// see delta_walks.h. Blocks are split where each of twice as many still finds a multiprocessor at once.
template <class Pass, class KernelOf>
int walk(const Pass &p, bool maps, KernelOf kernel_of, Stream stream) {
  if (p.num_runs == 0) return cudaSuccess;
  Slots slots = delta_hopper::place_slots(p.num_runs, most_slots(p), delta_hopper::kSlotBytes, p.workspace);
  slots.filter = p.filter;
  if (const int error = delta_hopper::launch_number_slots(p, slots, false, stream)) return error;
  if (const int error = delta_hopper::launch_prepare(p, slots, stream)) return error;
  for (const bool split : {true, false}) {
    const WalkKernel<Pass> kernel = kernel_of(split);
    const int64_t slices = ceil_div(p.v.dim, kernel.columns) + (maps ? ceil_div(p.k.dim, kernel.columns) : 0);
    const int64_t blocks = p.num_runs * p.heads * slices;
    Room room;
    if (const int error = find_room(kernel, blocks, &room)) return error;
    if (room.stages == 0 || (split && !room.at_once)) continue;
    return launch_blocks(kernel.function, blocks, kernel.threads,
                         size_t(room.stages) * kernel.bytes + kernel.besides, stream, p, slots, room.stages);
  }
  return cudaErrorInvalidConfiguration;
}

}  // namespace

const char *forward_refusal(const DeltaForward &p) { return inputs_refusal(p, p.o); }
int64_t forward_workspace(const DeltaForward &p) { return walk_workspace(p); }
int run_forward(const DeltaForward &p, Stream stream) {
  const auto kernel_of = [&](bool split) {
    return forward_kernel(p.dtype, p.decay != Decay::kNone, p.k.dim, split);
  };
  return walk(p, p.transition != nullptr, kernel_of, stream);
}

const char *reversed_refusal(const DeltaReversed &p) {
  if (const char *const why = inputs_refusal(p, p.d_o)) return why;
  return divides(p.scale) ? nullptr : kScale;
}
int64_t reversed_workspace(const DeltaReversed &p) { return walk_workspace(p); }
int run_reversed(const DeltaReversed &p, Stream stream) {
  const auto kernel_of = [&](bool split) {
    return reversed_kernel(p.dtype, p.decay != Decay::kNone, p.k.dim, split);
  };
  return walk(p, false, kernel_of, stream);
}

const char *gradients_refusal(const DeltaGradients &p) {
  if (const char *const why = inputs_refusal(p, p.d_o)) return why;
  if (!p.own_checkpoints) return "needs walks that are not by the general kernels";
  for (const Tensor *t : {&p.d_q, &p.d_k, &p.d_v}) {
    if (!even(*t)) return kStrides;
    if (t->heads != p.heads) return "adds up no heads";
  }
  return nullptr;
}
namespace {

// The shares of tokens in the gradient of a decay per head.
int64_t share_floats(const DeltaGradients &p) {
  return p.decay == Decay::kHead ? delta_hopper::round_up(p.batch * p.heads * p.tokens, 64) : 0;
}

}  // namespace

int64_t gradients_workspace(const DeltaGradients &p) { return share_floats(p); }
int run_gradients(const DeltaGradients &p, Stream stream) {
  float *const shares = p.workspace;
  if (p.decay == Decay::kHead && p.first)  // tokens of no run count nothing
    if (const cudaError_t error = cudaMemsetAsync(shares, 0, size_t(share_floats(p)) * sizeof(float), stream))
      return error;
  return launch_stretch_gradients(p, shares, stream);
}
int64_t checkpoint_bytes(const DeltaInputs &p, bool back) { return p.heads * kept_bytes(p, back); }

int64_t walk_shared_bytes(int32_t dim_k) { return forward_kernel(DType::kBFloat16, false, dim_k, false).bytes; }

int load_kernels_of_delta() {
  for (const auto load : {delta_hopper::load_prepare, load_stretch_gradients})
    if (const int error = load()) return error;
  const auto load = [](auto kernel) {
    return load_kernel(kernel.function, size_t(kMostStages) * kernel.bytes + kernel.besides);
  };
  for (const DType type : {DType::kBFloat16, DType::kFloat16})
    for (const bool decay : {false, true})
      for (const int32_t dim_k : {64, 128, 256})
        for (const bool split : {false, true}) {
          if (const int error = load(forward_kernel(type, decay, dim_k, split))) return error;
          if (const int error = load(reversed_kernel(type, decay, dim_k, split))) return error;
        }
  return cudaSuccess;
}

}  // namespace lasp::gpu::mma_delta
