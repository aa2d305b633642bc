// The host side of the states pass with per-channel decay: what it supports, and its launch.
#include "channel_states.h"

#include "channel_host.h"

namespace lasp::gpu {
namespace {

const char *refusal(const LinearPass &p, int32_t compute_capability) {
  using namespace mma::channel;
  if (compute_capability < 80) return "the channel states kernel is for compute capability 8.0 and later";
  if (p.dtype == DType::kFloat32) return "the channel states kernel computes bfloat16 and float16";
  if (p.decay != Decay::kChannel) return "the channel states kernel is for decay per channel";
  if (p.decay_dtype != DType::kFloat32 && p.decay_dtype != p.dtype)
    return "the channel states kernel wants log decays in float32 or the tensors' type";
  for (const int32_t dim : {p.b.dim, p.c.dim})
    if (dim != 64 && dim != 128) return "the channel states kernel wants head dimensions of 64 and 128";
  if (!pieces_of_16(p.b.data, p.b.strides, 2) || !pieces_of_16(p.c.data, p.c.strides, 2) ||
      !pieces_of_16(p.g, p.g_strides, p.decay_dtype == DType::kFloat32 ? 4 : 2))
    return "the channel states kernel wants tensors and strides that are multiples of 16 bytes";
  if (p.state_transposed || p.state_in || p.edge_state || p.y.data)
    return "the channel states kernel finds the states of runs alone";
  if (states_shared_bytes(p.b.dim, p.c.dim) > shared_limit(compute_capability))
    return "the channel states kernel wants more shared memory than a block has here";
  return nullptr;
}

}  // namespace

bool channel_states_supported(const LinearPass &pass, int32_t compute_capability, const char **why) {
  const char *const reason = refusal(pass, compute_capability);
  if (why) *why = reason;
  return !reason;
}

int launch_channel_states(const LinearPass &pass, float *factors, Stream stream) {
  using namespace mma::channel;
  const auto enqueue = pass.dtype == DType::kBFloat16 ? enqueue_states_bfloat16 : enqueue_states_float16;
  return enqueue(pass, factors, stream);
}

int load_channel_states_kernels() {
  const int error = mma::channel::load_states_bfloat16();
  return error ? error : mma::channel::load_states_float16();
}

}  // namespace lasp::gpu
