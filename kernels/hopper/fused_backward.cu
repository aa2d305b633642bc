// The host side of the fused backward pass: what it supports, and the tensor maps of its loads.
#include <cuda_runtime_api.h>

#include <cmath>

#include "fused_backward_internal.h"
#include "fused_backward_layout.cuh"
#include "head_backward.h"
#include "tensor_map.h"

namespace lasp::gpu {
namespace hopper {
namespace fused {
namespace {

// Blocks that share their loads. Four would fit no more than 120 of an H100's 132 multiprocessors.
constexpr int32_t kCluster = 2;
// Why not, or null.
const char *refusal(const FusedBackward &pass, int32_t compute_capability) {
  if (compute_capability != 90) return "the fused backward kernel is for compute capability 9.0";
  if (pass.dtype == DType::kFloat32) return "the fused backward kernel computes bfloat16 and float16";
  if (pass.decay == Decay::kChannel) return "the fused backward kernel knows no decay per channel";
  if (pass.tokens > INT32_MAX - kChunk || pass.batch > INT32_MAX)
    return "too many tokens for the fused backward kernel's coordinates";
  if (pass.num_runs > INT32_MAX / (int64_t{pass.heads} * kSlices))
    return "too many runs for one launch of the fused backward kernel";
  if (!(pass.scale > 0)) return "the fused backward kernel wants a positive scale";
  for (const Tensor *t : {&pass.q, &pass.k, &pass.v, &pass.d_o, &pass.d_q, &pass.d_k, &pass.d_v}) {
    if (t->dim != kDim) return "the fused backward kernel wants head dimensions of 128";
    if (t->heads != pass.heads) return "the fused backward kernel knows no grouped heads";
    if (!tensor_map_fits(*t, pass.batch, pass.tokens))
      return "the fused backward kernel wants tensors and strides that are multiples of 16 bytes";
  }
  return nullptr;
}

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
  p.checkpoints = pass.checkpoints;
  p.d_state_in = pass.d_state_in;
  p.d_edge_state = pass.d_edge_state;
  p.parts = pass.d_g ? pass.parts : nullptr;
  p.batch = pass.batch;
  p.tokens = pass.tokens;
  p.heads = pass.heads;
  p.scale = pass.scale;
  p.log2_scale = std::log2(pass.scale);
  p.decay = pass.decay;
  p.decay_is_float = pass.decay_dtype == DType::kFloat32;
  const auto map = [&](CUtensorMap &to, const Tensor &t, uint32_t columns) {
    return encode_tensor_map(to, t, pass.batch, pass.tokens, pass.dtype, columns);
  };
  return map(p.tiles[kV], pass.v, 64) && map(p.tiles[kDo], pass.d_o, 64) && map(p.tiles[kK], pass.k, 64) &&
         map(p.tiles[kQ], pass.q, 64) && map(p.k_slice, pass.k, kSlice);
}

int launch(const FusedBackward &pass, int32_t cluster, Stream stream, int *clusters) {
  Params params = {};
  if (!fill(params, pass)) return cudaErrorInvalidValue;
  const auto enqueue = pass.dtype == DType::kBFloat16 ? enqueue_bfloat16 : enqueue_float16;
  const int status = enqueue(params, cluster, pass.num_runs * pass.heads * kSlices, stream, clusters);
  return status || clusters || !params.parts ? status : launch_sum_parts(pass, stream);
}

}  // namespace
}  // namespace fused

int launch_fused_backward(const FusedBackward &pass, int32_t cluster, Stream stream) {
  return fused::launch(pass, cluster, stream, nullptr);
}

int fused_backward_clusters(const FusedBackward &pass, int32_t cluster) {
  int clusters = 0;
  const int status = fused::launch(pass, cluster, nullptr, &clusters);
  return status ? -status : clusters;
}

}  // namespace hopper

bool fused_backward_supported(const FusedBackward &pass, int32_t compute_capability, const char **why) {
  const char *const reason = hopper::fused::refusal(pass, compute_capability);
  if (why) *why = reason;
  return !reason;
}

int64_t fused_backward_parts(const FusedBackward &pass) {
  return hopper::fused::kSlices * pass.batch * pass.heads * pass.tokens;
}

int launch_fused_backward(const FusedBackward &pass, Stream stream) {
  if (pass.num_runs == 0 || pass.heads == 0) return cudaSuccess;
  if (!pass.d_g) return hopper::launch_head_backward(pass, stream);
  return hopper::launch_fused_backward(pass, hopper::fused::kCluster, stream);
}

// A question about a kernel's occupancy loads it without launching anything.
int load_fused_backward_kernels() {
  if (const int error = hopper::load_head_backward()) return error;
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool decay_gradient : {false, true}) {
      FusedBackward pass;
      void *const aligned = reinterpret_cast<void *>(128);  // never read
      constexpr int64_t kRow = hopper::fused::kDim;
      pass.q = pass.k = pass.v = pass.d_o = {aligned, {kRow, kRow, kRow}, 1, hopper::fused::kDim};
      pass.batch = pass.tokens = pass.heads = 1;
      pass.num_runs = 1;
      pass.dtype = type;
      pass.d_g = decay_gradient ? aligned : nullptr;
      pass.parts = static_cast<float *>(aligned);
      const int clusters = hopper::fused_backward_clusters(pass, hopper::fused::kCluster);
      if (clusters < 0) return -clusters;
    }
  }
  return hopper::fused::load_sum_parts();
}

}  // namespace lasp::gpu
