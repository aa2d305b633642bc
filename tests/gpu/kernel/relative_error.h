// What the kernel tests measure errors with.
#pragma once

#include <cmath>

namespace lasp::gpu {

// The norm of all differences over the norm of what was wanted. NaN where NaN was wanted is no difference.
struct RelativeError {
  double difference = 0, norm = 0;
  void add(double got, double want) { add(got, want, want); }
  void add(double got, double want, double size) {  // that it is measured against
    if (std::isnan(want) && std::isnan(got)) return;
    difference += (got - want) * (got - want);
    norm += size * size;
  }
  // Absolute where the norm is of numbers that float32 does not hold.
  double relative() const { return norm > 1e-60 ? std::sqrt(difference / norm) : std::sqrt(difference); }
};

}  // namespace lasp::gpu
