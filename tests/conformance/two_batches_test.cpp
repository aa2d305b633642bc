// Two batches on one plan, their passes in turn, as gradient accumulation and pipelines have them. What a plan
// keeps from one pass to the next (tables of a decay, scratch memory) must not reach the other batch: every result
// has the bits that a fresh plan gives.
#include <gtest/gtest.h>

#include <cstring>

#include "support/group.h"
#include "support/rank_device.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

Case batch_case(int32_t decay) {
  Case c;
  c.name = "two_batches";
  c.tokens = 70, c.heads_q = c.heads_k = c.heads_v = 3, c.head_dim_k = c.head_dim_v = 8;
  c.decay = decay, c.chunk = 16;
  return c;
}

// The same data but for the decay of one head, at every token.
CaseData with_other_decay(const Case &c, CaseData data, int64_t head) {
  const int64_t width = c.decay == LASP_DECAY_CHANNEL ? c.head_dim_k : 1;
  for (size_t i = 0; i < data.g.size(); ++i) {
    if (static_cast<int64_t>(i) / width % c.heads() == head) data.g[i] *= 0.5f;
  }
  return data;
}

using Results = std::array<std::vector<float>, kTensors>;

// One rank with a plan and the memory of two batches.
class TwoBatches {
 public:
  TwoBatches(const Case &c, const std::array<CaseData, 2> &data, lasp_comm *comm, const RunOptions &options)
      : case_(c), options_(options), device_(options_) {
    int32_t rank = 0, nranks = 1;
    ok(lasp_comm_get_rank(comm, &rank, &nranks));
    const lasp_context_options context_options = test_context_options(c);
    ok(lasp_context_create(LASP_ABI, comm, &context_options, &context_));
    for (int i = 0; i < 2; ++i) memory_[i] = std::make_unique<RankMemory>(c, data[i], rank, nranks, options_);
    lasp_problem p = problem_of(c, rank, nranks, options_);
    memory_[0]->set_strides(p);
    ok(lasp_plan_create(context_, &p, &plan_));
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    ok(lasp_plan_get_info(plan_, &info));
    for (const auto &memory : memory_) memory->make_for(info);
  }
  ~TwoBatches() {
    ok(lasp_plan_destroy(plan_));
    ok(lasp_context_destroy(context_));
  }
  TwoBatches(const TwoBatches &) = delete;
  TwoBatches &operator=(const TwoBatches &) = delete;

  void forward(int batch) {
    memory_[batch]->poison_forward(0);
    const lasp_forward_args args = memory_[batch]->forward_args();
    pass(batch, [&] { return lasp_forward(plan_, &args, device_.stream()); });
  }
  void recompute(int batch) {
    memory_[batch]->poison_recompute();
    lasp_forward_args args = memory_[batch]->forward_args();
    args.reuse_state_cache = 1;
    pass(batch, [&] { return lasp_forward(plan_, &args, device_.stream()); });
  }
  void backward(int batch) {
    memory_[batch]->poison_backward(0);
    const lasp_backward_args args = memory_[batch]->backward_args();
    pass(batch, [&] { return lasp_backward(plan_, &args, device_.stream()); });
  }
  Results results(int batch) const { return memory_[batch]->results(); }
  std::string complaints;

 private:
  void ok(lasp_status status) {
    if (status != LASP_OK) complaints += std::string(lasp_last_error()) + "\n";
  }
  template <class Call>
  void pass(int batch, Call call) {
    memory_[batch]->upload(device_.stream());
    ok(device_.call(call, "a pass", complaints));
    memory_[batch]->download(device_.stream());
    complaints += memory_[batch]->misdeeds("a pass");
  }

  const Case &case_;
  const RunOptions options_;
  const RankDevice device_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  std::unique_ptr<RankMemory> memory_[2];
};

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

// Both batches through every pass, in turn, so that each finds what the other left.
void expect_fresh_bits(const Case &c, const std::array<CaseData, 2> &data, int32_t nranks, int32_t schedule) {
  RunOptions options;
  options.schedule = schedule;
  Outputs fresh[2];
  for (int i = 0; i < 2; ++i) {
    fresh[i] = run_case(c, data[i], Transport::threads, nranks, options);
    ASSERT_EQ(fresh[i].complaints, "");
  }
  std::vector<lasp_comm *> comms(static_cast<size_t>(nranks));
  ASSERT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK) << lasp_last_error();
  std::vector<std::array<Results, 2>> kept(static_cast<size_t>(nranks));
  std::vector<std::string> complaints(static_cast<size_t>(nranks));
  on_threads(nranks, [&](int32_t rank) {
    const auto r = static_cast<size_t>(rank);
    TwoBatches batches(c, data, comms[r], options);
    if (batches.complaints.empty()) {
      for (const int batch : {0, 1}) batches.forward(batch);
      for (const int batch : {0, 1}) batches.recompute(batch);
      for (const int batch : {0, 1}) batches.backward(batch);
      for (const int batch : {0, 1}) kept[r][batch] = batches.results(batch);
    }
    complaints[r] = batches.complaints;
  });
  for (int32_t rank = 0; rank < nranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(complaints[r], "");
    for (int batch = 0; batch < 2; ++batch) {
      for (int id = 0; id < kTensors; ++id) {
        EXPECT_TRUE(same_bits(kept[r][batch][id], fresh[batch].ranks[r].tensors[id]))
            << kTensorNames[id] << " of batch " << batch << " on rank " << rank;
      }
    }
  }
  for (lasp_comm *comm : comms) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
}

class OnePlan : public testing::TestWithParam<int32_t> {};

TEST_P(OnePlan, TakesEachBatchsOwnDecay) {
  for (const int32_t cache : {LASP_CACHE_INCOMING, LASP_CACHE_CHUNKS}) {
    for (const int32_t threads : {1, 3}) {
      for (const int32_t nranks : {1, 3}) {
        for (int32_t head = 0; head < 3; ++head) {
          Case c = batch_case(GetParam());
          c.cache = cache, c.cpu_threads = threads;
          if (threads == 3) c.heads_k = 1;
          SCOPED_TRACE(testing::Message() << "cache " << cache << ", " << threads << " threads, " << nranks
                                          << " ranks, the decay of head " << head << " differs");
          const CaseData data = make_data(c);
          const auto schedule = static_cast<int32_t>(LASP_SCHEDULE_RING + head);
          expect_fresh_bits(c, {data, with_other_decay(c, data, head)}, nranks, schedule);
        }
      }
    }
  }
}

// All else that a batch brings, too.
TEST_P(OnePlan, TakesEachBatchsOwnTensors) {
  for (const int32_t schedule : {LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_GATHER, LASP_SCHEDULE_ALL_SCAN,
                                 LASP_SCHEDULE_DOUBLING, LASP_SCHEDULE_HEAD_SCATTER}) {
    Case c = batch_case(GetParam());
    c.dtype = LASP_BFLOAT16, c.cache = LASP_CACHE_INCOMING;
    SCOPED_TRACE(schedule_name(schedule));
    for (const int32_t nranks : {1, 4}) expect_fresh_bits(c, {make_data(c, 1), make_data(c, 2)}, nranks, schedule);
  }
}

std::string decay_name(const testing::TestParamInfo<int32_t> &info) {
  constexpr const char *kNames[] = {"none", "head", "scalar", "channel"};
  return kNames[info.param];
}
INSTANTIATE_TEST_SUITE_P(Decays, OnePlan, testing::Range(int32_t{LASP_DECAY_NONE}, LASP_DECAY_CHANNEL + 1),
                         decay_name);

}  // namespace
}  // namespace lasp_test
