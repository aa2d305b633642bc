// lasp_problem.segment: the same bits for every number of ranks and every cut at multiples of the segment, with
// whatever is done ahead of the exchange.
#include <gtest/gtest.h>

#include <thread>

#include "support/group_params.h"
#include "support/guarded_buffer.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

class Segment : public testing::TestWithParam<std::tuple<Case, int32_t>> {};

std::string where(const Case &c, int32_t nranks, int32_t schedule) {
  return std::to_string(nranks) + " ranks, split " + std::to_string(static_cast<int>(c.split)) + ", " +
         schedule_name(schedule) + ", " + std::to_string(c.cpu_threads) + " threads";
}

// A per-head gradient of the decay is each rank's own share: its sum over ranks is the caller's.
TensorSet comparable(const Case &c, const Outputs &out) {
  TensorSet tensors = out.tensors;
  if (c.decay == LASP_DECAY_HEAD) tensors[kDDecay].clear();
  return tensors;
}

TEST_P(Segment, SameBitsForEverySplit) {
  Case c = std::get<0>(GetParam());
  c.cache = std::get<1>(GetParam());
  const CaseData data = make_data(c);
  RunOptions options;
  options.recompute = true;
  const Outputs alone = run_case(c, data, Transport::self, 1, options);
  if (on_cuda()) {  // refused there
    EXPECT_NE(alone.complaints.find("segment = " + std::to_string(c.segment) + ": on the CPU only"),
              std::string::npos)
        << alone.complaints;
    return;
  }
  ASSERT_EQ(alone.complaints, "");
  EXPECT_EQ(compare(c, expected_of(c, data), alone), "");
  const std::vector<int32_t> groups = quick_run() ? std::vector<int32_t>{3} : std::vector<int32_t>{2, 3, 5};
  for (const int32_t nranks : groups) {
    for (const Split split : {Split::even, Split::ragged, Split::sparse, Split::sparse_reversed}) {
      if (quick_run() && split != Split::ragged) continue;
      for (const int32_t schedule : {LASP_SCHEDULE_AUTO, LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_SCAN}) {
        c.split = split;
        c.pieces = schedule == LASP_SCHEDULE_ALL_SCAN ? 3 : 0;
        c.cpu_threads = 1 + nranks % 2;
        options.schedule = schedule;
        const Outputs out = run_case(c, data, Transport::threads, nranks, options);
        ASSERT_EQ(out.complaints, "") << where(c, nranks, schedule);
        EXPECT_TRUE(same_bits(comparable(c, out), comparable(c, alone))) << where(c, nranks, schedule);
      }
    }
  }
}

// Without it they differ, or the test above shows nothing.
TEST(SegmentOff, SplitsShowInTheLastBits) {
  if (on_cuda()) GTEST_SKIP() << "segments are for the CPU";
  Case c = case_named("scalar_long");
  const Outputs alone = run_case(c, cached_data(c), Transport::self, 1, {});
  const Outputs out = run_case(c, cached_data(c), Transport::threads, 5, {});
  EXPECT_FALSE(same_bits(out.tensors, alone.tensors));
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  const auto add = [&](const char *name, int32_t decay, int32_t dtype, auto... change) {
    Case c;
    c.name = std::string("segment_") + name;
    c.decay = decay;
    c.dtype = dtype;
    c.chunk = 16;
    c.segment = 32;
    c.tokens = 333;
    c.mean_decay = 0.05;
    (change(c), ...);
    cases.push_back(c);
  };
  const auto packed = [](Case &c) { c.cu_seqlens = {0, 5, 5, 64, 130, 131, 320, 333}; };
  const auto grouped = [](Case &c) { c.heads_k = 1, c.heads_v = 4, c.heads_q = 2; };
  add("none", LASP_DECAY_NONE, LASP_FLOAT32, [](Case &c) { c.batch = 2; });
  add("head", LASP_DECAY_HEAD, LASP_FLOAT32, [](Case &c) { c.constant_decay = -0.01; });
  add("scalar", LASP_DECAY_SCALAR, LASP_FLOAT32, grouped);
  add("channel", LASP_DECAY_CHANNEL, LASP_FLOAT32, [](Case &c) { c.head_dim_k = 40, c.segment = 48; });
  add("head_packed", LASP_DECAY_HEAD, LASP_BFLOAT16, packed);
  add("scalar_packed", LASP_DECAY_SCALAR, LASP_FLOAT32, packed);
  add("channel_packed", LASP_DECAY_CHANNEL, LASP_BFLOAT16, packed, grouped);
  add("none_packed", LASP_DECAY_NONE, LASP_FLOAT16, packed, [](Case &c) { c.states = false; });
  add("scalar_strong", LASP_DECAY_SCALAR, LASP_FLOAT32, [](Case &c) { c.mean_decay = 8, c.batch = 2; });
  add("none_exact", LASP_DECAY_NONE, LASP_FLOAT32, [](Case &c) { c.exact = true, c.broadcast = true; });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Table, Segment,
                         testing::Combine(testing::ValuesIn(cases()), testing::Values(int32_t{LASP_CACHE_INCOMING},
                                                                                      int32_t{LASP_CACHE_CHUNKS})),
                         [](const auto &test) {
                           return std::get<0>(test.param).name +
                                  (std::get<1>(test.param) == LASP_CACHE_INCOMING ? "_incoming" : "_chunks");
                         });

TEST(SegmentRefused, ARankThatBeginsInsideOne) {
  Case c = case_named("scalar_long");
  c.chunk = 16;
  RunOptions options;
  lasp_comm *comms[2] = {};
  ASSERT_EQ(lasp_comm_create_threads(2, comms), LASP_OK);
  lasp_status statuses[2];
  std::string sentences[2];
  std::thread ranks[2];
  for (int r = 0; r < 2; ++r) {
    ranks[r] = std::thread([&, r] {
      lasp_context *context = nullptr;
      ASSERT_EQ(lasp_context_create(LASP_ABI, comms[r], nullptr, &context), LASP_OK);
      lasp_problem p = problem_of(c, r, 2, options);
      p.segment = 32;
      p.tokens = 40;
      lasp_plan *plan = nullptr;
      statuses[r] = lasp_plan_create(context, &p, &plan);
      sentences[r] = lasp_last_error();
      EXPECT_EQ(plan, nullptr);
      lasp_context_destroy(context);
    });
  }
  for (int r = 0; r < 2; ++r) {
    ranks[r].join();
    EXPECT_EQ(statuses[r], LASP_ERROR_DISAGREEMENT);
    EXPECT_NE(sentences[r].find("rank 1 begin at 40"), std::string::npos) << sentences[r];
    lasp_comm_destroy(comms[r]);
  }
}

}  // namespace
}  // namespace lasp_test
