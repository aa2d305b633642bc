#include "statistics.h"

#include <algorithm>
#include <cmath>

namespace bench {

double quantile(const std::vector<double> &sorted, double p) {
  const double position = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

Statistics summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  Statistics result;
  result.median = quantile(samples, 0.5);
  result.p99 = quantile(samples, 0.99);
  result.minimum = samples.front();
  result.spread = (quantile(samples, 0.75) - quantile(samples, 0.25)) / result.median;
  return result;
}

}  // namespace bench
