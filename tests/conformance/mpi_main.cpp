// The case table and the vectors with one rank per process, under mpirun. Every process runs every test in the same
// order; rank 0 gathers, compares and prints.
#include <gtest/gtest.h>

#include <lasp/lasp_mpi.h>

#include <cmath>
#include <iostream>

#include "support/group_mpi.h"
#include "support/group_params.h"
#include "support/halo_run.h"
#include "support/measure.h"
#include "support/pass_rank.h"
#include "support/vectors.h"

namespace lasp_test {
namespace {

bool is_root(MPI_Comm mpi = MPI_COMM_WORLD) {
  int rank = 0;
  MPI_Comm_rank(mpi, &rank);
  return rank == 0;
}

using CaseParam = std::tuple<Case, int32_t>;
using VectorParam = std::tuple<size_t, int32_t>;

// Messages know neither decays nor types: two schedules for each case, all of them over the table. Groups of
// threads have the others.
std::vector<CaseParam> case_params() {
  std::vector<CaseParam> params;
  for (const Case &c : all_cases()) {
    const std::vector<int32_t> schedules = schedules_of(c);
    for (const int32_t schedule : schedules)
      if (whole_run() && !left_out(schedule, c)) params.emplace_back(c, schedule);
    if (whole_run()) continue;
    const size_t first = turn(c, schedules.size());
    for (const size_t i : {first, first + schedules.size() / 2})
      params.emplace_back(c, schedules[i % schedules.size()]);
  }
  return params;
}

std::vector<VectorParam> vector_params() {
  std::vector<VectorParam> params;
  for (size_t index = 0; index < all_vectors().size(); ++index)
    for (const int32_t schedule : schedules_of(all_vectors()[index].problem)) params.emplace_back(index, schedule);
  return params;
}

class MpiCases : public testing::TestWithParam<CaseParam> {};

TEST_P(MpiCases, MatchOracle) {
  const auto &[c, schedule] = GetParam();
  RunOptions options;
  options.schedule = schedule;
  options.recompute = true;
  const Outputs out = run_case_mpi(c, cached_data(c), MPI_COMM_WORLD, options);
  if (!is_root()) return;
  ASSERT_EQ(out.complaints, "");
  EXPECT_EQ(compare(c, cached_expected(c), out), "");
}

INSTANTIATE_TEST_SUITE_P(Table, MpiCases, testing::ValuesIn(case_params()), [](const auto &test) {
  return std::get<0>(test.param).name + "_" + schedule_name(std::get<1>(test.param));
});

class MpiVectors : public testing::TestWithParam<VectorParam> {};

TEST_P(MpiVectors, MatchStoredResults) {
  const auto &[index, schedule] = GetParam();
  const Vector &vector = all_vectors()[index];
  RunOptions options;
  options.schedule = schedule;
  const Outputs out = run_case_mpi(vector.problem, vector.data, MPI_COMM_WORLD, options);
  if (!is_root()) return;
  ASSERT_EQ(out.complaints, "");
  EXPECT_EQ(compare(vector.problem, vector.expected, out), "");
}

INSTANTIATE_TEST_SUITE_P(Given, MpiVectors, testing::ValuesIn(vector_params()), [](const auto &test) {
  return all_vectors()[std::get<0>(test.param)].problem.name + "_" + schedule_name(std::get<1>(test.param));
});

TEST(MpiRepeat, SameBitsFromRunToRun) {
  for (const char *name : {"none_batch", "head_packed_ragged", "scalar_long", "channel_bfloat16"}) {
    const Case &c = case_named(name);
    for (const int32_t schedule : schedules_of(c)) {
      RunOptions options;
      options.schedule = schedule;
      options.repeats = 2;
      const Outputs first = run_case_mpi(c, cached_data(c), MPI_COMM_WORLD, options);
      const Outputs second = run_case_mpi(c, cached_data(c), MPI_COMM_WORLD, options);
      EXPECT_EQ(first.complaints + second.complaints, "");
      EXPECT_TRUE(same_bits(first.tensors, second.tensors)) << name << " " << schedule_name(schedule);
    }
  }
}

// Processes go on alike whatever one of them finds, so that none waits for another.
TEST(MpiHalo, IsTheFormula) {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_mpi_comm_create(MPI_COMM_WORLD, &comm), LASP_OK) << lasp_last_error();
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const HaloCase c = drawn_halo(7000 + seed, world);
    EXPECT_EQ(run_halo(c, comm), "") << c;
  }
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
}

