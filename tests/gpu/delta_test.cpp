// The delta rule on a GPU where the conformance table does not reach: every number of rows that a walk's blocks
// have, long sequences over ranks, and what a plan says.
#include <gtest/gtest.h>

#include <string>

#include "support/group_params.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

Case delta_case(const std::string &name, int32_t decay, int32_t k, int32_t v) {
  Case c;
  c.name = "gpu_delta_" + name + "_" + std::to_string(decay) + "_" + std::to_string(k) + "_" + std::to_string(v);
  c.delta = true, c.decay = decay, c.mean_decay = 0.05, c.head_dim_k = k, c.head_dim_v = v;
  c.heads_q = c.heads_k = c.heads_v = 1;
  return c;
}

void expect_right(const Case &c, int32_t nranks, int32_t schedule = LASP_SCHEDULE_AUTO) {
  RunOptions options;
  options.schedule = schedule;
  const Outputs out =
      run_case(c, cached_data(c), nranks == 1 ? Transport::self : Transport::threads, nranks, options);
  ASSERT_EQ(out.complaints, "") << c.name << " on " << nranks;
  EXPECT_EQ(compare(c, cached_expected(c), out), "") << c.name << " on " << nranks;
}

// A walk's block has 32, 64, 128, 256 or 512 rows, and a stretch's 32 channels at a time.
TEST(DeltaRule, EveryWidth) {
  const std::pair<int32_t, int32_t> shapes[] = {{8, 8},    {32, 40},  {40, 32},  {64, 64},  {72, 24}, {128, 72},
                                                {136, 16}, {256, 40}, {264, 24}, {512, 48}, {24, 512}};
  for (const auto &[k, v] : shapes)
    for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay) {
      Case c = delta_case("width", decay, k, v);
      c.tokens = 300, c.dtype = decay % 2 == 0 ? LASP_FLOAT32 : LASP_BFLOAT16;
      for (const int32_t nranks : {1, 3}) expect_right(c, nranks, LASP_SCHEDULE_DOUBLING);
    }
}

// Many stretches, heads that share others, and states that go through ranks by every schedule.
TEST(DeltaRule, LongGroupsOfHeads) {
  for (const int32_t decay : {LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL})
    for (const int32_t schedule : all_schedules()) {
      Case c = delta_case("long", decay, 64, 32);
      c.tokens = 3000, c.heads_q = 2, c.heads_k = 1, c.heads_v = 4, c.key_correlation = 0.5;
      c.cache = schedule % 2 == 0 ? LASP_CACHE_INCOMING : LASP_CACHE_CHUNKS;
      for (const int32_t nranks : {4, 8}) expect_right(c, nranks, schedule);
    }
}

// Products of maps take their operands a few heads at a time where all of them are too large.
TEST(DeltaRule, MapsInTiles) {
  Case c = delta_case("tiles", LASP_DECAY_NONE, 512, 8);
  c.batch = 2, c.tokens = 60, c.heads_q = c.heads_k = c.heads_v = 9;
  expect_right(c, 4, LASP_SCHEDULE_DOUBLING);
  expect_right(c, 4, LASP_SCHEDULE_ALL_GATHER);
  expect_right(c, 4, LASP_SCHEDULE_HEAD_SCATTER);
}

Case wide_case(const std::string &name, int32_t decay, int32_t k = 128, int32_t v = 128) {
  Case c = delta_case(name, decay, k, v);
  c.dtype = decay == LASP_DECAY_HEAD ? LASP_FLOAT16 : LASP_BFLOAT16, c.aligned = true;
  return c;
}

// Several checkpoints on each rank, heads that share others, states that go through ranks, and outputs again from
// the state cache, whose bits are the same.
TEST(DeltaRule, OnTensorCores) {
  for (const int32_t decay : {LASP_DECAY_NONE, LASP_DECAY_HEAD, LASP_DECAY_SCALAR})
    for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING})
      for (const int32_t nranks : {1, 4}) {
        const bool narrow = (cache == LASP_CACHE_CHUNKS) == (nranks == 1);
        Case c = wide_case("tensor_cores_" + std::to_string(cache), decay, narrow ? 64 : 128,
                           narrow && decay == LASP_DECAY_SCALAR ? 64 : 128);
        c.tokens = 2100, c.heads_v = 2, c.cache = cache, c.aligned = decay != LASP_DECAY_NONE;
        RunOptions options;
        options.recompute = true, options.repeats = 2;
        options.schedule = cache == LASP_CACHE_CHUNKS ? LASP_SCHEDULE_DOUBLING : LASP_SCHEDULE_RING;
        const Outputs out =
            run_case(c, cached_data(c), nranks == 1 ? Transport::self : Transport::threads, nranks, options);
        ASSERT_EQ(out.complaints, "") << c.name << " on " << nranks;
        EXPECT_EQ(compare(c, cached_expected(c), out), "") << c.name << " on " << nranks;
        EXPECT_TRUE(out.tensor_cores) << c.name;
      }
}

