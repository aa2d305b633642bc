// The stages on a GPU: all ranks of a group on one device and one stream, with nothing between the stages but the
// stream's order. The bits are those of the schedule all-gather over the threads transport; then all of it is
// captured into a graph, every rank's four stages with it, and launched again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/device.h"
#include "support/group.h"
#include "support/played_ranks.h"

namespace lasp_test {
namespace {

constexpr int32_t kRanks = 3;

using Results = std::vector<std::array<std::vector<float>, kTensors>>;

void expect_same_bits(const Results &staged, const Outputs &whole, const std::string &what) {
  ASSERT_EQ(staged.size(), whole.ranks.size());
  for (size_t rank = 0; rank < staged.size(); ++rank)
    for (int id = 0; id < kTensors; ++id) {
      const std::vector<float> &a = staged[rank][id], &b = whole.ranks[rank].tensors[id];
      ASSERT_EQ(a.size(), b.size());
      EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0)
          << what << ": " << kTensorNames[id] << " on rank " << rank;
    }
}

// The decays of the additive write, and behind them those of the delta write.
constexpr int32_t kDecayKinds = LASP_DECAY_CHANNEL + 1, kKinds = 2 * kDecayKinds;

// 128 x 128 in bfloat16 for the fused pass and the tensor cores, 32 x 16 in float32 for the recurrent kernels.
Case gpu_case(int32_t kind, bool wide, bool packed, int32_t cache, int32_t ownership) {
  Case c;
  c.name = "gpu_stages";
  c.delta = kind >= kDecayKinds;
  c.decay = kind % kDecayKinds, c.cache = cache, c.aligned = true, c.ownership = ownership;
  c.tokens = kRanks * (wide ? 640 : 70);
  c.heads_q = c.heads_v = 2, c.heads_k = packed ? 1 : 2;
  c.head_dim_k = wide ? 128 : 32, c.head_dim_v = wide ? 128 : 16;
  c.dtype = wide ? LASP_BFLOAT16 : LASP_FLOAT32;
  if (packed) c.cu_seqlens = {0, 11, 11, c.tokens / 2, c.tokens - 5, c.tokens};
  if (!packed) c.batch = 2;
  return c;
}

void expect_bits(const Case &c, bool carry) {
  const CaseData data = make_data(c);
  RunOptions options;
  options.schedule = LASP_SCHEDULE_ALL_GATHER;
  options.carry = carry;
  const Outputs whole = run_case(c, data, Transport::threads, kRanks, options);
  ASSERT_EQ(whole.complaints, "");
  PlayedRanks ranks(c, data, kRanks, true, options);
  ASSERT_EQ(ranks.complaints(), "");
  const lasp_stream stream = gpu::make_stream();
  ranks.prepare(stream);
  ranks.run(stream);
  expect_same_bits(ranks.results(stream), whole, "eager");
  {
    gpu::Graph graph;
    graph.begin(stream);
    ranks.run(stream);
    graph.end(stream);
    for (int i = 0; i < 2; ++i) {
      ranks.prepare(stream);
      graph.launch(stream);
      expect_same_bits(ranks.results(stream), whole, "replayed");
    }
  }
  EXPECT_EQ(ranks.complaints(), "");
  gpu::wait(stream);
  gpu::destroy_stream(stream);
}

// A pass that adds goes by other kernels than the map of its first stage: numbers are close, bits are not the same.
void expect_sums(const Case &c, bool carry) {
  const CaseData data = make_data(c);
  RunOptions options;
  options.schedule = LASP_SCHEDULE_ALL_GATHER;
  options.carry = carry;
  options.add = LASP_ADD_DQ | LASP_ADD_DK | LASP_ADD_DV | LASP_ADD_D_INITIAL_STATE;
  if (c.decay != LASP_DECAY_NONE) options.add |= LASP_ADD_D_DECAY;
  if (c.delta) options.add |= LASP_ADD_D_BETA;
  const Outputs whole = run_case(c, data, Transport::threads, kRanks, options);
  ASSERT_EQ(whole.complaints, "");
  PlayedRanks ranks(c, data, kRanks, true, options);
  ASSERT_EQ(ranks.complaints(), "");
  const lasp_stream stream = gpu::make_stream();
  ranks.prepare(stream);
  ranks.run(stream);
  const Results staged = ranks.results(stream);
  for (size_t rank = 0; rank < staged.size(); ++rank)
    for (const int id : {kDq, kDk, kDv, kDDecay, kDBeta, kDInitialState}) {
      const std::vector<float> &a = staged[rank][id], &b = whole.ranks[rank].tensors[id];
      ASSERT_EQ(a.size(), b.size());
      // Poison, where a state is another rank's, is no number.
      double largest = 0, off = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        if (!std::isfinite(b[i])) continue;
        largest = std::max(largest, double(std::abs(b[i])));
        off = std::max(off, std::isfinite(a[i]) ? std::abs(double(a[i]) - b[i]) : INFINITY);
      }
      EXPECT_LE(off, (c.dtype == LASP_FLOAT32 ? 1e-5 : 0x1p-6) * largest)
          << kTensorNames[id] << " on rank " << rank;
    }
  EXPECT_EQ(ranks.complaints(), "");
  gpu::wait(stream);
  gpu::destroy_stream(stream);
}

