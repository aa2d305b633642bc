// One rank of a case through the public API, with one plan for many passes that may differ in data and packing, and
// what its tensors are of the whole ones. The rank's tokens may be several runs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <vector>

#include "support/group.h"
#include "support/guarded_buffer.h"
#include "support/packing.h"

namespace lasp_test {

struct Pass {
  Case c;  // with the offsets
  CaseData data;
  Expected expected;
};
Pass make_pass(Case c, std::vector<int64_t> offsets, uint64_t seed);

class PassRank {
 public:
  struct Options {
    int32_t schedule = LASP_SCHEDULE_AUTO, verify = 0, threads = 1;
    int64_t max_sequences = 0;
  };
  PassRank(const Case &c, lasp_comm *comm, const Options &options);
  ~PassRank();
  PassRank(const PassRank &) = delete;
  PassRank &operator=(const PassRank &) = delete;

  // Forward, forward again from the cache, and backward. What is padding holds NaN, all that is written too, and so
  // do states that are not there. `narrow`: offsets of int32.
  lasp_status run(const Pass &pass, bool narrow);
  bool within_bounds() const { return cache_->canaries_intact() && work_->canaries_intact(); }
  // "" or what the last run did otherwise than it should.
  const std::string &complaints() const { return complaints_; }

  int32_t rank = 0, nranks = 1;
  std::vector<TokenRun> runs;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  std::array<std::vector<float>, kTensors> out;

 private:
  std::vector<float> mine(const Case &c, const std::vector<float> &whole) const;
  lasp_buffer to(TensorId id);

  const Options options_;
  lasp_comm *comm_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  std::string complaints_;
  std::vector<float> q_, k_, v_, g_, beta_, d_o_, initial_, d_final_;
  std::unique_ptr<GuardedBuffer> cache_, work_;
};

// Puts a rank's tensors into the whole ones, which are NaN where no rank has put anything.
void put_together(const Pass &pass, const PassRank &rank, TensorSet &whole);
// "" or a line for each tensor that is wrong; of padding everything but zero is.
std::string compare_pass(const Pass &pass, const TensorSet &found);

}  // namespace lasp_test