// So long that runs are walked in parts: eagerly and as a graph, to the same bits.
TEST(DeltaRule, PartsInAGraph) {
  Case c = wide_case("parts", LASP_DECAY_SCALAR);
  c.tokens = 8500, c.mean_decay = 0.01;
  for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING}) {
    c.cache = cache;
    RunOptions options;
    options.graph_replays = 2, options.recompute = true;
    const Outputs out = run_case(c, cached_data(c), Transport::self, 1, options);
    ASSERT_EQ(out.complaints, "");
    EXPECT_EQ(compare(c, cached_expected(c), out), "");
    EXPECT_TRUE(out.tensor_cores);
  }
}

// So many heads that checkpoints stand before every 512 tokens.
TEST(DeltaRule, LongStretches) {
  for (const int32_t decay : {LASP_DECAY_SCALAR, LASP_DECAY_CHANNEL}) {
    Case c = wide_case("stretches", decay);
    c.tokens = 2048, c.heads_q = c.heads_k = c.heads_v = 32, c.mean_decay = 0.01;
    expect_right(c, 1);
  }
}

// And on ranks between others, whose own map is found by parts, too.
TEST(DeltaRule, PartsOnRanks) {
  for (const auto &[k, v] : {std::pair{128, 128}, std::pair{64, 128}}) {
    Case c = wide_case("parts_on_ranks", LASP_DECAY_NONE, k, v);
    c.tokens = 9000, c.most_beta = 0.5;
    for (const int32_t schedule : {LASP_SCHEDULE_DOUBLING, LASP_SCHEDULE_RING}) expect_right(c, 3, schedule);
  }
}

// Two groups of contexts that know nothing of each other compose dense maps on the GPU at once, each with streams
// of its own: to the bits that each has alone.
TEST(DeltaRule, TwoGroupsComposeMapsAtOnce) {
  Case cases[] = {delta_case("at_once", LASP_DECAY_NONE, 64, 32), wide_case("at_once", LASP_DECAY_SCALAR)};
  RunOptions options;
  options.schedule = LASP_SCHEDULE_DOUBLING, options.own_stream = true;
  constexpr int32_t kRanks = 5;  // three of which compose
  const auto run = [&](int32_t i) {
    return run_case(cases[i], cached_data(cases[i]), Transport::threads, kRanks, options);
  };
  Outputs alone[2], at_once[2];
  for (const int32_t i : {0, 1}) {
    cases[i].tokens = 1500, cases[i].heads_q = cases[i].heads_k = cases[i].heads_v = 4;
    alone[i] = run(i);
    ASSERT_EQ(alone[i].complaints, "");
    EXPECT_EQ(compare(cases[i], cached_expected(cases[i]), alone[i]), "");
  }
  for (int round = 0; round < 10; ++round) {
    on_threads(2, [&](int32_t i) { at_once[i] = run(i); });
    for (const int32_t i : {0, 1}) {
      ASSERT_EQ(at_once[i].complaints, "");
      EXPECT_TRUE(same_bits(at_once[i].tensors, alone[i].tensors)) << cases[i].name << ", round " << round;
    }
  }
}

TEST(DeltaRule, APlanNamesItsPath) {
  std::vector<lasp_comm *> comms(3);
  ASSERT_EQ(lasp_comm_create_threads(3, comms.data()), LASP_OK) << lasp_last_error();
  std::vector<std::string> said(3);
  on_threads(3, [&](int32_t rank) {
    lasp_context_options options = test_context_options(Case{});
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    lasp_problem p = LASP_PROBLEM_INIT;
    p.tokens = 100, p.head_dim_k = p.head_dim_v = 64, p.write = LASP_WRITE_DELTA;
    p.schedule = LASP_SCHEDULE_ALL_GATHER;
    if (lasp_context_create(LASP_ABI, comms[rank], &options, &context) == LASP_OK &&
        lasp_plan_create(context, &p, &plan) == LASP_OK) {
      char text[4096];
      lasp_plan_describe(plan, text, sizeof text, nullptr);
      said[rank] = text;
    } else {
      said[rank] = lasp_last_error();
    }
    lasp_plan_destroy(plan);
    lasp_context_destroy(context);
  });
  for (lasp_comm *comm : comms) lasp_comm_destroy(comm);
  for (const std::string &text : said)
    EXPECT_NE(text.find("delta rule by walks in float32, token by token"), std::string::npos) << text;
  EXPECT_NE(said[2].find("maps by cuBLAS 1"), std::string::npos) << said[2];  // the one with two maps to fold
}

}  // namespace
}  // namespace lasp_test
