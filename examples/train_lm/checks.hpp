// Self-checks of the trainer, each a test. They print what they measured and return whether it holds.
#pragma once

#include "options.hpp"

namespace train_lm {

bool check_gradients(const Options &options);
bool check_exchange(const Options &options);
bool check_decoding(const Options &options);
bool check_device(const Options &options);  // of the GPU

}  // namespace train_lm
