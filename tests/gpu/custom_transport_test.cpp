// A caller's transport of device memory: it is right, it is not captured into graphs, and what a failed exchange
// has enqueued is over before later work on the caller's stream.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>

#include "gpu/device_mailboxes.h"
#include "support/group_params.h"
#include "support/measure.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

Outputs run_over_mailboxes(const Case &c, int32_t nranks, const RunOptions &options) {
  DeviceMailboxes boxes(nranks);
  std::vector<RankResult> ranks(static_cast<size_t>(nranks));
  on_threads(nranks, [&](int32_t rank) {
    lasp_comm *comm = nullptr;
    EXPECT_EQ(boxes.make_comm(rank, &comm), LASP_OK) << lasp_last_error();
    ranks[static_cast<size_t>(rank)] = run_rank(c, cached_data(c), comm, options);
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
  });
  return assemble(c, std::move(ranks));
}

TEST(CustomTransport, CarriesStatesBetweenDeviceMemories) {
  for (const char *name : {"head_batch", "scalar_uneven_batch", "channel_packed_at_rank_edges"}) {
    const Case &c = case_named(name);
    cached_expected(c);  // the cache is not for several threads
    for (const int32_t schedule : schedules_of(c)) {
      RunOptions options;
      options.schedule = schedule;
      options.own_stream = true;
      const Outputs out = run_over_mailboxes(c, 3, options);
      EXPECT_EQ(out.complaints, "") << name << ", " << schedule_name(schedule);
      EXPECT_EQ(compare(c, cached_expected(c), out), "") << name << ", " << schedule_name(schedule);
    }
  }
}

// A graph would call none of its functions when it is launched again.
TEST(CustomTransport, RefusesToBeCaptured) {
  const Case &c = case_named("head_batch");
  cached_data(c);
  RunOptions options;
  options.graph_replays = 1;
  options.own_stream = true;
  const Outputs out = run_over_mailboxes(c, 2, options);
  EXPECT_NE(out.complaints.find("LASP_ERROR_UNSUPPORTED"), std::string::npos) << out.complaints;
  EXPECT_NE(out.complaints.find("device mailbox transport cannot be captured"), std::string::npos)
      << out.complaints;
}

// The exchange stream still works on the caller's memory when the call has failed: the caller's stream goes on
// after it, so that what its allocator hands out next is nobody else's.
TEST(CustomTransport, AFailedExchangeIsWaitedForByTheCallersStream) {
  const Case &c = case_named("head_batch");
  cached_data(c);
  constexpr int32_t kRanks = 2;
  DeviceMailboxes boxes(kRanks);
  std::atomic<bool> armed{false};
  std::barrier<> meeting(kRanks);
  boxes.fault = [&](int32_t rank, lasp_stream stream) {
    if (rank != 1 || !armed) return lasp_status{LASP_OK};
    gpu::delay(stream);
    return lasp_status{LASP_ERROR_TRANSPORT};
  };
  on_threads(kRanks, [&](int32_t rank) {
    const RunOptions options;
    lasp_comm *comm = nullptr;
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    const lasp_context_options settings = test_context_options(c);
    EXPECT_EQ(boxes.make_comm(rank, &comm), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &settings, &context), LASP_OK) << lasp_last_error();
    const lasp_problem p = problem_of(c, rank, kRanks, options);
    EXPECT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    EXPECT_EQ(lasp_plan_get_info(plan, &info), LASP_OK) << lasp_last_error();
    RankMemory memory(c, cached_data(c), rank, kRanks, options);
    memory.make_for(info);
    const lasp_stream stream = gpu::make_stream();
    memory.upload(stream);
    gpu::wait(stream);
    const lasp_forward_args forward = memory.forward_args();
    meeting.arrive_and_wait();  // both have their plans
    armed = true;
    meeting.arrive_and_wait();
    const lasp_status status = lasp_forward(plan, &forward, stream);
    if (rank == 1) {
      EXPECT_EQ(status, LASP_ERROR_TRANSPORT) << lasp_status_name(status);
      EXPECT_FALSE(gpu::finished(stream)) << "the caller's stream is ahead of the exchange";
    }
    gpu::wait(stream);
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_context_destroy(context), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
    gpu::destroy_stream(stream);
  });
}

}  // namespace
}  // namespace lasp_test
