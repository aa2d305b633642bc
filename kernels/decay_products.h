// Between decay_gradient.cu, which chooses, and the products of matrices that find the gradient of a decay.
#pragma once

#include "launch.h"

namespace lasp::gpu {

// Decay per head, or per token and head; runs of at most kDecayProductRun tokens. With `totals` [B, H, T] it writes
// each token's gradient there, to be summed per head; else to d_g.
int launch_decay_products(const DecayGradient &pass, float *totals, Stream stream);
// Floats of workspace that it needs.
int64_t decay_products_workspace(const DecayGradient &pass);
int load_decay_products();

// Decay per channel; runs of at most kChannelProductRun tokens.
int launch_channel_products(const DecayGradient &pass, Stream stream);
int load_channel_products();

// By tensor cores, where the table names them for the pass and its tensors' rows begin on 16 bytes.
namespace mma {
bool takes_decay_products(const DecayGradient &pass);
int launch_decay_products(const DecayGradient &pass, Stream stream);
int load_decay_products();
bool takes_channel_products(const DecayGradient &pass);
int launch_channel_products(const DecayGradient &pass, Stream stream);
int load_channel_products();
}  // namespace mma

}  // namespace lasp::gpu
