// The host side of the backward walks with per-channel decay: which tensors they take, and their launches, of the
// set that was chosen.
#include "channel_backward.h"

#include <cuda_runtime_api.h>

#include <cmath>

#include "device.cuh"
#include "hopper/channel_backward.h"
#include "mma/channel_host.h"
#include "mma/channel_internal.h"

namespace lasp::gpu {
namespace {

using mma::channel::Walk;

constexpr int32_t kMostRows = 128, kMostColumns = 128;  // of a state, that a block has

bool x_is_float(const ChannelBackward &p) { return p.d_g_float32 || p.decay_dtype == DType::kFloat32; }

// The rows or columns of a tile: the widest that the state has whole ones of.
int32_t tile_of(int32_t dim, int32_t most) { return dim % most == 0 ? most : most / 2; }

const char *refusal(const ChannelBackward &p) {
  if (p.decay_dtype != DType::kFloat32 && p.decay_dtype != p.dtype)
    return "the channel backward kernel wants log decays in float32 or the tensors' type";
  if (p.d_g && !x_is_float(p) && p.v.dim > kMostColumns)
    return "the channel backward kernel adds up the decay's gradient of so wide a state in float32 alone";
  if (p.d_q.heads != p.heads || p.d_k.heads != p.heads)
    return "the channel backward kernel knows no gradients of grouped heads";
  for (const Tensor *t : {&p.q, &p.k, &p.v, &p.d_o, &p.d_q, &p.d_k})
    if (!mma::channel::pieces_of_16(t->data, t->strides, 2))
      return "the channel backward kernel wants tensors and strides that are multiples of 16 bytes";
  using mma::channel::pieces_of_16;
  if (!pieces_of_16(p.g, p.g_strides, p.decay_dtype == DType::kFloat32 ? 4 : 2) ||
      (p.d_g && !pieces_of_16(p.d_g, p.d_g_strides, x_is_float(p) ? 4 : 2)))
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
  walk.x = p.d_g;
  walk.x_strides = p.d_g_strides;
  walk.x_is_float = x_is_float(p);
  walk.ends = p.ends;
  walk.row_tiles = p.q.dim / tile_of(p.q.dim, kMostRows);
  walk.state_row = p.v.dim;
  walk.state_size = int64_t{p.q.dim} * p.v.dim;
  return walk;
}

// Columns of the state from `first` on.
int enqueue_columns(KernelSet set, Walk walk, const ChannelBackward &p, int32_t first, bool reversed,
                    Stream stream) {
  walk.adds = first > 0;
  for (Tensor *t : {&walk.a, &walk.b}) {
    t->data = static_cast<char *>(t->data) + int64_t{first} * 2;
    t->dim = tile_of(p.v.dim, kMostColumns);
  }
  walk.c.dim = tile_of(p.q.dim, kMostRows);
  if (walk.state) walk.state += first;
  if (walk.far_state) walk.far_state += first;
  const bool bfloat16 = p.dtype == DType::kBFloat16;
  if (set == KernelSet::kHopper)
    return (bfloat16 ? hopper::enqueue_channel_bfloat16 : hopper::enqueue_channel_float16)(walk, p, reversed,
                                                                                           stream);
  return (bfloat16 ? mma::channel::enqueue_bfloat16 : mma::channel::enqueue_float16)(walk, p.num_runs, reversed,
                                                                                     stream);
}

}  // namespace

const char *channel_backward_refusal(KernelSet set, const ChannelBackward &pass) {
  if (const char *const why = refusal(pass)) return why;
  return set == KernelSet::kHopper ? hopper::channel_backward_refusal(pass) : nullptr;
}

int launch_channel_walk(KernelSet set, const ChannelBackward &p, bool reversed, Stream stream) {
  Walk walk = base_walk(p);
  if (reversed) {
    walk.a = p.v, walk.b = p.d_o, walk.c = p.q, walk.y = p.d_k, walk.partner = p.k;
    walk.runs = p.reversed_runs, walk.state = p.d_state;
    walk.in_scale = 1 / p.scale;  // the gradient of the state holds the scale already
  } else {
    walk.a = p.d_o, walk.b = p.v, walk.c = p.k, walk.y = p.d_q, walk.partner = p.d_k;
    walk.runs = p.runs, walk.state = p.state;
    walk.far_runs = p.reversed_runs, walk.far_state = p.d_state;
  }
  if (p.q.dim % (kMostRows / 2) || p.v.dim % (kMostColumns / 2)) return cudaErrorInvalidValue;
  for (int32_t first = 0; first < p.v.dim; first += tile_of(p.v.dim, kMostColumns))
    if (const int error = enqueue_columns(set, walk, p, first, reversed, stream)) return error;
  return cudaSuccess;
}

int launch_channel_backward(KernelSet set, const ChannelBackward &p, Stream stream) {
  if (p.num_runs == 0 || p.heads == 0) return cudaSuccess;
  if (const int error = launch_channel_walk(set, p, false, stream)) return error;
  return launch_channel_walk(set, p, true, stream);
}

// Each device loads those that are made for it.
int load_channel_backward_kernels() {
  int device = 0, major = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device))
    return error;
  if (major == 9)
    for (const auto load : {hopper::load_channel_bfloat16, hopper::load_channel_float16})
      if (const int error = load()) return error;
  for (const auto load : {mma::channel::load_bfloat16, mma::channel::load_float16})
    if (const int error = load()) return error;
  return cudaSuccess;
}

}  // namespace lasp::gpu
