// The steps and their comparison.
#include "training.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace endurance {
namespace {

constexpr int64_t kMostTokens = 96;
constexpr int32_t kDim = 8;

std::vector<float> whole_numbers(Random &random, size_t count, int64_t most) {
  std::vector<float> x(count);
  for (float &value : x) value = static_cast<float>(random.between(-most, most));
  return x;
}

double loss_of(const std::vector<float> &o, const float *target) {
  double loss = 0;
  for (size_t i = 0; i < o.size(); ++i) loss += std::fabs(double(o[i]) - double(target[i]));
  return loss;
}

std::vector<float> signs(const std::vector<float> &o, const float *target) {
  std::vector<float> d_o(o.size());
  for (size_t i = 0; i < o.size(); ++i) d_o[i] = float(o[i] > target[i]) - float(o[i] < target[i]);
  return d_o;
}

// One step down, for a quarter of the parameters, staying within -1 .. 1.
void descend(std::vector<float> &x, const std::vector<float> &dx, Random &random) {
  for (size_t i = 0; i < x.size(); ++i)
    if (random.between(0, 3) == 0)
      x[i] = std::fmin(1.0f, std::fmax(-1.0f, x[i] - (float(dx[i] > 0) - float(dx[i] < 0))));
}

void must(const Answer &answer) {
  if (answer.status != LASP_OK) throw std::runtime_error("one rank: " + answer.sentence);
}

std::vector<float> slice(const std::vector<float> &x, size_t begin, size_t count) {
  const auto first = x.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

size_t token_decays(const Shape &shape) {
  return shape.decay == LASP_DECAY_SCALAR    ? static_cast<size_t>(shape.heads)
         : shape.decay == LASP_DECAY_CHANNEL ? static_cast<size_t>(shape.heads * shape.dim)
                                             : 0;
}

// Every term of every sum is a product of numbers of size 1 at most, over at most `tokens` tokens and kDim
// channels; each result takes part in that many roundings, and in some for the decays, which are powers of sums.
double bound_of(const Shape &shape) {
  if (shape.exact()) return 0;
  const double terms = double(shape.tokens) * kDim;
  return 2 * (double(shape.tokens) + kDim + 64) * std::ldexp(1.0, -24) * terms;
}

void compare(const char *what, size_t s, const float *x, const std::vector<float> &part, double bound) {
  for (size_t i = 0; i < part.size(); ++i) {
    const bool same = bound == 0 ? std::memcmp(&x[i], &part[i], sizeof(float)) == 0 || x[i] == part[i]
                                 : std::fabs(double(x[i]) - double(part[i])) <= bound;
    if (!same)
      throw std::runtime_error(std::string(what) + " of step " + std::to_string(s) + " at " + std::to_string(i) +
                               ": " + std::to_string(x[i]) + " on one rank, " + std::to_string(part[i]) +
                               " in the group, allowed " + std::to_string(bound));
  }
}

}  // namespace

Training draw_training(Random &random) {
  Training t;
  t.shape.tokens = random.between(1, kMostTokens);
  t.shape.heads = static_cast<int32_t>(random.between(1, 3));
  t.shape.dim = kDim;
  // Half without decay: those are compared bit for bit.
  const int32_t kinds[] = {LASP_DECAY_NONE, LASP_DECAY_NONE,   LASP_DECAY_NONE,
                           LASP_DECAY_HEAD, LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL};
  t.shape.decay = kinds[random.between(0, 5)];
  t.shape.schedule = kSchedules[random.between(0, 3)];
  t.shape.cache = random.between(0, 1) == 0 ? LASP_CACHE_INCOMING : LASP_CACHE_CHUNKS;
  t.shape.broadcast = true;
  if (random.between(0, 2) == 0) {
    t.shape.segment = 16 * random.between(1, 2);
    t.shape.schedule = random.between(0, 1) == 0 ? LASP_SCHEDULE_RING : LASP_SCHEDULE_ALL_SCAN;
  }
  const size_t decays = t.shape.decay == LASP_DECAY_HEAD ? static_cast<size_t>(t.shape.heads)
                                                         : token_decays(t.shape) * size_t(t.shape.tokens);
  t.decay = whole_numbers(random, decays, 8);
  for (float &g : t.decay) g = -std::fabs(g) / 64;
  t.target = whole_numbers(random, t.shape.floats(), 32);
  t.steps.resize(static_cast<size_t>(random.between(1, 8)));
  return t;
}

void run_alone(Training &training, Random &random) {
  lasp_comm *comm = nullptr;
  if (lasp_comm_create_self(&comm) != LASP_OK) throw std::runtime_error(lasp_last_error());
  Worker worker(comm);
  must(worker.open(0));
  must(worker.plan(training.shape));
  Step next;
  for (std::vector<float> *x : {&next.q, &next.k, &next.v}) *x = whole_numbers(random, training.shape.floats(), 1);
  for (Step &step : training.steps) {
    step.q = next.q, step.k = next.k, step.v = next.v;
    must(take_step(worker, training, step, 0, training.shape.tokens));
    descend(next.q, step.dq, random);
    descend(next.k, step.dk, random);
    descend(next.v, step.dv, random);
  }
  must(worker.close());
}

// Where decays make results inexact, a sign could differ by a rounding: the group then takes the single rank's.
Answer take_step(Worker &worker, const Training &training, Step &step, int64_t begin, int64_t tokens) {
  const Shape &shape = training.shape;
  const size_t row = static_cast<size_t>(shape.heads * shape.dim), first = static_cast<size_t>(begin) * row,
               count = static_cast<size_t>(tokens) * row;
  worker.q = slice(step.q, first, count);
  worker.k = slice(step.k, first, count);
  worker.v = slice(step.v, first, count);
  const size_t decays = token_decays(shape);
  worker.decay = shape.decay == LASP_DECAY_HEAD ? training.decay
                                                : slice(training.decay, static_cast<size_t>(begin) * decays,
                                                        static_cast<size_t>(tokens) * decays);
  Answer answer = worker.forward();
  if (answer.status != LASP_OK) return answer;
  const float *target = training.target.data() + first;
  step.loss = loss_of(worker.o, target);
  const bool given = !shape.exact() && !step.d_o.empty();
  worker.d_o = given ? slice(step.d_o, first, count) : signs(worker.o, target);
  answer = worker.backward();
  if (answer.status != LASP_OK) return answer;
  step.d_o = worker.d_o;
  step.o = worker.o, step.final_state = worker.final_state;
  step.dq = worker.dq, step.dk = worker.dk, step.dv = worker.dv;
  return answer;
}

void compare_part(const Training &training, size_t s, const Step &part, int64_t begin) {
  const Step &one = training.steps[s];
  const double bound = bound_of(training.shape);
  const size_t first = static_cast<size_t>(begin * training.shape.heads * training.shape.dim);
  compare("o", s, one.o.data() + first, part.o, bound);
  compare("dq", s, one.dq.data() + first, part.dq, bound);
  compare("dk", s, one.dk.data() + first, part.dk, bound);
  compare("dv", s, one.dv.data() + first, part.dv, bound);
  compare("final_state", s, one.final_state.data(), part.final_state, bound);
}

void compare_loss(const Training &training, size_t s, double loss) {
  const Step &one = training.steps[s];
  // The sum itself is one of float64 numbers, in another order; of whole numbers it is exact.
  const bool whole = training.shape.decay == LASP_DECAY_NONE;
  const double order = whole ? 0 : std::ldexp(double(one.o.size()), -53) * one.loss;
  if (!(std::fabs(loss - one.loss) <= bound_of(training.shape) * double(one.o.size()) + order))
    throw std::runtime_error("loss of step " + std::to_string(s) + ": " + std::to_string(one.loss) +
                             " on one rank, " + std::to_string(loss) + " in the group");
}

void compare_step(const Training &training, size_t s, const std::vector<std::vector<Step>> &ranks,
                  const std::vector<int64_t> &begin) {
  double loss = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    compare_part(training, s, ranks[r][s], begin[r]);
    loss += ranks[r][s].loss;
  }
  compare_loss(training, s, loss);
}

}  // namespace endurance
