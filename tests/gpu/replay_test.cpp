// Replays of a captured graph are watched: a rank whose peer is gone learns of it from its context, while its
// thread sits in a stream synchronisation. NCCL is played, so that one GPU is enough: the functions that the
// library calls are the test's, and a message that does not come is a host function that does not return.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "support/device.h"
#include "support/played_nccl.h"
#include "support/rank_memory.h"

namespace lasp_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLimit{700};
constexpr int32_t kRanks = 2, kRank = 1;

std::atomic<bool> peer_is_gone;

void wait_for_peer(void *) {
  while (peer_is_gone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A message that comes once the peer is there.
void receive(void *to, size_t bytes, lasp_stream stream) {
  gpu::call(stream, wait_for_peer, nullptr);
  gpu::fill(to, 0, bytes, stream);
}

TEST(Replay, ALostPeerIsToldOfWhileTheThreadWaitsForTheStream) {
  peer_is_gone = false;
  const Case &c = case_named("head_batch");
  const RunOptions options;
  gpu::PlayedNccl nccl{kRank, kRanks, receive};
  lasp_comm *const comm = gpu::played_comm(nccl);
  ASSERT_NE(comm, nullptr) << lasp_last_error();
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  lasp_context_options settings = LASP_CONTEXT_OPTIONS_INIT;
  settings.time_limit_ms = kLimit.count();
  ASSERT_EQ(lasp_context_create(LASP_ABI, comm, &settings, &context), LASP_OK) << lasp_last_error();
  const lasp_problem p = problem_of(c, kRank, kRanks, options);
  ASSERT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  ASSERT_EQ(lasp_plan_get_info(plan, &info), LASP_OK);
  RankMemory memory(c, cached_data(c), kRank, kRanks, options);
  memory.make_for(info);
  const lasp_stream stream = gpu::make_stream();
  memory.upload(stream);
  gpu::wait(stream);
  const auto look = [&](char(&text)[512]) {
    lasp_status status = LASP_OK;
    EXPECT_EQ(lasp_context_get_async_error(context, &status, text, sizeof text), LASP_OK) << lasp_last_error();
    return status;
  };
  char text[512];
  {
    const lasp_forward_args forward = memory.forward_args();
    gpu::Graph graph;
    graph.begin(stream);
    ASSERT_EQ(lasp_forward(plan, &forward, stream), LASP_OK) << lasp_last_error();
    graph.end(stream);
    for (int i = 0; i < 3; ++i) {  // all is well, for longer than the limit
      graph.launch(stream);
      gpu::wait(stream);
      ASSERT_EQ(look(text), LASP_OK) << text;
      std::this_thread::sleep_for(kLimit / 2);
    }
    peer_is_gone = true;
    const Clock::time_point begin = Clock::now();
    graph.launch(stream);
    std::thread computing([&] { gpu::wait(stream); });
    lasp_status status = LASP_OK;
    while (status == LASP_OK && Clock::now() < begin + 5 * kLimit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      status = look(text);
    }
    EXPECT_EQ(status, LASP_ERROR_PEER_LOST) << text;
    EXPECT_NE(std::string(text).find("an exchange of a captured graph did not end within the time limit of 700 ms"),
              std::string::npos)
        << text;
    EXPECT_NE(std::string(text).find("first with rank 0"), std::string::npos) << text;
    EXPECT_GE(Clock::now() - begin, kLimit);
    EXPECT_FALSE(gpu::finished(stream));
    peer_is_gone = false;  // as ncclCommAbort ends such a message
    computing.join();
  }
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK) << lasp_last_error();
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK) << lasp_last_error();
  gpu::destroy_stream(stream);
}

}  // namespace
}  // namespace lasp_test
