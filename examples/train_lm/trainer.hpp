// One training run over all ranks of a split, and what was measured in it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "options.hpp"
#include "parameters.hpp"
#include "ranks.hpp"
#include "text.hpp"

namespace train_lm {

struct StepRecord {
  double loss = 0.0;      // mean over all tokens, before the step, in nats
  double rate = 0.0;      // learning rate
  double norm = 0.0;      // of the gradient, before clipping
  double norm_one = 0.0;  // 1-norm of the same
  double seconds = 0.0;
};

struct RankRecord {
  double peak_bytes = 0.0;       // of everything the rank allocated on its device, liblasp's buffers included
  double workspace_bytes = 0.0;  // liblasp's workspace
  double cache_bytes = 0.0;      // liblasp's state caches
  double sent_bytes = 0.0;       // put on the transport, per step and layer: counted
  double planned_bytes = 0.0;    // the same, by the plan's formula
  double wait_seconds = 0.0;     // blocked in the transport, over the run
};

struct RunResult {
  Split split;
  std::string transport, schedule;
  std::string device;  // "CPU", or the name of rank 0's GPU
  std::string dtype;   // of activations
  int chunk = 0, threads_per_rank = 1;
  std::size_t parameters = 0;
  std::vector<StepRecord> steps;
  std::vector<RankRecord> ranks;
  std::string prompt, sample;

  double tokens_per_second(std::int64_t tokens_per_step) const;
};

struct RunRequest {
  Split split;
  Transport transport = Transport::threads;
  Place place;  // of which kind
  bool sample = false;
  bool drop_exchange = false;  // every rank is a group of one: the incoming states are zero
  double perturbation = 0.0;   // relative, of the initial parameters
};

// Called on rank 0 for each step; on a GPU some time after it, as the host does not wait for each.
using Observer = std::function<void(int step, const StepRecord &record)>;

// This rank's run of a sequence's tokens; ranks differ by at most one token.
struct TokenRange {
  std::int64_t begin, count;
};
TokenRange token_range(std::int64_t tokens, int rank, int ranks);

Shape shape_of(const Options &options);
Place kind_of(const Options &options);  // where ranks compute
int cpu_count();

// Filled on rank 0. With Transport::mpi collective over the processes; with threads a run within this one.
RunResult train(const Options &options, const Text &text, const RunRequest &request, const Observer &observer);

}  // namespace train_lm
