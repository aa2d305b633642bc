// Training steps whose results are known exactly: the soak's model. The parameters are q, k and v themselves, whole
// numbers of size 1 at most; the loss is the sum of |o - target|, its gradient the sign. Without decay every sum is
// a whole number below 2^24, so float32 holds it exactly and all groups must agree bit for bit. So must all groups
// where the problem has a segment, because their sums have one order.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "worker.h"

namespace endurance {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(engine_() % static_cast<uint64_t>(most - least + 1));
  }

 private:
  std::mt19937_64 engine_;
};

// One step: what goes in, and what comes out, of the whole sequence or of one rank's tokens.
struct Step {
  std::vector<float> q, k, v, d_o;
  std::vector<float> o, final_state, dq, dk, dv;
  double loss = 0;
};

struct Training {
  Shape shape;  // of one rank that holds everything
  std::vector<float> decay, target;
  std::vector<Step> steps;
};

// A problem of random size, decay and schedule, its target and its number of steps.
Training draw_training(Random &random);

// Trains on one rank and keeps every step. Throws when a call fails.
void run_alone(Training &training, Random &random);

// The same step on tokens [begin, begin + tokens) of a group's rank; `step` then holds this rank's results.
Answer take_step(Worker &worker, const Training &training, Step &step, int64_t begin, int64_t tokens);

// Throws unless one rank's results of step s, of tokens from `begin` on, are the single rank's.
void compare_part(const Training &training, size_t s, const Step &part, int64_t begin);

// Throws unless the sum of the ranks' losses of step s is the single rank's loss.
void compare_loss(const Training &training, size_t s, double loss);

// Both, of all ranks.
void compare_step(const Training &training, size_t s, const std::vector<std::vector<Step>> &ranks,
                  const std::vector<int64_t> &begin);

}  // namespace endurance
