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

int get_version(int *version) { return *version = 22809, 0; }
int comm_count(const void *, int *count) { return *count = kRanks, 0; }
int comm_user_rank(const void *, int *rank) { return *rank = kRank, 0; }
int comm_cu_device(const void *, int *device) { return *device = 0, 0; }
int comm_get_async_error(void *, int *result) { return *result = 0, 0; }
const char *get_error_string(int) { return "an error"; }
int group() { return 0; }
int send(const void *, size_t, int, int, void *, lasp_stream) { return 0; }
int recv(void *to, size_t bytes, int, int, void *, lasp_stream stream) {
  gpu::call(stream, wait_for_peer, nullptr);
  gpu::fill(to, 0, bytes, stream);
  return 0;
}
// All ranks have this one's problem.
int all_gather(const void *own, void *all, size_t bytes, int, void *, lasp_stream stream) {
  for (int32_t rank = 0; rank < kRanks; ++rank)
    gpu::copy(static_cast<char *>(all) + static_cast<size_t>(rank) * bytes, own, bytes, stream);
  return 0;
}

template <class Function>
lasp_function as_function(Function *function) {
  return reinterpret_cast<lasp_function>(function);
}

lasp_comm *played_comm() {
  lasp_nccl_functions f = LASP_NCCL_FUNCTIONS_INIT;
  f.get_version = as_function(get_version), f.comm_count = as_function(comm_count);
  f.comm_user_rank = as_function(comm_user_rank), f.comm_cu_device = as_function(comm_cu_device);
  f.comm_get_async_error = as_function(comm_get_async_error);
  f.get_error_string = as_function(get_error_string);
  f.send = as_function(send), f.recv = as_function(recv), f.all_gather = as_function(all_gather);
  f.group_start = f.group_end = as_function(group);
  static int nothing = 0;
  lasp_comm *comm = nullptr;
  EXPECT_EQ(lasp_comm_create_nccl(reinterpret_cast<ncclComm *>(&nothing), &f, &comm), LASP_OK) << lasp_last_error();
  return comm;
}

TEST(Replay, ALostPeerIsToldOfWhileTheThreadWaitsForTheStream) {
  peer_is_gone = false;
  const Case &c = case_named("head_batch");
  const RunOptions options;
  lasp_comm *const comm = played_comm();
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
