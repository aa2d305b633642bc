// Handles made and destroyed over and over: blocks, file descriptors and threads come back to exactly what they
// were, resident memory to within a bound. LASP_CYCLES says how often (1,000; the long run takes 10,000).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "support/mailboxes.h"
#include "worker.h"

namespace {

using namespace endurance;

int64_t cycles() {
  const char *given = std::getenv("LASP_CYCLES");
  return given != nullptr ? std::atoll(given) : quick() ? 100 : 1000;
}

// The warm-up fills what is kept on purpose: the register's table, the allocator's caches, OpenBLAS's buffers. The
// kernel counts resident pages to within 64 per thread and CPU (256 KiB for a thread on each of two, and the
// arenas' tops move by as much), so 512 KiB is the least that means something: a leak of one page in 8 of 1,000
// cycles, of the least block of malloc (32 bytes) in 16,384. Leaks of operator new are seen at once, by count.
constexpr int64_t kResidentSlack = 512 << 10;

void stays_flat(const std::function<void()> &cycle) {
  const int64_t count = cycles();
  const int64_t threads = usage().threads;  // OpenBLAS may have some of its own
  for (int64_t i = 0; i < count / 5 + 20; ++i) cycle();
  const int64_t blocks = allocation::live_blocks();
  const Usage before = usage_settled(threads);
  for (int64_t i = 0; i < count && !testing::Test::HasFailure(); ++i) cycle();
  const int64_t blocks_after = allocation::live_blocks();
  const Usage after = usage_settled(before.threads);
  EXPECT_EQ(blocks_after, blocks) << "blocks of operator new leak";
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  if (resident_memory_is_telling()) {
    EXPECT_LE(after.resident, before.resident + kResidentSlack);
  }
  std::printf("%lld cycles: resident %lld KiB before, %lld KiB after; %lld blocks\n", static_cast<long long>(count),
              static_cast<long long>(before.resident / 1024), static_cast<long long>(after.resident / 1024),
              static_cast<long long>(blocks_after));
}

void expect_ok(const Answer &answer) { EXPECT_EQ(answer.status, LASP_OK) << answer.sentence; }

// Two threads in each context, so that its pool starts and stops one.
void whole_life(lasp_comm *comm, const Shape &shape) {
  Worker worker(comm);
  expect_ok(worker.open(20'000, 2));
  expect_ok(worker.pass(shape));
  expect_ok(worker.close());
}

TEST(Cycles, Self) {
  stays_flat([] {
    lasp_comm *comm = nullptr;
    ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
    whole_life(comm, Shape());
  });
}

void group_life(const std::vector<lasp_comm *> &comms, int32_t schedule) {
  Shape shape;
  shape.schedule = schedule;
  std::vector<std::thread> threads;
  for (lasp_comm *comm : comms) threads.emplace_back([&, comm] { whole_life(comm, shape); });
  for (std::thread &thread : threads) thread.join();
}

TEST(Cycles, ThreeThreads) {
  int64_t turn = 0;
  stays_flat([&] {
    std::vector<lasp_comm *> comms(3);
    ASSERT_EQ(lasp_comm_create_threads(3, comms.data()), LASP_OK);
    group_life(comms, kSchedules[turn++ % 4]);
  });
}

TEST(Cycles, CustomTransport) {
  int64_t turn = 0;
  stays_flat([&] {
    lasp_test::Mailboxes boxes(2);
    std::vector<lasp_comm *> comms(2);
    for (int32_t r = 0; r < 2; ++r) ASSERT_EQ(boxes.make_comm(r, &comms[static_cast<size_t>(r)]), LASP_OK);
    group_life(comms, kSchedules[turn++ % 4]);
  });
}

// Plans alone, on one context: the handle most often made.
TEST(Cycles, PlansOfOneContext) {
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  lasp_context *context = nullptr;
  ASSERT_EQ(lasp_context_create(LASP_ABI, comm, nullptr, &context), LASP_OK);
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = 40;
  problem.head_dim_k = problem.head_dim_v = 16;
  stays_flat([&] {
    lasp_plan *plan = nullptr;
    ASSERT_EQ(lasp_plan_create(context, &problem, &plan), LASP_OK);
    ASSERT_EQ(lasp_plan_destroy(plan), LASP_OK);
  });
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
}

// A refused problem leaves nothing behind either.
TEST(Cycles, RefusedPlans) {
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_self(&comm), LASP_OK);
  lasp_context *context = nullptr;
  ASSERT_EQ(lasp_context_create(LASP_ABI, comm, nullptr, &context), LASP_OK);
  lasp_problem problem = LASP_PROBLEM_INIT;
  problem.tokens = 40;
  problem.head_dim_k = problem.head_dim_v = 8;
  problem.chunk = 17;
  stays_flat([&] {
    lasp_plan *plan = nullptr;
    ASSERT_EQ(lasp_plan_create(context, &problem, &plan), LASP_ERROR_INVALID_ARGUMENT);
  });
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
}

}  // namespace
