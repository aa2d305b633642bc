// The workspace of the larger pass is at most a tenth of what the backward pass reads and writes: by plans alone,
// at the sizes of docs/history/gpu-speed.md, for one rank and for each of eight.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/group.h"
#include "support/measure.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

struct Size {
  int64_t tokens;               // of a rank
  int32_t heads, k, v, shared;  // heads of k and v
};

// Workspace over tensors; below zero where a call fails.
double share(const Size &size, int32_t decay, int32_t schedule, lasp_comm *comm) {
  lasp_context_options options = test_context_options(Case{});
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_problem p = LASP_PROBLEM_INIT;
  p.tokens = size.tokens, p.heads_q = size.heads, p.heads_k = p.heads_v = size.shared;
  p.head_dim_k = size.k, p.head_dim_v = size.v, p.dtype = LASP_BFLOAT16, p.decay = decay, p.schedule = schedule;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  const bool ok = lasp_context_create(LASP_ABI, comm, &options, &context) == LASP_OK &&
                  lasp_plan_create(context, &p, &plan) == LASP_OK && lasp_plan_get_info(plan, &info) == LASP_OK;
  if (!ok) ADD_FAILURE() << lasp_last_error();
  lasp_plan_destroy(plan);
  lasp_context_destroy(context);
  if (!ok) return -1;
  const double of_heads = 2.0 * size.k + size.v + (decay == LASP_DECAY_CHANNEL ? 2.0 * 2 * size.k : 0.0),
               of_shared = 2.0 * (size.k + size.v);
  const double tensors = 2 * static_cast<double>(size.tokens) * (of_heads * size.heads + of_shared * size.shared);
  return static_cast<double>(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes)) / tensors;
}

TEST(Workspace, IsATenthOfTheTensorsAtMost) {
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK) << lasp_last_error();
  for (const Size &size :
       {Size{2048, 32, 128, 128, 32}, Size{16384, 32, 128, 128, 32}, Size{131072, 8, 128, 128, 8},
        Size{16384, 16, 64, 64, 16}, Size{16384, 16, 128, 256, 16}, Size{16384, 16, 256, 256, 16},
        Size{16384, 32, 128, 128, 16}, Size{16384, 32, 128, 128, 8}, Size{16384, 32, 128, 128, 4}})
    for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay) {
      if (decay == LASP_DECAY_CHANNEL && (size.v != 128 || size.shared != size.heads)) continue;
      EXPECT_LE(share(size, decay, LASP_SCHEDULE_AUTO, comm), 0.1)
          << "T " << size.tokens << " H " << size.heads << ", " << size.shared << " of k and v, K " << size.k
          << " V " << size.v << " decay " << decay;
    }
  lasp_comm_destroy(comm);
}

TEST(Workspace, IsATenthOfTheTensorsOnEachOfEightRanks) {
  constexpr int32_t kRanks = 8;
  for (const int32_t schedule :
       {LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_GATHER, LASP_SCHEDULE_DOUBLING, LASP_SCHEDULE_HEAD_SCATTER})
    for (const int64_t tokens : {2048, 16384}) {
      std::vector<lasp_comm *> comms(kRanks);
      ASSERT_EQ(lasp_comm_create_threads(kRanks, comms.data()), LASP_OK) << lasp_last_error();
      std::vector<double> shares(kRanks);
      on_threads(kRanks, [&](int32_t rank) {
        shares[rank] = share({tokens, 32, 128, 128, 32}, LASP_DECAY_HEAD, schedule, comms[rank]);
      });
      for (int32_t rank = 0; rank < kRanks; ++rank)
        EXPECT_LE(shares[rank], 0.1) << "T " << tokens << " schedule " << schedule << " rank " << rank;
      for (lasp_comm *comm : comms) lasp_comm_destroy(comm);
    }
}

// Other passes keep what they exchange in the memory of dv.
TEST(Workspace, OfAPassThatAddsToDvIsLarger) {
  Case c;
  c.name = "adds", c.tokens = 8192, c.aligned = true;
  c.heads_q = c.heads_k = c.heads_v = 2, c.head_dim_k = c.head_dim_v = 128;
  c.dtype = LASP_BFLOAT16, c.decay = LASP_DECAY_SCALAR;
  const CaseData data = make_data(c);
  lasp_comm *comms[2] = {};
  ASSERT_EQ(lasp_comm_create_threads(2, comms), LASP_OK) << lasp_last_error();
  on_threads(2, [&](int32_t rank) {
    const RunOptions options;
    const lasp_context_options settings = test_context_options(c);
    const lasp_problem p = problem_of(c, rank, 2, options);
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    EXPECT_EQ(lasp_context_create(LASP_ABI, comms[rank], &settings, &context), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    EXPECT_EQ(lasp_plan_get_info(plan, &info), LASP_OK);
    EXPECT_GT(info.workspace_add_bytes, info.workspace_backward_bytes);
    RankMemory memory(c, data, rank, 2, options);
    memory.make_for(info);
    lasp_backward_args args = memory.backward_args();
    args.add = LASP_ADD_DV;
    if (rank == 0) {  // the other one would only hear of it
      EXPECT_EQ(lasp_backward(plan, &args, nullptr), LASP_ERROR_BUFFER_TOO_SMALL);
      EXPECT_NE(std::string(lasp_last_error()).find("workspace"), std::string::npos) << lasp_last_error();
    }
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
    EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
    EXPECT_EQ(lasp_comm_destroy(comms[rank]), LASP_OK);
  });
}

}  // namespace
}  // namespace lasp_test
