// Rates of arithmetic on a CPU that other programs use too, for cpu_kernels and cpu_products.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>

namespace lasp {

struct Rate {
  double wall = 0, processor = 0;  // GFLOP/s; the latter of all threads together, had each its own core
};

inline double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The rates of one run of `flop` operations.
template <class Body>
Rate rate_of(double flop, int threads, Body &&body) {
  const double processor = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {flop / wall.count() * 1e-9, flop * threads / (processor_seconds() - processor) * 1e-9};
}

// The best of several runs, after one that is not counted.
template <class Body>
Rate best_rate(double flop, int threads, int repeats, Body &&body) {
  body();
  Rate best;
  for (int i = 0; i < repeats; ++i) {
    const Rate rate = rate_of(flop, threads, body);
    best = {std::max(best.wall, rate.wall), std::max(best.processor, rate.processor)};
  }
  return best;
}

}  // namespace lasp
