// Messages by peer memory: taken where every GPU reaches every other, left where LASP_PEER_MEMORY says so, and of
// the same bits as messages by NCCL.
#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <string>

#include "gpu/nccl_cases.h"
#include "gpu/nccl_group.h"
#include "support/device.h"
#include "support/group_params.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

// Ranks look when the first plan of a context is made.
class WithoutPeerMemory {
 public:
  WithoutPeerMemory() { setenv("LASP_PEER_MEMORY", "0", 1); }
  ~WithoutPeerMemory() { unsetenv("LASP_PEER_MEMORY"); }
};

class NcclPeer : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = gpu::why_no_nccl(); !reason.empty()) GTEST_SKIP() << reason;
    if (nccl_group_sizes().empty()) GTEST_SKIP() << "needs two GPUs";
    if (!gpu::has_nvlink(0, 1)) GTEST_SKIP() << "needs NVLink between the GPUs";
    if (std::getenv("LASP_PEER_MEMORY") != nullptr) GTEST_SKIP() << "LASP_PEER_MEMORY is set";
  }
};

std::string description_of_rank_0(int32_t nranks) {
  const NcclGroup &group = nccl_group(nranks);
  std::string description;
  on_threads(nranks, [&](int32_t rank) {
    gpu::use_device(rank);
    lasp_comm *comm = nullptr;
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    EXPECT_EQ(lasp_comm_create_nccl(group[static_cast<size_t>(rank)]->get(), nullptr, &comm), LASP_OK);
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm, nullptr, &context), LASP_OK) << lasp_last_error();
    lasp_problem problem = LASP_PROBLEM_INIT;
    problem.tokens = 128, problem.heads_q = problem.heads_k = problem.heads_v = 2;
    problem.head_dim_k = problem.head_dim_v = 64;
    problem.dtype = LASP_BFLOAT16;
    EXPECT_EQ(lasp_plan_create(context, &problem, &plan), LASP_OK) << lasp_last_error();
    char text[4096] = "";
    EXPECT_EQ(lasp_plan_describe(plan, text, sizeof text, nullptr), LASP_OK) << lasp_last_error();
    if (rank == 0) description = text;
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
    EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
  });
  return description;
}

TEST_F(NcclPeer, IsTakenUnlessTheEnvironmentSaysNo) {
  const std::string by_peer = description_of_rank_0(nccl_group_sizes().back());
  EXPECT_NE(by_peer.find("messages by peer memory, ranks met by NCCL"), std::string::npos) << by_peer;
  const WithoutPeerMemory without;
  EXPECT_NE(description_of_rank_0(2).find("messages by NCCL"), std::string::npos);
}

// The ring is one launch over peer memory, and by NCCL messages and compositions.
TEST_F(NcclPeer, HasTheBitsOfNccl) {
  const NcclGroup &group = nccl_group(nccl_group_sizes().back());
  for (const char *name : kChosen) {
    const Case &c = case_named(name);
    for (const int32_t schedule : schedules_of(c)) {
      RunOptions options;
      options.schedule = schedule;
      const Outputs peer = run_case_nccl(c, cached_data(c), group, options);
      const WithoutPeerMemory without;
      const Outputs nccl = run_case_nccl(c, cached_data(c), group, options);
      EXPECT_EQ(peer.complaints + nccl.complaints, "") << name;
      EXPECT_TRUE(same_bits(peer.tensors, nccl.tensors)) << name << " " << schedule_name(schedule);
    }
  }
}

// A state of 33 heads has more pieces than a lane has slots.
TEST_F(NcclPeer, LargeStates) {
  Case c = case_named("none_wide_packed");
  c.name = "large_states";
  c.cu_seqlens = {}, c.tokens = 64, c.heads_q = c.heads_k = c.heads_v = 33;
  c.head_dim_k = c.head_dim_v = 128;
  const CaseData data = make_data(c);
  const Expected expected = expected_of(c, data);
  const auto run = [&](int32_t schedule, int32_t nranks) {
    RunOptions options;
    options.schedule = schedule;
    const Outputs out = run_case_nccl(c, data, nccl_group(nranks), options);
    expect_right(c, expected, out, schedule_name(schedule));
  };
  run(LASP_SCHEDULE_RING, nccl_group_sizes().back());
  run(LASP_SCHEDULE_ALL_GATHER, 2);  // an emulated GPU runs a launch's blocks one after another: no more than two
}

// Rank 0 never comes. The communicator is not aborted: the kernel that waits is the library's.
TEST_F(NcclPeer, AbortEndsWhatWaits) {
  const Case &c = case_named("none_batch");
  cached_data(c);
  const NcclGroup &group = nccl_group(2);
  std::barrier<> meeting(2);
  on_threads(2, [&](int32_t rank) {
    gpu::use_device(rank);
    const RunOptions options;
    lasp_comm *comm = nullptr;
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    const lasp_context_options context_options = test_context_options(c, rank);
    EXPECT_EQ(lasp_comm_create_nccl(group[static_cast<size_t>(rank)]->get(), nullptr, &comm), LASP_OK);
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &context_options, &context), LASP_OK) << lasp_last_error();
    const lasp_problem problem = problem_of(c, rank, 2, options);
    EXPECT_EQ(lasp_plan_create(context, &problem, &plan), LASP_OK) << lasp_last_error();
    lasp_plan_info info = LASP_PLAN_INFO_INIT;
    EXPECT_EQ(lasp_plan_get_info(plan, &info), LASP_OK) << lasp_last_error();
    RankMemory memory(c, cached_data(c), rank, 2, options);
    memory.make_for(info);
    const lasp_stream stream = gpu::make_stream();
    memory.upload(stream);
    gpu::wait(stream);
    meeting.arrive_and_wait();
    if (rank == 1) {
      const lasp_forward_args forward = memory.forward_args();
      EXPECT_EQ(lasp_forward(plan, &forward, stream), LASP_OK) << lasp_last_error();
      EXPECT_EQ(lasp_context_abort(context), LASP_OK) << lasp_last_error();
      gpu::wait(stream);
      EXPECT_EQ(lasp_forward(plan, &forward, stream), LASP_ERROR_ABORTED);
    }
    meeting.arrive_and_wait();
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_context_destroy(context), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
    gpu::destroy_stream(stream);
  });
}

}  // namespace
}  // namespace lasp_test
