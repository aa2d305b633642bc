// The errors of a case of delta_fast_test.cpp: of each result the root of its squares over the right ones'.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace lasp::gpu {

struct Errors {
  struct Sum {
    std::string name;
    double limit = 0, error = 0, size = 0;
    int64_t bad = 0;
  };
  std::vector<Sum> sums;
  void add(const std::string &name, double limit, double found, double right) {
    auto s = std::find_if(sums.begin(), sums.end(), [&](const Sum &x) { return x.name == name; });
    if (s == sums.end()) s = sums.insert(sums.end(), Sum{name, limit});
    if (!std::isfinite(found)) {
      ++s->bad;
      return;
    }
    s->error += (found - right) * (found - right), s->size += right * right;
  }
  bool print(const char *name) const {
    bool good = true;
    std::printf("%-34s", name);
    for (const Sum &s : sums) {
      const double e = std::sqrt(s.error / std::max(s.size, 1e-300));
      const bool fine = s.bad == 0 && e <= s.limit;
      good &= fine;
      std::printf(" %s %.1e%s", s.name.c_str(), e, fine ? "" : s.bad ? " NOT FINITE" : " WRONG");
    }
    std::printf("\n");
    std::fflush(stdout);
    return good;
  }
};

}  // namespace lasp::gpu
