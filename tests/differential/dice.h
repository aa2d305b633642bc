// What problems are drawn with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace lasp_test {

// Standard distributions differ between C++ libraries; these do not.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t index) : engine_(seed * 0x9e3779b97f4a7c15ull + index) { engine_.discard(8); }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return between(1, n) == 1; }
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  template <class T, size_t N>
  T one_of(const T (&values)[N]) {
    return values[between(0, N - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace lasp_test
