// Memory and traffic do not grow with the length of the sequence. Plans only: nothing is computed.
#include <gtest/gtest.h>

#include "support/group_params.h"

namespace lasp_test {
namespace {

// Plan infos of all ranks for given local lengths.
std::vector<lasp_plan_info> plan_infos(Case c, const std::vector<int64_t> &tokens, int32_t schedule) {
  const int32_t nranks = static_cast<int32_t>(tokens.size());
  std::vector<lasp_comm *> comms(nranks);
  EXPECT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK) << lasp_last_error();
  std::vector<lasp_plan_info> infos(nranks, lasp_plan_info LASP_PLAN_INFO_INIT);
  std::vector<std::string> complaints(nranks);
  on_threads(nranks, [&](int32_t rank) {
    const auto check = [&](lasp_status status) {
      if (status != LASP_OK) complaints[rank] += lasp_last_error();
    };
    const lasp_context_options options = test_context_options(c);
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    check(lasp_context_create(LASP_ABI, comms[rank], &options, &context));
    RunOptions run;
    run.schedule = schedule;
    lasp_problem p = problem_of(c, rank, nranks, run);
    p.tokens = tokens[rank];
    check(lasp_plan_create(context, &p, &plan));
    if (plan != nullptr) check(lasp_plan_get_info(plan, &infos[rank]));
    check(lasp_plan_destroy(plan));
    check(lasp_context_destroy(context));
  });
  for (const std::string &complaint : complaints) EXPECT_EQ(complaint, "");
  for (lasp_comm *comm : comms) EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
  return infos;
}

Case long_case(int32_t decay) {
  Case c;
  c.name = "workspace";
  c.tokens = 0, c.heads_q = c.heads_k = c.heads_v = 8, c.head_dim_k = c.head_dim_v = 128, c.decay = decay;
  return c;
}

template <class Check>
void for_each_decay_and_schedule(Check check) {
  for (const int32_t decay : kDecays) {
    for (const int32_t schedule : all_schedules()) {
      SCOPED_TRACE("decay " + std::to_string(decay) + " schedule " + schedule_name(schedule));
      check(decay, schedule);
    }
  }
}

// One rank of a sequence of 2^20 tokens on 4 ranks against one of 2^14 tokens: no more per local token, to 1%.
TEST(Workspace, PerLocalTokenIsThatOfAShortSequence) {
  for_each_decay_and_schedule([](int32_t decay, int32_t schedule) {
    const auto many = plan_infos(long_case(decay), std::vector<int64_t>(4, 1 << 18), schedule);
    const auto few = plan_infos(long_case(decay), std::vector<int64_t>(4, 1 << 12), schedule);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(many[rank].total_tokens, 1 << 20);
      EXPECT_LE(many[rank].workspace_forward_bytes / 64.0, 1.01 * few[rank].workspace_forward_bytes);
      EXPECT_LE(many[rank].workspace_backward_bytes / 64.0, 1.01 * few[rank].workspace_backward_bytes);
      EXPECT_LE(many[rank].state_cache_chunks_bytes / 64.0, 1.01 * few[rank].state_cache_chunks_bytes);
      EXPECT_EQ(many[rank].state_cache_incoming_bytes, few[rank].state_cache_incoming_bytes);
    }
  });
}

// The same 4096 tokens on this rank, whatever the other ranks hold: the very same bytes.
TEST(Workspace, DoesNotDependOnTheGlobalLength) {
  for_each_decay_and_schedule([](int32_t decay, int32_t schedule) {
    const auto alone = plan_infos(long_case(decay), {1, 4096, 1, 1}, schedule);
    const auto among = plan_infos(long_case(decay), {1 << 18, 4096, 1 << 20, 1 << 19}, schedule);
    EXPECT_EQ(alone[1].workspace_forward_bytes, among[1].workspace_forward_bytes);
    EXPECT_EQ(alone[1].workspace_backward_bytes, among[1].workspace_backward_bytes);
    EXPECT_EQ(alone[1].state_cache_bytes, among[1].state_cache_bytes);
  });
}

TEST(Traffic, DoesNotDependOnTheLength) {
  for_each_decay_and_schedule([](int32_t decay, int32_t schedule) {
    const auto many = plan_infos(long_case(decay), std::vector<int64_t>(4, 1 << 18), schedule);
    const auto few = plan_infos(long_case(decay), std::vector<int64_t>(4, 1 << 10), schedule);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(many[rank].forward_bytes_sent, few[rank].forward_bytes_sent);
      EXPECT_EQ(many[rank].backward_bytes_sent, few[rank].backward_bytes_sent);
    }
  });
}

// LASP: one [K, V] state per head and batch row to the next rank, forward, and to the one before, backward.
TEST(Traffic, RingSendsOneStatePerHeadAndRow) {
  for (int32_t decay = LASP_DECAY_NONE; decay <= LASP_DECAY_CHANNEL; ++decay) {
    Case c = long_case(decay);
    c.batch = 3;
    const auto infos = plan_infos(c, {100, 50, 70, 10}, LASP_SCHEDULE_RING);
    constexpr uint64_t kStates = 3 * 8 * 128 * 128 * sizeof(float);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(infos[rank].forward_bytes_sent, rank < 3 ? kStates : 0) << "decay " << decay << " rank " << rank;
      EXPECT_EQ(infos[rank].backward_bytes_sent, rank > 0 ? kStates : 0) << "decay " << decay << " rank " << rank;
    }
  }
}

}  // namespace
}  // namespace lasp_test
