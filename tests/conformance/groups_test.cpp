// Hybrid data-sequence parallelism: sequence groups made of world ranks that are not neighbours, several at once.
#include <gtest/gtest.h>

#include "support/group.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

// Every world rank is a thread. Each sequence group has a thread group and data of its own.
void run_world(int32_t world, int32_t sequence_ranks, int32_t stride, const Case &c) {
  const int32_t groups = world / sequence_ranks;
  std::vector<std::vector<lasp_comm *>> comms(groups, std::vector<lasp_comm *>(sequence_ranks));
  std::vector<std::vector<RankResult>> results(groups, std::vector<RankResult>(sequence_ranks));
  std::vector<CaseData> data;
  for (int32_t group = 0; group < groups; ++group) {
    ASSERT_EQ(lasp_comm_create_threads(sequence_ranks, comms[group].data()), LASP_OK) << lasp_last_error();
    data.push_back(make_data(c, 1000 + group));
  }
  std::vector<std::string> complaints(world);
  on_threads(world, [&](int32_t world_rank) {
    lasp_groups g = LASP_GROUPS_INIT;
    if (lasp_groups_of_rank(world, sequence_ranks, stride, world_rank, &g) != LASP_OK) {
      complaints[world_rank] = lasp_last_error();
      return;
    }
    results[g.sequence_group][g.sequence_rank] =
        run_rank(c, data[g.sequence_group], comms[g.sequence_group][g.sequence_rank], {});
  });
  for (const std::string &complaint : complaints) EXPECT_EQ(complaint, "");
  for (int32_t group = 0; group < groups; ++group) {
    const Outputs out = assemble(c, results[group]);
    EXPECT_EQ(out.complaints, "");
    EXPECT_EQ(compare(c, expected_of(c, data[group]), out), "") << c.name << " group " << group;
    for (lasp_comm *comm : comms[group]) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
  }
}

// Ranks of several threads each, with states large enough that composing two maps is itself a loop for all of them:
// it comes between the items of the pass that runs meanwhile.
TEST(Groups, MapsAreComposedWhileTheRanksThreadsWork) {
  Case c;
  c.name = "composed_meanwhile";
  c.decay = LASP_DECAY_SCALAR;
  c.heads_q = c.heads_k = c.heads_v = 16;
  c.head_dim_k = 64;
  c.chunk = 16;
  c.tokens = quick_run() ? 2048 : 12288;
  c.cpu_threads = 2;
  const CaseData data = make_data(c);
  const Expected expected = expected_of(c, data);
  for (const int32_t schedule : {LASP_SCHEDULE_RING, LASP_SCHEDULE_DOUBLING}) {
    RunOptions options;
    options.schedule = schedule;
    options.repeats = quick_run() ? 1 : 3;
    const Outputs out = run_case(c, data, Transport::threads, 3, options);
    EXPECT_EQ(out.complaints, "");
    EXPECT_EQ(compare(c, expected, out), "") << schedule_name(schedule);
  }
}

TEST(Groups, StrideTwoOverFourMeansRanksZeroTwoAndOneThree) {
  constexpr int32_t kGroup[] = {0, 1, 0, 1}, kRank[] = {0, 0, 1, 1};
  for (int32_t world_rank = 0; world_rank < 4; ++world_rank) {
    lasp_groups g = LASP_GROUPS_INIT;
    ASSERT_EQ(lasp_groups_of_rank(4, 2, 2, world_rank, &g), LASP_OK) << lasp_last_error();
    EXPECT_EQ(g.sequence_group, kGroup[world_rank]);
    EXPECT_EQ(g.sequence_rank, kRank[world_rank]);
    EXPECT_EQ(g.sequence_ranks, 2);
    EXPECT_EQ(g.data_ranks, 2);
    EXPECT_EQ(g.data_group, g.sequence_rank);
    int32_t back = -1;
    ASSERT_EQ(lasp_groups_world_rank(4, 2, 2, g.sequence_group, g.sequence_rank, &back), LASP_OK);
    EXPECT_EQ(back, world_rank);
  }
}

TEST(Groups, EveryLayoutMapsEachWorldRankToOnePlace) {
  for (int32_t world = 1; world <= 24; ++world) {
    for (int32_t ranks = 1; ranks <= world; ++ranks) {
      for (int32_t stride = 1; ranks * stride <= world; ++stride) {
        if (world % (ranks * stride) != 0) continue;
        std::vector<int> members(world / ranks, 0);
        for (int32_t world_rank = 0; world_rank < world; ++world_rank) {
          lasp_groups g = LASP_GROUPS_INIT;
          ASSERT_EQ(lasp_groups_of_rank(world, ranks, stride, world_rank, &g), LASP_OK) << lasp_last_error();
          int32_t back = -1;
          ASSERT_EQ(lasp_groups_world_rank(world, ranks, stride, g.sequence_group, g.sequence_rank, &back),
                    LASP_OK);
          ASSERT_EQ(back, world_rank) << world << " " << ranks << " " << stride;
          ++members.at(g.sequence_group);
          if (g.sequence_rank + 1 == ranks) continue;
          ASSERT_EQ(lasp_groups_world_rank(world, ranks, stride, g.sequence_group, g.sequence_rank + 1, &back),
                    LASP_OK);
          ASSERT_EQ(back, world_rank + stride);
        }
        for (const int count : members) ASSERT_EQ(count, ranks);
      }
    }
  }
}

TEST(Groups, TwoGroupsOfRanksThatAreNotNeighbours) {
  for (const char *name : {"none_batch", "head_uneven_batch", "scalar_packed_at_rank_edges", "channel_bfloat16"}) {
    run_world(4, 2, 2, case_named(name));
  }
}

TEST(Groups, InnermostTensorParallelGroupLeftFree) {
  for (const char *name : {"head_batch", "scalar_long", "channel_sparse_ranks"})
    run_world(8, 4, 2, case_named(name));
}

}  // namespace
}  // namespace lasp_test
