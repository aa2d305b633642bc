// The products of decay_products.cuh and channel_products.cuh on tensor cores.
#include "../channel_products.cuh"
#include "../decay_products.cuh"
#include "channel_host.h"
#include "products.cuh"

namespace lasp::gpu::mma {
namespace {

using BFloat16 = TensorCores<__nv_bfloat16>;
using Float16 = TensorCores<__half>;

bool aligned(const Tensor &x) { return channel::pieces_of_16(x.data, x.strides, sizeof(uint16_t)); }
bool aligned(const void *x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; }

}  // namespace

bool takes_channel_products(const DecayGradient &p) {
  return p.set == KernelSet::kMma && aligned(p.v) && aligned(p.d_o) && aligned(p.state) && aligned(p.d_state);
}

bool takes_decay_products(const DecayGradient &p) {
  return takes_channel_products(p) && aligned(p.q) && aligned(p.k);
}

int launch_channel_products(const DecayGradient &p, Stream stream) {
  return p.dtype == DType::kBFloat16 ? products::launch_channel<BFloat16>(p, stream)
                                     : products::launch_channel<Float16>(p, stream);
}

int launch_decay_products(const DecayGradient &p, Stream stream) {
  return p.dtype == DType::kBFloat16 ? products::launch<BFloat16>(p, stream) : products::launch<Float16>(p, stream);
}

int load_channel_products() {
  const int error = products::load_channel<BFloat16>();
  return error ? error : products::load_channel<Float16>();
}

int load_decay_products() { return load_kernels(decay_products_kernel<BFloat16>, decay_products_kernel<Float16>); }

}  // namespace lasp::gpu::mma
