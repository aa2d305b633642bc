// Memory and traffic do not grow with the length of the sequence. Plans only: nothing is computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "support/device.h"
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

lasp_plan_info assumed_info(const Case &c, int32_t rank, int32_t nranks, int32_t schedule) {
  RunOptions run;
  run.schedule = schedule;
  const lasp_problem p = problem_of(c, rank, nranks, run);
  lasp_placement placement = LASP_PLACEMENT_INIT;
  placement.rank = rank, placement.nranks = nranks;
  if (on_cuda()) {
    placement.device = LASP_DEVICE_CUDA;
    placement.capability = gpu::capability(), placement.multiprocessors = gpu::multiprocessors();
  }
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  EXPECT_EQ(lasp_problem_get_info(&p, &placement, &info), LASP_OK) << lasp_last_error();
  return info;
}

// One link for ranks and for lasp_problem_get_info, which else take that of threads and an assumed one.
struct OneLink {
  OneLink() { setenv("LASP_LINK", "latency_us=10,bandwidth_gbs=10,round_us=20", 1); }
  ~OneLink() { unsetenv("LASP_LINK"); }
};

// Every case whose tokens lie evenly, as lasp_problem_get_info takes them to do: what a plan says, to the byte.
TEST(Workspace, IsKnownWithoutAGroup) {
  const OneLink link;
  int compared = 0;
#if defined(__SANITIZE_ADDRESS__)  // under which plans take long to make
  const bool few = true;
#else
  const bool few = false;
#endif
  for (const Case &c : all_cases()) {
    for (const int32_t nranks : few ? std::vector<int32_t>{1, 4} : std::vector<int32_t>{1, 2, 4, 5}) {
      if (c.delta || c.layout != Layout::contiguous) continue;
      const std::vector<int64_t> tokens = tokens_of_ranks(c, nranks);
      if (std::any_of(tokens.begin(), tokens.end(), [&](int64_t n) { return n != tokens[0]; })) continue;
      if (c.segment > 0 && tokens[0] % c.segment != 0) continue;
      for (const int32_t schedule : schedules_of(c)) {
        if (c.segment > 0 && (schedule == LASP_SCHEDULE_ALL_GATHER || schedule >= LASP_SCHEDULE_DOUBLING)) continue;
        SCOPED_TRACE(c.name + " on " + std::to_string(nranks) + " by " + schedule_name(schedule));
        const std::vector<lasp_plan_info> infos = plan_infos(c, tokens, schedule);
        for (int32_t rank = 0; rank < nranks; ++rank) {
          const lasp_plan_info &real = infos[static_cast<size_t>(rank)];
          lasp_plan_info told = assumed_info(c, rank, nranks, schedule);
          if (schedule == LASP_SCHEDULE_AUTO) {  // the largest of all
            for (uint64_t lasp_plan_info::*bytes :
                 {&lasp_plan_info::workspace_forward_bytes, &lasp_plan_info::workspace_backward_bytes,
                  &lasp_plan_info::workspace_add_bytes, &lasp_plan_info::forward_bytes_sent,
                  &lasp_plan_info::backward_bytes_sent}) {
              EXPECT_GE(told.*bytes, real.*bytes);
              told.*bytes = real.*bytes;
            }
          }
          ASSERT_EQ(std::memcmp(&told, &real, sizeof told), 0) << "rank " << rank;
          EXPECT_GE(real.workspace_add_bytes, real.workspace_backward_bytes);
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, on_cuda() || few ? 500 : 1000);
}

// A GPU need not be here to be asked about.
TEST(Workspace, IsKnownOfAGpuThatIsNotHere) {
  lasp_build_info build = LASP_BUILD_INFO_INIT;
  ASSERT_EQ(lasp_get_build_info(&build), LASP_OK);
  const Case c = long_case(LASP_DECAY_SCALAR);
  RunOptions ring;
  ring.schedule = LASP_SCHEDULE_RING;
  const lasp_problem p = problem_of(c, 1, 4, ring);
  lasp_placement placement = LASP_PLACEMENT_INIT;
  placement.rank = 1, placement.nranks = 4;
  placement.device = LASP_DEVICE_CUDA, placement.capability = 10, placement.multiprocessors = 132;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  ASSERT_EQ(lasp_problem_get_info(&p, &placement, &info),
            build.has_cuda ? LASP_ERROR_NO_DEVICE : LASP_ERROR_NOT_BUILT);
  placement.capability = 90;
  const lasp_status status = lasp_problem_get_info(&p, &placement, &info);
  if (status == LASP_ERROR_NO_DEVICE) GTEST_SKIP() << lasp_last_error();
  ASSERT_EQ(status, build.has_cuda ? LASP_OK : LASP_ERROR_NOT_BUILT) << lasp_last_error();
  if (!build.has_cuda) return;
  const uint64_t state = uint64_t{4} * 8 * 128 * 128;
  EXPECT_EQ(info.forward_bytes_sent, state);
  EXPECT_GE(info.workspace_forward_bytes, state);
}

}  // namespace
}  // namespace lasp_test
