// A problem's tensors in the structs of kernels/launch.h, and the sizes that follow from them. Pure.
#pragma once

#include <cstdint>

#include "core/affine_map.h"
#include "core/token_partition.h"
#include "engine/backend.h"
#include "kernels/launch.h"

namespace lasp::cuda {

// The runs that a launch works on, in device memory; null: only their number is known.
struct RunSpan {
  const gpu::Run *data = nullptr;
  int64_t size = 0;
};

gpu::DType dtype_of(DType type);

// A gradient of q, k or v, and how it is left there.
struct Gradient {
  gpu::Tensor to;
  DType type = DType::kFloat32;
  bool adds = false;  // to what is there
};

class PlanInputs {
 public:
  // Both outlive it.
  PlanInputs(const Problem &problem, const TokenPartition &partition) : problem_(problem), partition_(partition) {}

  const Problem &problem() const { return problem_; }
  const TokenPartition &partition() const { return partition_; }

  gpu::Tensor tensor(const void *data, const Layout &layout, int32_t heads, int32_t dim) const;
  static gpu::Strides strides(const Layout &layout) { return {layout.batch, layout.token, layout.head}; }
  gpu::Tensor q_of(const void *data) const {
    return tensor(data, problem_.q, problem_.heads_q, problem_.head_dim_k);
  }
  gpu::Tensor k_of(const void *data) const {
    return tensor(data, problem_.k, problem_.heads_k, problem_.head_dim_k);
  }
  gpu::Tensor v_of(const void *data) const {
    return tensor(data, problem_.v, problem_.heads_v, problem_.head_dim_v);
  }
  gpu::Tensor o_of(const void *data) const { return tensor(data, problem_.o, problem_.heads, problem_.head_dim_v); }
  // With a scale of zero what holds it is what would come of no gradient of o: zeros are read in its place, and the
  // gradients of states, which the others come from, need not be divided by the scale.
  gpu::Tensor do_of(const void *data) const {
    if (!reads_zeros()) return tensor(data, problem_.d_o, problem_.heads, problem_.head_dim_v);
    return {const_cast<void *>(zeros_ != nullptr ? zeros_ : data), {}, problem_.heads, problem_.head_dim_v};
  }
  bool reads_zeros() const { return problem_.scale == 0 && !problem_.delta; }
  float backward_scale() const { return reads_zeros() ? 1.0f : problem_.scale; }
  // head_dim_v of them, of any type; null: there is no memory yet.
  void set_zeros(const void *zeros) { zeros_ = zeros; }
  gpu::Tensor dq_of(void *data) const { return tensor(data, problem_.dq, problem_.heads_q, problem_.head_dim_k); }
  gpu::Tensor dk_of(void *data) const { return tensor(data, problem_.dk, problem_.heads_k, problem_.head_dim_k); }
  gpu::Tensor dv_of(void *data) const { return tensor(data, problem_.dv, problem_.heads_v, problem_.head_dim_v); }
  Gradient dq(const BackwardBuffers &b) const { return {dq_of(b.dq), problem_.dq_dtype, b.adds(LASP_ADD_DQ)}; }
  Gradient dk(const BackwardBuffers &b) const { return {dk_of(b.dk), problem_.dk_dtype, b.adds(LASP_ADD_DK)}; }
  Gradient dv(const BackwardBuffers &b) const { return {dv_of(b.dv), problem_.dv_dtype, b.adds(LASP_ADD_DV)}; }
  // Whether gradients of q, k or v are float32 and these are not.
  bool has_wide_gradients() const;
  // A gradient by output head, without gaps, [B, T, heads, dim].
  gpu::Tensor by_output_head(void *data, int32_t heads, int32_t dim) const;

  // What every pass over `runs` is given, with scale 1; a pass with no more than that set; and a pass of backward
  // without its states and results.
  gpu::PassInputs pass_inputs(const RunSpan &runs, const void *g) const;
  gpu::GenericPass base_pass(const RunSpan &runs, const void *g) const { return {{pass_inputs(runs, g)}}; }
  gpu::BackwardPass backward_pass(const RunSpan &runs, const BackwardBuffers &b) const;
  // For questions about what a kernel serves: pointers are looked at again in each call.
  static BackwardBuffers aligned_buffers();

  gpu::StateShape state_shape() const;  // rows: of one map
  int64_t floats(int64_t states) const { return states * problem_.heads * problem_.state_size(); }
  int64_t factor_size() const { return affine_map_of(problem_).head_transition_floats(); }
  int64_t factors(int64_t count) const { return count * problem_.heads * factor_size(); }

  // Whether a decay of one number a token can leave nothing of a state.
  bool forgets() const { return problem_.decay == Decay::kHead || problem_.decay == Decay::kScalar; }
  // The fewest output heads that hold every group of them that shares a head of q, k or v whole.
  int32_t heads_in_group() const;
  // How long the runs are around which the gradient of the decay is found.
  int64_t decay_run_tokens() const {
    return problem_.decay == Decay::kChannel ? gpu::kChannelProductRun : gpu::kDecayProductRun;
  }
  int64_t longest_segment() const;
  // Whether a state from another rank enters any segment.
  bool waits() const;
  // Of a tensor without gaps, else 0.
  uint64_t dense_bytes(const Layout &layout, int32_t heads, int32_t dim, DType type) const;
  // That the backward pass reads and writes.
  uint64_t tensor_bytes() const;

 private:
  const Problem &problem_;
  const TokenPartition &partition_;
  const void *zeros_ = nullptr;
};

}  // namespace lasp::cuda
