// A process that forks while it uses the library: in the child every handle of the parent's is refused with a
// sentence and nothing hangs, whatever other threads were in the middle of; handles that the child makes work.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "small_group.h"

#if defined(__SANITIZE_ADDRESS__)
// LeakSanitizer asks. What other threads held when the process forked looks lost in the child, where they are not.
static bool is_forked_child = false;
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off() { return is_forked_child ? 1 : 0; }
#endif

namespace {

using namespace lasp_test;

constexpr auto kLimit = std::chrono::seconds(20);

// Runs `body` in a forked child, which must leave by itself with exit status 0: with what `body` complains of
// printed, and none where all is well. A child that hangs is killed, and failed.
void in_a_child(const std::function<std::string()> &body) {
  std::fflush(nullptr);  // or the child writes it too
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
#if defined(__SANITIZE_ADDRESS__)
    is_forked_child = true;
#endif
    const std::string complaint = body();
    if (!complaint.empty()) std::fprintf(stderr, "in the child: %s\n", complaint.c_str());
    std::exit(complaint.empty() ? 0 : 1);  // with the destructors of all static objects
  }
  const auto start = std::chrono::steady_clock::now();
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() - start < kLimit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  ASSERT_EQ(ended, child) << "the child hung";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// "" when the call was refused as it should be.
std::string refused(const char *name, lasp_status status) {
  const std::string sentence = lasp_last_error();
  if (status == LASP_ERROR_INVALID_HANDLE && contains(sentence, "made in the process that forked this one"))
    return "";
  return std::string(name) + ": " + lasp_status_name(status) + ", \"" + sentence + "\"; ";
}

// Every kind of call on a rank whose process is the parent.
std::string use_of(Rank &rank) {
  int32_t number = 0;
  lasp_status status = 0;
  lasp_plan *plan = nullptr;
  lasp_context *context = nullptr;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  lasp_traffic traffic = LASP_TRAFFIC_INIT;
  const lasp_problem problem = LASP_PROBLEM_INIT;
  std::string all;
  all += refused("get_rank", lasp_comm_get_rank(rank.comm(), &number, nullptr));
  all += refused("get_traffic", lasp_comm_get_traffic(rank.comm(), &traffic));
  all += refused("context_create", lasp_context_create(LASP_ABI, rank.comm(), nullptr, &context));
  all += refused("get_device", lasp_context_get_device(rank.context(), &number, nullptr));
  all += refused("async_error", lasp_context_get_async_error(rank.context(), &status, nullptr, 0));
  all += refused("abort", lasp_context_abort(rank.context()));
  all += refused("plan_create", lasp_plan_create(rank.context(), &problem, &plan));
  all += refused("get_info", lasp_plan_get_info(rank.made_plan(), &info));
  all += refused("prepare", lasp_plan_prepare(rank.made_plan(), nullptr));
  all += refused("forward", lasp_forward(rank.made_plan(), nullptr, nullptr));
  all += refused("backward", lasp_backward(rank.made_plan(), nullptr, nullptr));
  all += refused("step", lasp_step(rank.made_plan(), nullptr, nullptr));
  all += refused("plan_destroy", lasp_plan_destroy(rank.made_plan()));
  all += refused("context_destroy", lasp_context_destroy(rank.context()));
  all += refused("comm_destroy", lasp_comm_destroy(rank.comm()));
  return all;
}

using Call = Result (*)(Rank &);
const Call kPlan = [](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING, true); };
const Call kForward = [](Rank &rank) { return rank.forward(); };
const Call kBackward = [](Rank &rank) { return rank.backward(); };

// A group of two of the child's own, with threads of their own.
std::string a_group_of_its_own() {
#if defined(__SANITIZE_THREAD__)
  return "";  // ThreadSanitizer does not let the child of a process with threads start any
#endif
  Group group(2, 10'000);
  std::string all;
  for (const Call call : {kPlan, kForward, kBackward})
    for (const Result &result : group.run(call))
      if (result.status != LASP_OK) all += result.sentence + "; ";
  return all;
}

std::string whole_child(Rank &inherited) { return use_of(inherited) + a_group_of_its_own() + use_of(inherited); }

TEST(Fork, HandlesOfTheParentAreRefusedInTheChild) {
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  Rank rank(comm, 10'000);
  ASSERT_EQ(rank.plan(LASP_SCHEDULE_RING).status, LASP_OK);
  ASSERT_EQ(rank.forward().status, LASP_OK);
  in_a_child([&] { return whole_child(rank); });
  // Nothing of this is the parent's loss, who may fork again, and whose child may.
  EXPECT_EQ(rank.backward().status, LASP_OK);
  in_a_child([&] {
    in_a_child([&] { return whole_child(rank); });
    return testing::Test::HasFailure() ? std::string("in the grandchild") : whole_child(rank);
  });
}

TEST(Fork, WithAPoolAndAnotherThreadInsideACall) {
  Caller caller;
  lasp_context_options options = caller.options();
  Group group(2, 60'000, options);
  lasp_context *with_pool = nullptr;
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  options.cpu_threads = 4;
  ASSERT_EQ(lasp_context_create(LASP_ABI, comm, &options, &with_pool), LASP_OK);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  caller.asked = 0;
  std::thread waiting([&] { expect_all_ok({group.ranks[1]->forward()}); });
  while (caller.asked == 0) std::this_thread::yield();
  in_a_child([&] {
    return whole_child(*group.ranks[0]) + whole_child(*group.ranks[1]) +
           refused("pool", lasp_context_destroy(with_pool));
  });
  expect_all_ok({group.ranks[0]->forward()});
  waiting.join();
  EXPECT_EQ(lasp_context_destroy(with_pool), LASP_OK);
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
}

// Other threads are at any point of any call when the process forks: again and again, so that sooner or later one
// of them holds each of the library's mutexes. Their passes have no tokens, and so multiply no matrices: OpenBLAS
// has a lock of its own, which a fork may copy locked, and which the child takes even where it ends.
TEST(Fork, AtAnyMomentOfOtherThreadsCalls) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP()
      << "AddressSanitizer's allocator has locks that a fork copies as they are";  // seen: its GetFromAllocator
#endif
  const int rounds = std::getenv("LASP_TEST_QUICK") != nullptr ? 10 : 60;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop) {
        lasp_comm *comm = nullptr;
        EXPECT_EQ(lasp_comm_create_self(&comm), LASP_OK);
        Rank rank(comm, 10'000);
        expect_all_ok({rank.plan(LASP_SCHEDULE_RING, false, 0)});
        for (int pass = 0; pass < 20; ++pass) expect_all_ok({rank.forward(), rank.backward()});
      }
    });
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  Rank rank(comm, 10'000);
  ASSERT_EQ(rank.plan(LASP_SCHEDULE_RING).status, LASP_OK);
  for (int i = 0; i < rounds && !HasFailure(); ++i) in_a_child([&] { return whole_child(rank); });
  stop = true;
  for (std::thread &thread : threads) thread.join();
}

}  // namespace
