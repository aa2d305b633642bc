// A rank that waits over NCCL for one that never comes, in plan creation and without a time limit: its caller ends
// the call, by lasp_context_abort or by the function that the library asks (options.interrupted).
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <string>

#include "gpu/nccl_group.h"
#include "support/device.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kAnswered = std::chrono::seconds(20);  // of no limit at all; asked about ten times a second

// A blocking communicator does not return from its first call before all ranks are there, so a plan is made with it
// first. One that does not block waits in its first call already, where it is polled.
struct Way {
  const char *name;
  bool blocking, by_abort;
};
void PrintTo(const Way &way, std::ostream *out) { *out << way.name; }

struct Asked {
  lasp_context *context = nullptr;
  bool by_abort = false, armed = false;
  int questions = 0;

  static int32_t answer(void *user) {
    Asked &asked = *static_cast<Asked *>(user);
    if (!asked.armed || ++asked.questions < 3) return 0;
    if (!asked.by_abort) return 1;
    EXPECT_EQ(lasp_context_abort(asked.context), LASP_OK) << lasp_last_error();
    return 0;
  }
};

class NcclEnded : public testing::TestWithParam<Way> {};

void live(const Case &c, gpu::NcclRank &nccl, int32_t rank, const Way &way, std::barrier<> &meeting) {
  gpu::use_device(rank);
  Asked asked;
  asked.by_abort = way.by_abort;
  lasp_context_options options = test_context_options(c, rank);
  options.time_limit_ms = -1;
  options.interrupted = Asked::answer;
  options.interrupted_user = &asked;
  lasp_comm *comm = nullptr;
  EXPECT_EQ(lasp_comm_create_nccl(nccl.get(), nullptr, &comm), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &options, &asked.context), LASP_OK) << lasp_last_error();
  const lasp_problem problem = problem_of(c, rank, 2, RunOptions{});
  lasp_plan *first = nullptr;
  if (way.blocking) {
    EXPECT_EQ(lasp_plan_create(asked.context, &problem, &first), LASP_OK) << lasp_last_error();
  }
  meeting.arrive_and_wait();
  if (rank == 1) {
    asked.armed = true;
    lasp_plan *plan = nullptr;
    const auto begin = Clock::now();
    EXPECT_EQ(lasp_plan_create(asked.context, &problem, &plan), LASP_ERROR_ABORTED) << lasp_last_error();
    const std::string sentence = lasp_last_error();
    EXPECT_LE(Clock::now() - begin, kAnswered);
    EXPECT_EQ(plan, nullptr);
    EXPECT_GE(asked.questions, 3);
    const char *why = way.by_abort ? "the group was aborted" : "options.interrupted";
    EXPECT_NE(sentence.find(why), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("lasp_plan_create"), std::string::npos) << sentence;
    lasp_status status = LASP_OK;
    EXPECT_EQ(lasp_context_get_async_error(asked.context, &status, nullptr, 0), LASP_OK) << lasp_last_error();
    EXPECT_EQ(status, LASP_ERROR_ABORTED);
  }
  meeting.arrive_and_wait();
  nccl.abort();
  EXPECT_EQ(lasp_plan_destroy(first), LASP_OK) << lasp_last_error();  // may be null
  EXPECT_EQ(lasp_context_destroy(asked.context), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
}

TEST_P(NcclEnded, InPlanCreation) {
  if (const std::string reason = gpu::why_no_nccl(); !reason.empty()) GTEST_SKIP() << reason;
  if (nccl_group_sizes().empty()) GTEST_SKIP() << "needs two GPUs";
  Case c = case_named("none_batch");
  const NcclGroup group = gpu::make_nccl_group(2, GetParam().blocking);
  std::barrier<> meeting(2);
  on_threads(2, [&](int32_t rank) { live(c, *group[rank], rank, GetParam(), meeting); });
}

INSTANTIATE_TEST_SUITE_P(Ways, NcclEnded,
                         testing::Values(Way{"abort_blocking", true, true}, Way{"abort_polled", false, true},
                                         Way{"interrupted_blocking", true, false},
                                         Way{"interrupted_polled", false, false}),
                         [](const auto &test) { return std::string(test.param.name); });

}  // namespace
}  // namespace lasp_test
