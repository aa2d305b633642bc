// Gradients of heads that several output heads share: where no kernel sums them itself, they are found per output
// head first, into workspace, and summed then.
#include <algorithm>

#include "cuda/backend/stream_backend.h"
#include "cuda/cut/cut_heads.h"

namespace lasp::cuda {

gpu::Tensor StreamBackend::staged_tensor(void *data, int32_t heads, int32_t dim) const {
  const int64_t token = int64_t{heads} * dim;
  return {data, {problem_.tokens * token, token, dim}, heads, dim};
}

int64_t StreamBackend::staged_bytes(int32_t heads, int32_t dim) const {
  const Problem &p = problem_;
  const int64_t of_head = p.batch * p.tokens * dim;
  if (heads == p.heads) return 0;
  if (!tensor_cores_) return p.heads * of_head * int64_t{sizeof(float)};
  return (fused_ ? group_step() : p.heads) * of_head * size_of(p.dtype);
}

// With tensor cores one gradient is found after the other, in the same place; but those of q and k together by the
// walks of a per-channel decay.
void StreamBackend::place_staged(Carver &carver, BackwardRoom &room) const {
  const Problem &p = problem_;
  const int64_t dq = staged_bytes(p.heads_q, p.head_dim_k), dk = staged_bytes(p.heads_k, p.head_dim_k),
                dv = staged_bytes(p.heads_v, p.head_dim_v);
  if (!tensor_cores_) {
    room.dq = carver.take<std::byte>(dq);
    room.dk = carver.take<std::byte>(dk);
    room.dv = carver.take<std::byte>(dv);
    return;
  }
  if (channel_) room.dq = carver.take<std::byte>(dq);
  room.dk = room.dv = carver.take<std::byte>(std::max({dk, dv, channel_ ? 0 : dq}));
  if (!channel_) room.dq = room.dk;
}

void StreamBackend::run_gradient(gpu::GenericPass pass, const gpu::Tensor &to, void *staged,
                                 const char *what) const {
  pass.y = to;
  if (to.heads == problem_.heads) return run_pass(pass, what);
  // Plans for tensor cores keep 16 bits; the sum over the group is float32 either way.
  pass.y_float32 = !tensor_cores_;
  if (fused_) return run_gradient_by_slab(pass, to, staged, what);
  pass.y = staged_tensor(staged, problem_.heads, to.dim);
  run_pass(pass, what);
  if (pass.filter == gpu::RunFilter::kIndependent) return;  // the others are still to come
  sum_groups(to, pass, what);
}

void StreamBackend::sum_groups(const gpu::Tensor &to, const gpu::GenericPass &pass, const char *what) const {
  check_launch(
      gpu::launch_sum_groups(to, pass.dtype, pass.y.data, pass.y_float32 ? gpu::DType::kFloat32 : pass.dtype,
                             problem_.batch, problem_.tokens, pass.heads, stream_),
      what);
}

// Where a plan for the fused pass gets pointers that are not for it: a group of heads at a time.
void StreamBackend::run_gradient_by_slab(const gpu::GenericPass &whole, const gpu::Tensor &to, void *staged,
                                         const char *what) const {
  const Problem &p = problem_;
  const int64_t element = size_of(p.dtype);
  for (int32_t first = 0; first < p.heads && whole.num_runs > 0; first += group_step()) {
    gpu::GenericPass pass = whole;
    pass.heads = group_step();
    pass.state_heads = p.heads;
    for (gpu::Tensor *x : {&pass.a, &pass.b, &pass.c}) *x = cut_heads(*x, element, p.heads, first, pass.heads);
    pass.g = cut_decay(pass.g, pass.decay, pass.g_strides.head, size_of(p.decay_dtype), first);
    pass.y = staged_tensor(staged, pass.heads, to.dim);
    if (pass.state_in != nullptr) pass.state_in += first * p.state_size();
    if (pass.edge_state != nullptr) pass.edge_state += first * p.state_size();
    check_launch(gpu::launch_generic_pass(pass, stream_), what);
    sum_groups(cut_heads(to, element, p.heads, first, pass.heads), pass, what);
  }
}

}  // namespace lasp::cuda
