// The products of channel_products.cuh on the CUDA cores.
#include "channel_products.cuh"

#include "products_float32.cuh"

namespace lasp::gpu {

int launch_channel_products(const DecayGradient &p, Stream stream) {
  return mma::takes_channel_products(p) ? mma::launch_channel_products(p, stream)
                                        : products::launch_channel<products::Float32>(p, stream);
}

int load_channel_products() {
  const int error = mma::load_channel_products();
  return error ? error : products::load_channel<products::Float32>();
}

}  // namespace lasp::gpu
