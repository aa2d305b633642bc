// The host side of the backward kernel: what it supports, and the tensor maps of its loads.
#include <cuda_runtime_api.h>

#include <cmath>

#include "head_backward_internal.h"
#include "head_backward_layout.cuh"
#include "tensor_map.h"

namespace lasp::gpu::hopper {
namespace head {
namespace {

bool fill(Params &p, const FusedBackward &pass) {
  p.d_q = pass.d_q.data;
  p.d_k = pass.d_k.data;
  p.d_v = pass.d_v.data;
  p.d_q_strides = pass.d_q.strides;
  p.d_k_strides = pass.d_k.strides;
  p.d_v_strides = pass.d_v.strides;
  p.g = pass.g;
  p.g_strides = pass.g_strides;
  p.runs = pass.runs;
  p.d_state_in = pass.d_state_in;
  p.d_edge_state = pass.d_edge_state;
  p.heads = pass.heads;
  p.scale = pass.scale;
  p.log2_scale = std::log2(pass.scale);
  p.decay = pass.decay;
  p.decay_is_float = pass.decay_dtype == DType::kFloat32;
  p.checkpoints = pass.checkpoints;
  const auto map = [&](CUtensorMap &to, const Tensor &t, uint32_t rows, uint32_t panels) {
    return encode_panels_map(to, t, pass.batch, pass.tokens, pass.dtype, rows, panels);
  };
  return map(p.tiles[kV], pass.v, kChunk, 2) && map(p.tiles[kDo], pass.d_o, kChunk, 2) &&
         map(p.tiles[kK], pass.k, kChunk, 2) && map(p.tiles[kQ], pass.q, kChunk, 2) &&
         map(p.d_q_to, pass.d_q, kStoreRows, 1) && map(p.d_k_to, pass.d_k, kStoreRows, 2) &&
         map(p.d_v_to, pass.d_v, kStoreRows, 2);
}

}  // namespace
}  // namespace head

int launch_head_backward(const FusedBackward &pass, Stream stream) {
  head::Params params = {};
  if (!head::fill(params, pass)) return cudaErrorInvalidValue;
  const auto enqueue = pass.dtype == DType::kBFloat16 ? head::enqueue_bfloat16 : head::enqueue_float16;
  return enqueue(params, pass.num_runs * pass.heads, stream);
}

int load_head_backward() {
  const int error = head::enqueue_bfloat16({}, 0, nullptr);
  return error ? error : head::enqueue_float16({}, 0, nullptr);
}

}  // namespace lasp::gpu::hopper
