// What the kernel tests measure with: medians of a kernel's time, and memory filled with normal numbers.
#pragma once

#include <algorithm>
#include <cstdio>
#include <random>

#include "device_memory.h"

namespace lasp::gpu {

// Of 30 runs after three.
template <typename F>
double median_ms(F run) {
  std::vector<float> times;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  for (int i = 0; i < 33; ++i) {
    check(cudaEventRecord(begin), "record");
    run();
    check(cudaEventRecord(end), "record");
    check(cudaEventSynchronize(end), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(ms);
  }
  check(cudaEventDestroy(begin), "event");
  check(cudaEventDestroy(end), "event");
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// With bfloat16 numbers, the same for all.
inline void fill_random(const DeviceMemory &memory) {
  static const std::vector<uint16_t> block = [] {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> x(1 << 20);
    for (uint16_t &v : x) v = round_to(DType::kBFloat16, normal(random));
    return x;
  }();
  for (size_t at = 0; at < memory.bytes; at += block.size() * 2)
    check(cudaMemcpy(static_cast<char *>(memory.data) + at, block.data(),
                     std::min(block.size() * 2, memory.bytes - at), cudaMemcpyHostToDevice),
          "fill");
}

// Of a copy on the device, read and written: the floor that times are shares of. Says so.
inline double copy_bytes_per_ms() {
  DeviceMemory from(size_t{1} << 29), to(size_t{1} << 29);
  fill_random(from);
  const double ms =
      median_ms([&] { check(cudaMemcpyAsync(to.data, from.data, from.bytes, cudaMemcpyDeviceToDevice), "copy"); });
  const double bytes_per_ms = 2.0 * double(from.bytes) / ms;
  std::printf("device copy %.2f TB/s; times in ms, with the share of the copy floor\n", bytes_per_ms * 1e-9);
  return bytes_per_ms;
}

}  // namespace lasp::gpu
