#include "cuda/backend/group_sums.h"

#include "cuda/cut/cut_heads.h"

namespace lasp::cuda {

void GroupSums::run(gpu::GenericPass pass, const Gradient &gradient, void *staged, const char *what) const {
  const gpu::Tensor &to = gradient.to;
  const int32_t heads = plan_.problem().heads;
  pass.y_float32 = gradient.type == DType::kFloat32;
  if (to.heads == heads) {
    pass.y = to;
    pass.y_adds = gradient.adds;
    return plan_.run_pass(pass, what);
  }
  // Plans for tensor cores keep the gradient's type; the sum over the group is float32 either way.
  if (!plan_.choices.tensor_cores) pass.y_float32 = true;
  if (plan_.choices.fused_sums) return run_by_group(pass, gradient, staged, what);
  pass.y = plan_.inputs.by_output_head(staged, heads, to.dim);
  plan_.run_pass(pass, what);
  if (pass.filter == gpu::RunFilter::kIndependent) return;  // the others are still to come
  sum_pass(gradient, pass, what);
}

void GroupSums::sum(const Gradient &gradient, const void *staged) const {
  const Problem &p = plan_.problem();
  if (gradient.to.heads == p.heads) return;
  check_launch(gpu::launch_sum_groups(gradient.to, dtype_of(gradient.type), gradient.adds, staged,
                                      dtype_of(p.dtype), p.batch, p.tokens, p.heads, plan_.stream),
               "gradients of groups of heads");
}

void GroupSums::sum_pass(const Gradient &gradient, const gpu::GenericPass &pass, const char *what) const {
  const Problem &p = plan_.problem();
  const gpu::DType staged = pass.y_float32 ? gpu::DType::kFloat32 : pass.dtype;
  check_launch(gpu::launch_sum_groups(gradient.to, dtype_of(gradient.type), gradient.adds, pass.y.data, staged,
                                      p.batch, p.tokens, pass.heads, plan_.stream),
               what);
}

// Where a plan for the fused pass gets pointers that are not for it, or is to add.
void GroupSums::run_by_group(const gpu::GenericPass &whole, const Gradient &gradient, void *staged,
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
    pass.y = plan_.inputs.by_output_head(staged, pass.heads, gradient.to.dim);
    if (pass.state_in != nullptr) pass.state_in += first * p.state_size();
    if (pass.edge_state != nullptr) pass.edge_state += first * p.state_size();
    check_launch(gpu::launch_generic_pass(pass, plan_.stream), what);
    Gradient of_group = gradient;
    of_group.to = cut_heads(gradient.to, size_of(gradient.type), p.heads, first, pass.heads);
    sum_pass(of_group, pass, what);
  }
}

}  // namespace lasp::cuda
