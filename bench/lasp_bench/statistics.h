// Order statistics of a few measured times.
#pragma once

#include <vector>

namespace bench {

struct Statistics {
  double median = 0, p99 = 0, minimum = 0;
  double spread = 0;  // interquartile range over median
};
// The value below which a share `p` of the samples lies, linear between neighbours. `sorted` is not empty.
double quantile(const std::vector<double> &sorted, double p);
Statistics summarize(std::vector<double> samples);

}  // namespace bench
