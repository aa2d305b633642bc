// The few functions of the CUDA runtime that this program needs, with its errors as exceptions. cuda.cpp has them;
// cuda_absent.cpp stands in where the CUDA toolkit was not found, and answers with a sentence.
#pragma once

#include <lasp/lasp.h>

#include <cstddef>
#include <string>

namespace train_lm::cuda {

int device_count();    // 0 also where there is no driver
void use(int device);  // makes it this thread's current device
std::string name(int device);

// Streams that do not wait for the default stream.
lasp_stream make_stream();
void destroy_stream(lasp_stream stream) noexcept;
bool is_idle(lasp_stream stream);

void *allocate(std::size_t bytes);
void release(void *data) noexcept;

// Between host and device memory, either way, or within the device. When it returns, host memory that was read may
// be written again; what was written is there once the stream is idle.
void copy(void *to, const void *from, std::size_t bytes, lasp_stream stream);

}  // namespace train_lm::cuda
