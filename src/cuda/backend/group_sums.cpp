#include "cuda/backend/group_sums.h"

#include "cuda/cut/cut_heads.h"

namespace lasp::cuda {

void GroupSums::run(gpu::GenericPass pass, const gpu::Tensor &to, void *staged, const char *what) const {
  pass.y = to;
  const int32_t heads = plan_.problem().heads;
  if (to.heads == heads) return plan_.run_pass(pass, what);
  // Plans for tensor cores keep 16 bits; the sum over the group is float32 either way.
  pass.y_float32 = !plan_.choices.tensor_cores;
  if (plan_.choices.fused) return run_by_group(pass, to, staged, what);
  pass.y = plan_.inputs.by_output_head(staged, heads, to.dim);
  plan_.run_pass(pass, what);
  if (pass.filter == gpu::RunFilter::kIndependent) return;  // the others are still to come
  sum_pass(to, pass, what);
}

void GroupSums::sum(const gpu::Tensor &to, const void *staged) const {
  const Problem &p = plan_.problem();
  if (to.heads == p.heads) return;
  const auto type = dtype_of(p.dtype);
  check_launch(gpu::launch_sum_groups(to, type, staged, type, p.batch, p.tokens, p.heads, plan_.stream),
               "gradients of groups of heads");
}

void GroupSums::sum_pass(const gpu::Tensor &to, const gpu::GenericPass &pass, const char *what) const {
  const Problem &p = plan_.problem();
  const gpu::DType staged = pass.y_float32 ? gpu::DType::kFloat32 : pass.dtype;
  check_launch(
      gpu::launch_sum_groups(to, pass.dtype, pass.y.data, staged, p.batch, p.tokens, pass.heads, plan_.stream),
      what);
}

// Where a plan for the fused pass gets pointers that are not for it.
void GroupSums::run_by_group(const gpu::GenericPass &whole, const gpu::Tensor &to, void *staged,
                             const char *what) const {
  const Problem &p = plan_.problem();
  const int64_t element = size_of(p.dtype);
  const int32_t count = plan_.inputs.heads_in_group();
  for (int32_t first = 0; first < p.heads && whole.num_runs > 0; first += count) {
    gpu::GenericPass pass = whole;
    pass.heads = count;
    pass.state_heads = p.heads;
    for (gpu::Tensor *x : {&pass.a, &pass.b, &pass.c}) *x = cut_heads(*x, element, p.heads, first, pass.heads);
    pass.g = cut_decay(pass.g, pass.decay, pass.g_strides.head, size_of(p.decay_dtype), first);
    pass.y = plan_.inputs.by_output_head(staged, pass.heads, to.dim);
    if (pass.state_in != nullptr) pass.state_in += first * p.state_size();
    if (pass.edge_state != nullptr) pass.edge_state += first * p.state_size();
    check_launch(gpu::launch_generic_pass(pass, plan_.stream), what);
    sum_pass(cut_heads(to, element, p.heads, first, pass.heads), pass, what);
  }
}

}  // namespace lasp::cuda
