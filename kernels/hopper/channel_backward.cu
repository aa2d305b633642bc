// Which tensors the backward walks with per-channel decay by wgmma take, and what a block needs.
#include "channel_backward.h"

#include "channel_backward_layout.cuh"
#include "tensor_map.h"

namespace lasp::gpu::hopper {
namespace {

template <int kHeads, int kColumns>
int64_t bytes(bool reversed) {
  using Forward = channel_backward::Layout<kHeads, kColumns, false>;
  using Reversed = channel_backward::Layout<kHeads, kColumns, true>;
  return reversed ? Reversed::kBytes + Reversed::kAlignment : Forward::kBytes + Forward::kAlignment;
}

}  // namespace

const char *channel_backward_refusal(const ChannelBackward &p) {
  if (p.q.dim == 64 && p.v.dim != 64) return "the Hopper kernel of the walks back takes K = 64 with V = 64 alone";
  if (p.tokens > INT32_MAX - channel_backward::kTokens || p.batch > INT32_MAX)
    return "too many tokens for the tensor-core kernel's coordinates";
  const auto fits = [&](const Tensor &t) { return tensor_map_fits(t, p.batch, p.tokens); };
  for (const Tensor *t : {&p.q, &p.k, &p.v, &p.d_o, &p.d_k})
    if (!fits(*t)) return "the tensor-core kernel wants tensors and strides that are multiples of 16 bytes";
  if (!fits({const_cast<void *>(p.g), p.g_strides, p.heads, p.q.dim}) ||
      (p.d_g && !fits({p.d_g, p.d_g_strides, p.heads, p.q.dim})))
    return "the tensor-core kernel wants log decays and strides that are multiples of 16 bytes";
  return nullptr;
}

int64_t channel_backward_shared_bytes(int32_t rows, int32_t columns, bool reversed) {
  if (rows == 64) return bytes<2, 64>(reversed);
  return columns == 128 ? bytes<1, 128>(reversed) : bytes<1, 64>(reversed);
}

}  // namespace lasp::gpu::hopper