class GpuStages : public testing::TestWithParam<int32_t> {};

TEST_P(GpuStages, AddToGradients) {
  for (const bool wide : {false, true})
    for (const bool packed : {false, true})
      for (const bool carry : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << (wide ? "wide" : "narrow") << (packed ? ", packed" : "") << (carry ? ", carried" : ""));
        expect_sums(gpu_case(GetParam(), wide, packed, LASP_CACHE_CHUNKS, LASP_OWN_CONTIGUOUS), carry);
      }
}

TEST_P(GpuStages, GiveTheBitsOfTheScheduleAllGatherAndReplay) {
  for (const bool wide : {false, true})
    for (const bool packed : {false, true})
      for (const int32_t cache : {LASP_CACHE_CHUNKS, LASP_CACHE_INCOMING})
        for (const bool carry : {true, false})
          for (const int32_t ownership : {LASP_OWN_CONTIGUOUS, LASP_OWN_ZIGZAG}) {
            // Each plan of the delta write makes a handle of cuBLAS: half of the cases.
            if (GetParam() >= kDecayKinds && carry != (cache == LASP_CACHE_CHUNKS)) continue;
            SCOPED_TRACE(testing::Message()
                         << (wide ? "wide" : "narrow") << (packed ? ", packed" : "") << ", cache " << cache
                         << (carry ? ", carried" : "") << ", ownership " << ownership);
            expect_bits(gpu_case(GetParam(), wide, packed, cache, ownership), carry);
          }
}

// Nobody waits for a rank of a detached comm, so a refusal leaves it as it was.
TEST(GpuDetached, LivesOnAfterARefusedPrepare) {
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
  options.device = LASP_DEVICE_CUDA;
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = 70;
  problem.heads_q = problem.heads_k = problem.heads_v = 1;
  problem.head_dim_k = problem.head_dim_v = 32;
  ASSERT_EQ(lasp_comm_create_detached(1, kRanks, &comm), LASP_OK) << lasp_last_error();
  ASSERT_EQ(lasp_context_create(LASP_ABI, comm, &options, &context), LASP_OK) << lasp_last_error();
  ASSERT_EQ(lasp_plan_create(context, &problem, &plan), LASP_OK) << lasp_last_error();
  const lasp_stream stream = gpu::make_stream();
  gpu::Graph graph;
  graph.begin(stream);
  EXPECT_EQ(lasp_plan_prepare(plan, stream), LASP_ERROR_INVALID_ARGUMENT);
  graph.end(stream);
  EXPECT_EQ(lasp_plan_prepare(plan, stream), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
  gpu::destroy_stream(stream);
}

INSTANTIATE_TEST_SUITE_P(Decays, GpuStages, testing::Range(int32_t{0}, kKinds));

}  // namespace
}  // namespace lasp_test
