// The host side of the states pass with per-channel decay: which tensors it takes, and its launch.
#include "channel_states.h"

#include "channel_host.h"

namespace lasp::gpu {
namespace {

const char *refusal(const LinearPass &p) {
  using namespace mma::channel;
  if (p.decay_dtype != DType::kFloat32 && p.decay_dtype != p.dtype)
    return "the channel states kernel wants log decays in float32 or the tensors' type";
  if (!pieces_of_16(p.b.data, p.b.strides, 2) || !pieces_of_16(p.c.data, p.c.strides, 2) ||
      !pieces_of_16(p.g, p.g_strides, p.decay_dtype == DType::kFloat32 ? 4 : 2))
    return "the channel states kernel wants tensors and strides that are multiples of 16 bytes";
  if (p.state_transposed || p.state_in || p.edge_state || p.y.data)
    return "the channel states kernel finds the states of runs alone";
  return nullptr;
}

}  // namespace

const char *channel_states_refusal(const LinearPass &pass) { return refusal(pass); }

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
