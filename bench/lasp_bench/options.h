// The command line of lasp-bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"
#include "fit.h"
#include "measure.h"

namespace bench {

enum class Mode { kMeasure, kCheck, kMemory, kModel, kCalibrate, kFit, kVersion, kHelp };
enum class Transport { kThreads, kMpi, kNccl };

inline constexpr std::array kShardings = {Named{"ddp", static_cast<int32_t>(Sharding::kDdp)},
                                          Named{"zero", static_cast<int32_t>(Sharding::kZero)},
                                          Named{"fsdp2", static_cast<int32_t>(Sharding::kFsdp2)}};

struct FitOptions {
  std::string name;  // as given: 1b, small, or the model's numbers
  FitModel model;
  int64_t gpus = 1, tokens = 0, segment = 0;  // 0: found
  double gpu_memory_gib = 80;
  Sharding sharding = Sharding::kDdp;
  double tflops = 540;  // bench/results/gpu-2026-11-22-h200-long-one.json, 4,194,304 tokens
};

// Lists are swept: every combination is measured.
struct Options {
  Mode mode = Mode::kMeasure;
  std::vector<int64_t> batch = {1}, tokens = {16384}, heads = {8}, head_dim_k = {128}, head_dim_v = {128};
  int64_t heads_q = 0, heads_k = 0, heads_v = 0;  // 0: as heads
  bool tokens_per_rank = false;
  std::vector<int64_t> ranks, threads;  // empty: chosen
  std::vector<int64_t> chunk = {0}, segment = {0};
  std::vector<int32_t> decay = {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL};
  std::vector<int32_t> schedule = {LASP_SCHEDULE_AUTO}, dtype = {LASP_FLOAT32}, cache = {LASP_CACHE_CHUNKS};
  std::vector<int32_t> mask = {LASP_MASK_CAUSAL};
  std::vector<int32_t> write = {LASP_WRITE_ADDITIVE};
  Passes passes = Passes::kBoth;
  Transport transport = Transport::kThreads;
  int32_t device = LASP_DEVICE_CPU;
  bool decay_gradient = true, rounded_decay = false;
  bool graph = false;
  bool thread_sweep = false;
  MeasureSettings settings;
  double latency_us = 0, bandwidth_gbs = 0;  // of --model; 0: measured
  FitOptions fit;
  std::string json, svg, commit;
  bool models = false;       // --shapes models, in place of the lists
  int64_t model_tokens = 0;  // of each of them; 0: its own
};

// Throws UsageError with a sentence that names the option.
Options parse_options(int argc, const char *const *argv);
const char *help_text();

// The combinations to measure, in the order of the output. `cpus` and `default_ranks` fill in what was left open.
// A sweep leaves out what does not exist (bidirectional with decay) or repeats (a group of one by another
// schedule).
std::vector<Config> make_configs(const Options &options, int cpus, int default_ranks);
// Those of --shapes models.
std::vector<Config> model_configs(const Options &options, int cpus);

}  // namespace bench
