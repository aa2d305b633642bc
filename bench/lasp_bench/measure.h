// Measures one configuration: correctness, times, traffic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"
#include "group.h"
#include "rank_case.h"
#include "statistics.h"

namespace bench {

struct MeasureSettings {
  int repeats = 10;  // at least so many measured calls
  int warmup = 2;
  double min_time = 0.2;  // and at least so many seconds of them
  int layers = 0;         // passes of a step, each way, that is timed as a whole; 0: none is
  bool check = true;
  bool sgemm = true, copy = true;  // the yardsticks, of CPUs and of GPUs
  int cpus = 1;
};

// What is counted per call, by rank.
struct Traffic {
  std::vector<uint64_t> bytes, formula_bytes, messages, formula_messages;
  std::vector<double> wait_share;  // of the time in the call, blocked in the transport
  bool agrees() const { return bytes == formula_bytes && messages == formula_messages; }
  uint64_t most_bytes() const;
  uint64_t most_messages() const;
  double mean_wait_share() const;
};

// A call; or both passes of a layer, as a part of a step of several layers.
enum class Timed { kForward, kBackward, kLayer };
const char *name_of(Timed timed);

struct PassResult {
  Timed timed = Timed::kForward;
  std::vector<double> seconds;  // of each, of the slowest rank
  Statistics statistics;
  double flop = 0;  // of one, counted
  Traffic traffic;
  double floor_bytes = 0, floor_units = 0;  // on a GPU: see RankCase::floor_bytes; of one GPU, the busiest

  double gbs() const { return floor_bytes / statistics.median * 1e-9; }
  double gflops() const { return flop / statistics.median * 1e-9; }
};

struct Result {
  Config config;
  std::string refused;                        // why the library would not; then nothing below holds
  lasp_plan_info info = LASP_PLAN_INFO_INIT;  // rank 0's
  uint64_t workspace_forward_bytes = 0, workspace_backward_bytes = 0, state_cache_bytes = 0;  // largest rank's
  uint64_t workspace_bytes(Timed timed) const;
  std::vector<PassResult> passes;
  std::vector<double> sgemm_gflops;  // samples, before and after
  int sgemm_threads = 0;
  std::string gpu, kernels;           // on a GPU
  std::vector<double> copy_gbs;       // samples of rank 0's GPU, before and after
  Errors errors{-1, -1, -1, -1, -1};  // largest over ranks
  double tolerance = 0;
  std::string not_checked;

  double largest_error() const;
  bool checked() const { return largest_error() >= 0; }
  bool correct() const { return largest_error() <= tolerance; }  // also where nothing was checked
  bool traffic_agrees() const;
  double copy() const { return copy_gbs.empty() ? 0 : summarize(copy_gbs).median; }
  double share_of_floor(const PassResult &pass) const { return pass.gbs() / copy(); }
  double sgemm() const { return sgemm_gflops.empty() ? 0 : summarize(sgemm_gflops).median; }
};

// The result is complete where group.is_speaker().
Result measure(Group &group, const Config &config, const MeasureSettings &settings);

}  // namespace bench
