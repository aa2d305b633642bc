// One rank of one configuration: context, plan and buffers; runs the passes and compares the results.
#pragma once

#include <array>

#include "config.h"
#include "group.h"
#include "inputs.h"
#include "memory.h"
#include "reference.h"

namespace bench {

inline constexpr std::array<const char *, 5> kOutputNames = {"o", "dq", "dk", "dv", "d_decay"};
// Relative Frobenius error of each output, -1 where there is none to compare.
using Errors = std::array<double, kOutputNames.size()>;

class RankCase {
 public:
  // Collective. Throws Refused, on every rank, where the library refuses the plan.
  RankCase(Link &link, const Config &config);
  ~RankCase();
  RankCase(const RankCase &) = delete;
  RankCase &operator=(const RankCase &) = delete;

  const lasp_plan_info &info() const { return info_; }
  lasp_traffic traffic() const;

  void forward();
  void backward();
  // Makes every output a NaN, so that what a later pass does not write is noticed.
  void spoil_outputs();
  // Collective: compares what the last passes wrote. Infinite where any element of an output is not finite, whether
  // or not the reference covers it.
  Errors compare(const Reference &reference);

 private:
  double error_of(const std::vector<Sample> &samples, const Memory &memory, int32_t heads, int32_t width) const;
  double decay_error(const Reference &reference);

  Link &link_;
  const Config config_;
  int64_t first_token_, end_token_;
  ContextHandle context_;
  PlanHandle plan_;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
  Memory q_, k_, v_, decay_, d_o_;
  Memory o_, dq_, dk_, dv_, d_decay_;
  Memory cache_, workspace_;
};

}  // namespace bench
