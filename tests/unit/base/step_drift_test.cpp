// A hundred thousand tokens of lasp_step with decays so near 1 that a rounded exp(g) would show: as good as sums of
// that many float32 numbers are, and the same bits however the tokens are cut into calls.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include <lasp/lasp.h>

#include "support/kinds.h"
namespace lasp {
namespace {

constexpr int32_t kDim = 8, kStates = 5;
constexpr double kLogs[kStates] = {-1e-9, -1e-8, -1e-7, -1e-6, -1e-4};

// Sanitizer builds take fewer.
int64_t tokens_of_run() { return std::getenv("LASP_TEST_QUICK") != nullptr ? 20000 : 100000; }

struct Tokens {
  std::vector<float> q, k, v, g;
};

// Of a decay per channel one head's rows take the kLogs in turn; else each head has one of them.
double log_decay(int32_t decay, int32_t head, int32_t row) {
  return decay == LASP_DECAY_NONE ? 0.0 : kLogs[decay == LASP_DECAY_CHANNEL ? row % kStates : head];
}

Tokens random_tokens(int32_t decay, int64_t count) {
  std::mt19937 engine(7);
  Tokens x;
  for (std::vector<float> *tensor : {&x.q, &x.k, &x.v}) {
    tensor->resize(static_cast<size_t>(count * kStates * kDim));
    for (float &value : *tensor)  // of variance 1; standard distributions differ between libraries
      value = static_cast<float>((static_cast<double>(engine()) * 0x1p-32 - 0.5) * std::sqrt(12.0));
  }
  const int64_t tokens = decay == LASP_DECAY_HEAD ? 1 : decay == LASP_DECAY_NONE ? 0 : count;
  const int32_t rows = decay == LASP_DECAY_CHANNEL ? kDim : 1;
  for (int64_t t = 0; t < tokens; ++t)
    for (int32_t h = 0; h < kStates; ++h)
      for (int32_t r = 0; r < rows; ++r) x.g.push_back(static_cast<float>(log_decay(decay, h, r)));
  return x;
}

// [head, K, V] after all tokens, in float64.
std::vector<double> recurrence(const Tokens &x, int32_t decay, int64_t count) {
  std::vector<double> state(kStates * kDim * kDim);
  for (int32_t h = 0; h < kStates; ++h)
    for (int32_t r = 0; r < kDim; ++r) {
      double *const row = &state[static_cast<size_t>((h * kDim + r) * kDim)];
      const double factor = std::exp(static_cast<double>(static_cast<float>(log_decay(decay, h, r))));
      for (int64_t t = 0; t < count; ++t) {
        const size_t at = static_cast<size_t>((t * kStates + h) * kDim);
        for (int32_t c = 0; c < kDim; ++c)
          row[c] = factor * row[c] + static_cast<double>(x.k[at + r]) * x.v[at + c];
      }
    }
  return state;
}

class Stepper {
 public:
  explicit Stepper(int32_t decay) : decay_(decay) {
    EXPECT_EQ(lasp_comm_create_self(&comm_), LASP_OK);
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 1;
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm_, &options, &context_), LASP_OK);
  }
  ~Stepper() {
    EXPECT_EQ(lasp_context_destroy(context_), LASP_OK);
    EXPECT_EQ(lasp_comm_destroy(comm_), LASP_OK);
  }
  Stepper(const Stepper &) = delete;
  Stepper &operator=(const Stepper &) = delete;

  // The state after `count` tokens in calls of `run` each.
  std::vector<float> state_after(const Tokens &x, int64_t count, int64_t run) {
    lasp_problem p = LASP_PROBLEM_INIT;
    p.tokens = run, p.decay = decay_, p.backward = 0;
    p.heads_q = p.heads_k = p.heads_v = kStates, p.head_dim_k = p.head_dim_v = kDim;
    lasp_plan *plan = nullptr;
    EXPECT_EQ(lasp_plan_create(context_, &p, &plan), LASP_OK) << lasp_last_error();
    const int64_t row = kStates * kDim;
    std::vector<float> state(static_cast<size_t>(row * kDim), 0.0f), o(static_cast<size_t>(run * row));
    const auto bytes = [](const std::vector<float> &tensor) { return tensor.size() * sizeof(float); };
    for (int64_t t = 0; t < count; t += run) {
      const auto from = [&](const std::vector<float> &tensor, int64_t width) {
        return lasp_const_buffer{tensor.data() + t * width, static_cast<size_t>(run * width) * sizeof(float)};
      };
      lasp_step_args args = LASP_STEP_ARGS_INIT;
      args.q = from(x.q, row), args.k = from(x.k, row), args.v = from(x.v, row);
      if (decay_ == LASP_DECAY_HEAD) args.decay = {x.g.data(), bytes(x.g)};
      if (decay_ == LASP_DECAY_SCALAR) args.decay = from(x.g, kStates);
      if (decay_ == LASP_DECAY_CHANNEL) args.decay = from(x.g, row);
      args.state = {state.data(), bytes(state)};
      args.o = {o.data(), bytes(o)};
      EXPECT_EQ(lasp_step(plan, &args, nullptr), LASP_OK) << lasp_last_error();
    }
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
    return state;
  }

 private:
  const int32_t decay_;
  lasp_comm *comm_ = nullptr;
  lasp_context *context_ = nullptr;
};

// A token rounds the state once, by at most u of it and in the mean square u / sqrt(3), in either direction. The
// state sums numbers of random sign, so |S_t| grows as sqrt(t), and the roundings of n tokens add up to
// u sqrt(n / 6) of it, 7.7e-6 for 100,000. Twice that allows for the few (64) numbers of each state. What a factor
// loses at every token in the same direction adds up to n / sqrt(3) times that: 7.6e-4 for the nearest float32 to
// exp(-1e-6), which is wrong by 1.3e-8.
TEST(StepDrift, DecaysNearOneDoNotAddUpTheirRounding) {
  const int64_t count = tokens_of_run();
  const double bound = 2.0 * 0x1p-24 * std::sqrt(static_cast<double>(count) / 6.0);
  for (const int32_t decay : lasp_test::kDecays) {
    const Tokens x = random_tokens(decay, count);
    const std::vector<double> wanted = recurrence(x, decay, count);
    const std::vector<float> state = Stepper(decay).state_after(x, count, 500);
    for (int32_t part = 0; part < kStates; ++part) {
      double error = 0.0, size = 0.0;
      for (size_t i = 0; i < state.size(); ++i) {
        const int32_t head = static_cast<int32_t>(i) / (kDim * kDim), row = static_cast<int32_t>(i) / kDim % kDim;
        if ((decay == LASP_DECAY_CHANNEL ? row % kStates : head) != part) continue;
        error += (state[i] - wanted[i]) * (state[i] - wanted[i]), size += wanted[i] * wanted[i];
      }
      EXPECT_LE(std::sqrt(error / size), bound) << "decay kind " << decay << ", g " << kLogs[part];
    }
  }
}

TEST(StepDrift, CallsOfAnyLengthGiveTheSameBits) {
  for (const int32_t decay : lasp_test::kDecays) {
    const Tokens x = random_tokens(decay, 300);
    Stepper stepper(decay);
    const std::vector<float> whole = stepper.state_after(x, 300, 300);
    for (const int64_t run : {1, 5, 60}) EXPECT_EQ(stepper.state_after(x, 300, run), whole) << decay << " " << run;
  }
}

}  // namespace
}  // namespace lasp
