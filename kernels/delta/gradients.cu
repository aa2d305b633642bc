// The gradients of stretches, where each block has a head of q and k of its own; and sums of d_g per head.
#include "gradients.h"

#include "channel_gradients.cuh"
#include "gradients_kernel.cuh"

namespace lasp::gpu::delta_hopper {
namespace gradients {
namespace {

// d_g[h]: the sum over the stretches in their order.
__global__ void sum_partial(const DeltaGradients p, const float *partial) {
  const int head = blockIdx.x * blockDim.x + threadIdx.x;
  if (head >= p.heads) return;
  float sum = 0;
  for (int64_t r = 0; r < p.num_runs; ++r)
    if (p.runs[r].length > 0) sum += partial[int64_t{p.runs[r].checkpoint} * p.heads + head];
  float &to = static_cast<float *>(p.d_g)[head];
  to = p.d_g_adds ? to + sum : sum;
}

}  // namespace
}  // namespace gradients

int launch_gradients(const DeltaGradients &p, const Slots &slots, const Stretches &kept, float *partial,
                     Stream stream) {
  if (p.decay == Decay::kChannel) {
    const channel::Left left{reinterpret_cast<char *>(partial), kept.of_stretch};
    if (const int error = channel::launch_walk_back(p, slots, kept, left, stream)) return error;
    const int error = channel::launch_narrow(p, left, stream);
    return error ? error : channel::launch_finish(p, left, stream);
  }
  if (p.d_q.heads != p.heads) return launch_gradients_of_pairs(p, slots, kept, partial, stream);
  return gradients::launch<false>(p, slots, kept, partial, stream);
}
int launch_sum_partial(const DeltaGradients &p, const float *partial, Stream stream) {
  gradients::sum_partial<<<(p.heads + 127) / 128, 128, 0, stream>>>(p, partial);
  return cudaGetLastError();
}

int64_t gradients_shared_bytes() { return gradients::kBytes; }

int load_gradients() {
  for (const auto load : {channel::load_walk_back, channel::load_narrow, channel::load_finish,
                          gradients::load<false>, load_gradients_of_pairs, load_gradients_of_parts})
    if (const int error = load()) return error;
  return load_kernel(gradients::sum_partial);
}

}  // namespace lasp::gpu::delta_hopper
