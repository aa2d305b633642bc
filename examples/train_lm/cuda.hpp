// The CUDA runtime as the rest of the program needs it, with its errors as exceptions.
#pragma once

#include <string>

namespace train_lm::cuda {

int device_count();    // 0 also where there is no driver
void use(int device);  // makes it this thread's current device
std::string name(int device);

// Throws unless `error`, a cudaError_t, is cudaSuccess.
void check(int error, const char *call);

}  // namespace train_lm::cuda
