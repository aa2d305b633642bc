#include "cuda/choice/plan_inputs.h"

#include <algorithm>
#include <numeric>

#include "core/workspace.h"

namespace lasp::cuda {
namespace {

// Kernels name types and decays anew, for they see nothing of src/ and lasp.h; the numbers are the same.
template <class Ours, class Theirs>
constexpr bool same(Ours ours, Theirs theirs) {
  return static_cast<int32_t>(ours) == static_cast<int32_t>(theirs);
}
static_assert(same(DType::kFloat32, gpu::DType::kFloat32) && same(DType::kBFloat16, gpu::DType::kBFloat16) &&
              same(DType::kFloat16, gpu::DType::kFloat16));
static_assert(same(Decay::kNone, gpu::Decay::kNone) && same(Decay::kHead, gpu::Decay::kHead) &&
              same(Decay::kScalar, gpu::Decay::kScalar) && same(Decay::kChannel, gpu::Decay::kChannel));

}  // namespace

gpu::DType dtype_of(DType type) { return static_cast<gpu::DType>(type); }

gpu::Tensor PlanInputs::tensor(const void *data, const Layout &layout, int32_t heads, int32_t dim) const {
  return {const_cast<void *>(data), strides(layout), heads, dim};
}

gpu::Tensor PlanInputs::by_output_head(void *data, int32_t heads, int32_t dim) const {
  const int64_t token = int64_t{heads} * dim;
  return {data, {problem_.tokens * token, token, dim}, heads, dim};
}

gpu::PassInputs PlanInputs::pass_inputs(const RunSpan &runs, const void *g) const {
  gpu::PassInputs pass;
  pass.batch = problem_.batch;
  pass.tokens = problem_.tokens;
  pass.heads = problem_.heads;
  pass.dtype = dtype_of(problem_.dtype);
  pass.decay = static_cast<gpu::Decay>(problem_.decay);
  pass.decay_dtype = dtype_of(problem_.decay_dtype);
  pass.g = g;
  pass.g_strides = strides(problem_.decay_layout);
  pass.runs = runs.data;
  pass.num_runs = runs.size;
  return pass;
}

gpu::BackwardPass PlanInputs::backward_pass(const RunSpan &runs, const BackwardBuffers &b) const {
  gpu::BackwardPass pass{pass_inputs(runs, b.decay)};
  pass.scale = backward_scale();
  pass.padded = problem_.packed;
  pass.q = q_of(b.q);
  pass.k = k_of(b.k);
  pass.v = v_of(b.v);
  pass.d_o = do_of(b.d_o);
  pass.d_g = b.d_decay;
  pass.d_g_strides = strides(problem_.d_decay_layout);
  pass.d_g_float32 = problem_.d_decay_dtype == DType::kFloat32;
  pass.d_g_adds = b.adds(LASP_ADD_D_DECAY);
  return pass;
}

BackwardBuffers PlanInputs::aligned_buffers() {
  void *const aligned = reinterpret_cast<void *>(kAlignment);
  BackwardBuffers b{};
  b.q = b.k = b.v = b.decay = b.d_o = aligned;
  b.dq = b.dk = b.dv = b.d_decay = aligned;
  return b;
}

bool PlanInputs::has_wide_gradients() const {
  const Problem &p = problem_;
  return p.dq_dtype != p.dtype || p.dk_dtype != p.dtype || p.dv_dtype != p.dtype;
}

gpu::StateShape PlanInputs::state_shape() const {
  return {problem_.map_rows(), problem_.heads, problem_.head_dim_k, problem_.head_dim_v,
          problem_.decay == Decay::kChannel};
}

int32_t PlanInputs::heads_in_group() const {
  const Problem &p = problem_;
  return std::lcm(std::lcm(p.heads / p.heads_q, p.heads / p.heads_k), p.heads / p.heads_v);
}

int64_t PlanInputs::longest_segment() const {
  int64_t longest = 1;
  for (const Segment &segment : partition_.segments) longest = std::max(longest, segment.end - segment.begin);
  return longest;
}

bool PlanInputs::waits() const {
  const auto enters = [](const RowPath &row) { return row.consumer >= 0; };
  return std::any_of(partition_.forward.begin(), partition_.forward.end(), enters) ||
         std::any_of(partition_.backward.begin(), partition_.backward.end(), enters);
}

uint64_t PlanInputs::dense_bytes(const Layout &layout, int32_t heads, int32_t dim, DType type) const {
  const Problem &p = problem_;
  const int64_t elements = p.batch * p.tokens * heads * dim;
  if (layout.extent(p.batch, p.tokens, heads, dim) != elements) return 0;
  return static_cast<uint64_t>(elements * size_of(type));
}

uint64_t PlanInputs::tensor_bytes() const {
  const Problem &p = problem_;
  const auto both = [&](DType gradient) { return size_of(p.dtype) + size_of(gradient); };
  int64_t of_token = (p.heads_q * both(p.dq_dtype) + p.heads_k * both(p.dk_dtype)) * p.head_dim_k +
                     (p.heads_v * both(p.dv_dtype) + p.heads * size_of(p.dtype)) * p.head_dim_v;
  if (p.decay == Decay::kChannel)
    of_token += p.heads * p.head_dim_k * (size_of(p.decay_dtype) + size_of(p.d_decay_dtype));
  return static_cast<uint64_t>(p.batch * p.tokens * of_token);
}

}  // namespace lasp::cuda
