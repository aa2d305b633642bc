// The host side of the backward walks with per-channel decay: which tensors they take, and their launches.
#include <cuda_runtime_api.h>

#include <cmath>

#include "channel_backward.h"
#include "channel_host.h"
#include "channel_internal.h"

namespace lasp::gpu {
namespace mma::channel {
namespace {

const char *refusal(const ChannelBackward &p) {
  if (p.decay_dtype != DType::kFloat32 && p.decay_dtype != p.dtype)
    return "the channel backward kernel wants log decays in float32 or the tensors' type";
  if (p.d_g && p.decay_dtype != DType::kFloat32)
    return "the channel backward kernel wants the decay's gradient in float32";
  if (p.d_q.heads != p.heads || p.d_k.heads != p.heads)
    return "the channel backward kernel knows no gradients of grouped heads";
  for (const Tensor *t : {&p.q, &p.k, &p.v, &p.d_o, &p.d_q, &p.d_k})
    if (!pieces_of_16(t->data, t->strides, 2))
      return "the channel backward kernel wants tensors and strides that are multiples of 16 bytes";
  if (!pieces_of_16(p.g, p.g_strides, p.decay_dtype == DType::kFloat32 ? 4 : 2) ||
      (p.d_g && !pieces_of_16(p.d_g, p.d_g_strides, 4)))
    return "the channel backward kernel wants log decays and strides that are multiples of 16 bytes";
  if (!(p.scale > 0)) return "the channel backward kernel wants a positive scale";
  return nullptr;
}

// What both walks have alike.
Walk base_walk(const ChannelBackward &p) {
  Walk walk;
  walk.heads = p.heads;
  walk.decay_is_float = p.decay_dtype == DType::kFloat32;
  walk.g = p.g;
  walk.g_strides = p.g_strides;
  walk.scale = p.scale;
  walk.log2_scale = std::log2(p.scale);
  walk.x = static_cast<float *>(p.d_g);
  walk.x_strides = p.d_g_strides;
  walk.ends = p.ends;
  return walk;
}

}  // namespace
}  // namespace mma::channel

const char *channel_backward_refusal(const ChannelBackward &pass) { return mma::channel::refusal(pass); }

int mma::channel_walk_shared_bytes(int32_t rows, int32_t columns) {
  using mma::channel::Layout;
  if (rows == 128) return columns == 128 ? Layout<128, 128, true>::kBytes : Layout<128, 64, true>::kBytes;
  return columns == 128 ? Layout<64, 128, true>::kBytes : Layout<64, 64, true>::kBytes;
}

int mma::launch_channel_walk(const ChannelBackward &p, bool reversed, Stream stream) {
  using namespace mma::channel;
  Walk walk = base_walk(p);
  if (reversed) {
    walk.a = p.v, walk.b = p.d_o, walk.c = p.q, walk.y = p.d_k, walk.partner = p.k;
    walk.runs = p.reversed_runs, walk.state = p.d_state;
    walk.in_scale = 1 / p.scale;  // the gradient of the state holds the scale already
  } else {
    walk.a = p.d_o, walk.b = p.v, walk.c = p.k, walk.y = p.d_q;
    walk.runs = p.runs, walk.state = p.state;
    walk.far_runs = p.reversed_runs, walk.far_state = p.d_state;
  }
  const auto enqueue = p.dtype == DType::kBFloat16 ? enqueue_bfloat16 : enqueue_float16;
  return enqueue(walk, p.num_runs, reversed, stream);
}

int launch_channel_backward(const ChannelBackward &p, Stream stream) {
  if (p.num_runs == 0 || p.heads == 0) return cudaSuccess;
  if (const int error = mma::launch_channel_walk(p, false, stream)) return error;
  return mma::launch_channel_walk(p, true, stream);
}

int load_channel_backward_kernels() {
  const int error = mma::channel::load_bfloat16();
  return error ? error : mma::channel::load_float16();
}

}  // namespace lasp::gpu
