// A rank that is gone: the others learn of it within the time limit, from the context, while their own kernels
// still wait. The program then aborts its communicator (the library never does), and everything can be destroyed.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <thread>

#include "gpu/nccl_group.h"
#include "support/device.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLimit{3000};
// Rank 1 gives up first: what it would send on is void, and may not reach the others as if it were not.
std::chrono::milliseconds limit_of(int32_t rank) { return rank == 1 ? kLimit / 3 : kLimit; }

// Waits until the context tells of a failure.
lasp_status async_error(lasp_context *context, Clock::time_point until) {
  lasp_status status = LASP_OK;
  while (status == LASP_OK && Clock::now() < until) {
    EXPECT_EQ(lasp_context_get_async_error(context, &status, nullptr, 0), LASP_OK) << lasp_last_error();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return status;
}

// One rank's life; rank 0, whose state all others need, makes its plan and is never heard of again. (Were it the
// last rank, nobody would have to wait: small messages to it end in NCCL's own buffers.)
void live(const Case &c, int32_t schedule, gpu::NcclRank &nccl, int32_t rank, int32_t nranks,
          std::barrier<> &meeting) {
  gpu::use_device(rank);
  RunOptions options;
  options.schedule = schedule;
  lasp_comm *comm = nullptr;
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_context_options context_options = test_context_options(c, rank);
  context_options.time_limit_ms = limit_of(rank).count();
  EXPECT_EQ(lasp_comm_create_nccl(nccl.get(), nullptr, &comm), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &context_options, &context), LASP_OK) << lasp_last_error();
  const lasp_problem p = problem_of(c, rank, nranks, options);
  EXPECT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
  if (plan == nullptr) return meeting.arrive_and_drop();
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  EXPECT_EQ(lasp_plan_get_info(plan, &info), LASP_OK) << lasp_last_error();
  RankMemory memory(c, cached_data(c), rank, nranks, options);
  memory.make_for(info);
  const lasp_stream stream = gpu::make_stream();
  memory.upload(stream);
  gpu::wait(stream);
  meeting.arrive_and_wait();
  if (rank != 0) {
    const lasp_forward_args forward = memory.forward_args();
    const Clock::time_point begin = Clock::now();
    const lasp_status enqueued = lasp_forward(plan, &forward, stream);
    EXPECT_TRUE(enqueued == LASP_OK || enqueued == LASP_ERROR_PEER_LOST) << lasp_last_error();
    const lasp_status told = async_error(context, begin + 3 * kLimit);
    EXPECT_EQ(told, LASP_ERROR_PEER_LOST) << lasp_status_name(told);
    EXPECT_GE(Clock::now() - begin, limit_of(rank) - std::chrono::milliseconds(50));
    EXPECT_LE(Clock::now() - begin, 2 * kLimit);
    EXPECT_NE(lasp_forward(plan, &forward, stream), LASP_OK) << "a context that has failed goes on";
  }
  meeting.arrive_and_wait();
  nccl.abort();
  gpu::wait(stream);
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
  gpu::destroy_stream(stream);
}

// By the ring, which over peer memory is one launch, and by a schedule of single messages.
class NcclLost : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Schedules, NcclLost, testing::Values(LASP_SCHEDULE_RING, LASP_SCHEDULE_ALL_SCAN),
                         [](const auto &test) { return std::string(schedule_name(test.param)); });
TEST_P(NcclLost, TheOthersAreToldWithinTheTimeLimit) {
  if (const std::string reason = gpu::why_no_nccl(); !reason.empty()) GTEST_SKIP() << reason;
  if (nccl_group_sizes().empty()) GTEST_SKIP() << "needs two GPUs";
  const int32_t nranks = nccl_group_sizes().back();
  Case c = case_named("none_batch");
  cached_data(c);
  const NcclGroup group = gpu::make_nccl_group(nranks, false);
  std::barrier<> meeting(nranks);
  on_threads(nranks, [&](int32_t rank) { live(c, GetParam(), *group[rank], rank, nranks, meeting); });
}

}  // namespace
}  // namespace lasp_test
