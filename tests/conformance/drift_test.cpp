// Long sequences under decays near 1. A chunk's factor exp(sum of g), rounded to float32, is wrong by up to 2^-25
// and by the same amount in every chunk, so that n chunks would add it up n times. Neither that nor the roundings
// of as many sums may show. LASP_TEST_DRIFT_TOKENS in the environment sets the length (make check-long takes
// 4,000,000).
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <string>

#include "support/group_params.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

int64_t tokens_of_run() {
  if (const char *tokens = std::getenv("LASP_TEST_DRIFT_TOKENS")) return std::atoll(tokens);
  return quick_run() ? 20'011 : 60'011;
}

// How a plan finds its states. On one rank and thread it walks along the sequence; with more threads than sequences
// and heads, and on several ranks, each chunk's part is found by itself and a scan follows.
struct Way {
  const char *name;
  int32_t nranks, schedule, cpu_threads, cache;
  int64_t segment_chunks;  // Problem::segment in chunks
};
constexpr Way kWays[] = {
    {"walk", 1, LASP_SCHEDULE_AUTO, 1, LASP_CACHE_CHUNKS, 0},
    {"scan", 1, LASP_SCHEDULE_AUTO, 3, LASP_CACHE_INCOMING, 0},
    {"ring", 3, LASP_SCHEDULE_RING, 1, LASP_CACHE_CHUNKS, 0},
    {"doubling", 7, LASP_SCHEDULE_DOUBLING, 1, LASP_CACHE_INCOMING, 0},
    {"all_scan", 40, LASP_SCHEDULE_ALL_SCAN, 1, LASP_CACHE_INCOMING, 0},
    {"segment", 3, LASP_SCHEDULE_RING, 1, LASP_CACHE_CHUNKS, 100},
};

struct Decay {
  const char *name;
  int32_t kind;
  double g;
};
void PrintTo(const Decay &decay, std::ostream *out) { *out << decay.name; }

class Drift : public testing::TestWithParam<Decay> {};

// The parts of a state keep their own errors: float32 sums over one chunk, and factors within it that are wrong by
// 16 roundings of an exponential near 1 at most (channel), 16 u / 2 = 4.8e-7. Beyond the chunk nothing adds up but
// one rounding of the state for each rank and segment, u sqrt(n / 6), 3e-7 for 130 of them. An element of q, k, v
// or a state counts as much as any other, so the 64 elements of a state may err by a few times their mean. The
// gradient of the decay is a product of two states of which part cancels.
double bound(int tensor) {
  if (tensor == kFinalState) return 2e-6;
  return tensor == kDDecay ? 1e-5 : 3e-6;
}

TEST_P(Drift, IsNoneUnderWeakDecay) {
  const Decay &decay = GetParam();
  Case c;
  c.name = decay.name;
  c.tokens = tokens_of_run();
  c.heads_q = c.heads_k = c.heads_v = 1;
  c.head_dim_k = c.head_dim_v = 8;
  c.decay = decay.kind;
  c.constant_decay = decay.g;
  const CaseData data = make_data(c);
  const Expected expected = expected_of(c, data);
  for (const Way &way : kWays) {
    if (on_cuda() && way.segment_chunks > 0) continue;  // a GPU refuses it
    for (const int32_t chunk : {16, 128}) {
      c.chunk = chunk;
      c.cpu_threads = way.cpu_threads;
      c.cache = way.cache;
      c.segment = way.segment_chunks * chunk;
      RunOptions options;
      options.schedule = way.schedule;
      const Outputs out = run_case(c, data, Transport::threads, way.nranks, options);
      ASSERT_EQ(out.complaints, "") << way.name;
      for (int tensor = 0; tensor < kTensors; ++tensor) {
        const std::vector<double> &wanted = expected.tensors[tensor];
        const double size = tensor == kDDecay ? expected.d_decay_size : 0.0;
        EXPECT_LE(relative_error(wanted, out.tensors[tensor], size), bound(tensor))
            << kTensorNames[tensor] << ", " << way.name << ", chunks of " << chunk;
      }
    }
  }
}

// A state of 1 to which every chunk adds 2^-25, a quarter of its last place in float32: rounded after each chunk,
// it would stay 1. It is rounded where it enters the last chunk and when it is written.
TEST(DriftOfSums, WhatAChunkAddsIsNotRoundedAway) {
  if (on_cuda()) GTEST_SKIP() << "a GPU rounds the running state after each chunk";
  Case c;
  c.name = "small_tokens";
  c.tokens = tokens_of_run();
  c.heads_q = c.heads_k = c.heads_v = 1;
  c.head_dim_k = c.head_dim_v = 8;
  c.scale = 1.0f;
  c.chunk = 16;
  CaseData data = make_data(c);
  for (std::vector<float> *small : {&data.q, &data.k}) small->assign(small->size(), 0x1p-14f);
  for (std::vector<float> *small : {&data.v, &data.d_o}) small->assign(small->size(), 0x1p-15f);
  for (std::vector<float> *state : {&data.initial_state, &data.d_final_state}) state->assign(state->size(), 1.0f);
  const double wanted = 1.0 + static_cast<double>(c.tokens) * 0x1p-29;
  for (const int32_t threads : {1, 3}) {
    c.cpu_threads = threads;
    const Outputs out = run_case(c, data, Transport::threads, 1, {});
    ASSERT_EQ(out.complaints, "");
    for (const TensorId tensor : {kFinalState, kDInitialState})
      for (const double element : out.tensors[tensor])
        ASSERT_NEAR(element, wanted, 2 * 0x1p-24) << kTensorNames[tensor] << ", " << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Weak, Drift,
    testing::Values(Decay{"head_1e_9", LASP_DECAY_HEAD, -1e-9}, Decay{"head_3e_9", LASP_DECAY_HEAD, -3e-9},
                    Decay{"head_1e_7", LASP_DECAY_HEAD, -1e-7}, Decay{"head_1e_6", LASP_DECAY_HEAD, -1e-6},
                    Decay{"head_1e_5", LASP_DECAY_HEAD, -1e-5}, Decay{"head_1e_3", LASP_DECAY_HEAD, -1e-3},
                    Decay{"scalar_1e_6", LASP_DECAY_SCALAR, -1e-6}, Decay{"scalar_1e_4", LASP_DECAY_SCALAR, -1e-4},
                    Decay{"channel_1e_6", LASP_DECAY_CHANNEL, -1e-6},
                    Decay{"channel_1e_4", LASP_DECAY_CHANNEL, -1e-4}, Decay{"none", LASP_DECAY_NONE, 0.0}),
    [](const auto &test) { return std::string(test.param.name); });

}  // namespace
}  // namespace lasp_test
