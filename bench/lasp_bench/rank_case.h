// One rank of one configuration: context, plan and buffers; runs the passes and compares the results.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "config.h"
#include "device_mirror.h"
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

  const Config &config() const { return config_; }
  const lasp_plan_info &info() const { return info_; }
  lasp_traffic traffic() const;

  // On a GPU: enqueues on device().stream().
  void forward();
  void backward();
  // Null on the CPU.
  DeviceMirror *device() const { return device_.get(); }
  // What the plan says of the kernels it chose.
  std::string kernels() const;
  std::vector<const Memory *> inputs() const { return {&q_, &k_, &v_, &decay_, &beta_, &d_o_}; }
  std::vector<const Memory *> outputs() const { return {&o_, &dq_, &dk_, &dv_, &d_decay_, &d_beta_}; }
  // Bytes that any implementation must move: each input read once, each output written once.
  size_t floor_bytes(bool backward) const;
  size_t output_bytes() const { return o_.bytes(); }
  // Makes every output a NaN, so that what a later pass does not write is noticed.
  void spoil_outputs();
  // Collective: compares what the last passes wrote. Infinite where any element of an output is not finite, whether
  // or not the reference covers it.
  Errors compare(const Reference &reference);

 private:
  lasp_buffer buffer(const Memory &memory) const { return device_ ? device_->buffer(memory) : memory.buffer(); }
  lasp_const_buffer const_buffer(const Memory &memory) const {
    const lasp_buffer b = buffer(memory);
    return {b.data, b.bytes};
  }
  lasp_stream stream() const { return device_ ? device_->stream() : nullptr; }
  void spoil(const Memory &memory);
  double error_of(const std::vector<Sample> &samples, const Memory &memory, int32_t heads, int32_t width) const;
  double decay_error(const Reference &reference);

  Link &link_;
  const Config config_;
  int64_t first_token_, end_token_;
  ContextHandle context_;
  PlanHandle plan_;
  lasp_plan_info info_ = LASP_PLAN_INFO_INIT;
  Memory q_, k_, v_, decay_, beta_, d_o_;
  Memory o_, dq_, dk_, dv_, d_decay_, d_beta_;
  Memory cache_, workspace_;
  std::unique_ptr<DeviceMirror> device_;
};

}  // namespace bench