TEST(MpiZigzag, MatchesOracle) {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  for (const int32_t decay : kDecays)
    for (const bool delta : {false, true})
      for (const int32_t schedule : kSchedules)
        for (const bool packed : {false, true}) {
          Case c;
          c.name = "mpi_zigzag", c.decay = decay, c.delta = delta, c.tokens = 2 * world * 11;
          c.head_dim_k = c.head_dim_v = 8, c.chunk = 16;
          PassRank::Options options;
          c.ownership = LASP_OWN_ZIGZAG;
          options.schedule = schedule;
          options.max_sequences = packed ? 4 : 0;
          const Pass pass =
              make_pass(c, packed ? std::vector<int64_t>{0, 5, 5, 30, c.tokens - 3} : std::vector<int64_t>{}, 0);
          lasp_comm *comm = nullptr;
          ASSERT_EQ(lasp_mpi_comm_create(MPI_COMM_WORLD, &comm), LASP_OK) << lasp_last_error();
          PassRank rank(c, comm, options);
          EXPECT_EQ(rank.run(pass, false), LASP_OK) << lasp_last_error();
          EXPECT_EQ(rank.complaints(), "");
          TensorSet whole;
          put_together(pass, rank, whole);
          for (std::vector<double> &tensor :
               whole) {  // what no rank has put there stays out of the sum, and is missed
            for (double &x : tensor) x = std::isnan(x) ? 0.0 : x;
            MPI_Allreduce(MPI_IN_PLACE, tensor.data(), static_cast<int>(tensor.size()), MPI_DOUBLE, MPI_SUM,
                          MPI_COMM_WORLD);
          }
          EXPECT_EQ(compare_pass(pass, whole), "")
              << schedule_name(schedule) << ", decay " << decay << ", delta " << delta;
        }
}

// A collective of the program's own in place of the library's exchange.
TEST(MpiStages, GiveTheBitsOfTheScheduleAllGather) {
  for (const char *name : {"none_packed_ragged", "head_uneven_batch", "scalar_sparse_ranks", "channel_bfloat16"}) {
    Case c = case_named(name);
    c.broadcast = false;  // stages leave that to the program, too
    RunOptions options;
    options.schedule = LASP_SCHEDULE_ALL_GATHER;
    const Outputs whole = run_case_mpi(c, cached_data(c), MPI_COMM_WORLD, options);
    options.all_gather = [](int32_t, const void *own, void *all, size_t bytes) {
      const auto count = static_cast<int>(bytes);
      MPI_Allgather(own, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD);
    };
    const Outputs staged = run_case_mpi(c, cached_data(c), MPI_COMM_WORLD, options);
    EXPECT_EQ(whole.complaints + staged.complaints, "");
    EXPECT_TRUE(same_bits(staged.tensors, whole.tensors)) << name;
  }
}

// The groups of two are {0, 2} and {1, 3}, and run at once on data of their own.
TEST(MpiGroups, TwoGroupsOfRanksThatAreNotNeighbours) {
  int rank = 0, world = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (world != 4) GTEST_SKIP() << "needs four processes, so that ranks of a group can lie apart";
  lasp_groups g = LASP_GROUPS_INIT;
  ASSERT_EQ(lasp_groups_of_rank(world, 2, 2, rank, &g), LASP_OK) << lasp_last_error();
  MPI_Comm group = MPI_COMM_NULL;
  ASSERT_EQ(MPI_Comm_split(MPI_COMM_WORLD, g.sequence_group, g.sequence_rank, &group), MPI_SUCCESS);
  for (const char *name : {"none_batch", "head_uneven_batch", "scalar_packed_at_rank_edges", "channel_bfloat16"}) {
    const Case &c = case_named(name);
    const CaseData data = make_data(c, 1000 + g.sequence_group);
    const Outputs out = run_case_mpi(c, data, group, {});
    if (!is_root(group)) continue;
    EXPECT_EQ(out.complaints, "");
    EXPECT_EQ(compare(c, expected_of(c, data), out), "") << name << " group " << g.sequence_group;
  }
  MPI_Comm_free(&group);
}

}  // namespace
}  // namespace lasp_test

int main(int argc, char **argv) {
  lasp_test::keep_freed_memory();
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  testing::InitGoogleTest(&argc, argv);
  const bool root = lasp_test::is_root();
  if (!root) {
    testing::TestEventListeners &listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  int result = RUN_ALL_TESTS(), worst = 0;
  MPI_Allreduce(&result, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (root) {
    lasp_test::print_worst_errors(std::cout);
    if (worst != result) std::cout << "a test failed on another process\n";
  }
  MPI_Finalize();
  return worst;
}
