// The cost model, the thread pool, the threads of the BLAS and the workspace carver.
#include <gtest/gtest.h>
#include <lasp/lasp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "core/schedules.h"
#include "core/workspace.h"
#include "cpu/gemm.h"
#include "exchange/cost_model.h"

extern "C" {  // there where the BLAS of this process is OpenBLAS
[[gnu::weak]] void openblas_set_num_threads(int threads);
[[gnu::weak]] int openblas_get_num_threads(void);
}

namespace lasp {
namespace {

TEST(CostModel, FollowsItsFormulas) {
  const Link link{10, 1};  // 10 us, 1e3 bytes a microsecond
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_RING, 5, 2000, 1, link), 4 * (10 + 2.0));
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_ALL_GATHER, 5, 2000, 1, link), 10 + 4 * 2.0);
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_ALL_SCAN, 5, 2000, 4, link), (3 + 4) * (10 + 0.5));
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_DOUBLING, 5, 2000, 1, link), 3 * (10 + 2.0));
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();  // the sum of both is no int32
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_ALL_SCAN, kMost, 0, kMost, link), (2.0 * kMost - 2) * 10);
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_DOUBLING, 1024, 2000, 1, link), 10 * (10 + 2.0));
  EXPECT_EQ(predict_exchange_us(LASP_SCHEDULE_RING, 1, 2000, 1, link), 0);
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_HEAD_SCATTER, 5, 2000, 1, link), 2 * (10 + 4 * 2.0 / 5));
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_RELAY, 5, 2000, 1, link), 4 * (10 + 2.0));
  Payload few(2000, 3000);  // three owners of five ranks
  few.heads = 3;
  EXPECT_DOUBLE_EQ(predict_exchange_us(LASP_SCHEDULE_HEAD_SCATTER, 5, few, 1, link), 2 * 10 + 4 * 5.0 / 3);
}

TEST(CostModel, CountsRoundsOfBothWaysAndFolds) {
  const Link link{.latency_us = 10, .bandwidth_gbs = 1, .round_us = 100, .fold_us = 7, .fold_gbs = 2};
  const auto predict = [&](int32_t schedule, int32_t nranks, int32_t pieces = 1) {
    return predict_exchange_us(schedule, nranks, 2000, pieces, link);
  };
  EXPECT_DOUBLE_EQ(predict(LASP_SCHEDULE_RING, 5), 4 * (10 + 2.0) + 3 * (7 + 1.0));
  EXPECT_DOUBLE_EQ(predict(LASP_SCHEDULE_ALL_GATHER, 5), 10 + 4 * 2.0 + 100 + 7 + 3 * 1.0)
      << "one launch folds all";
  EXPECT_DOUBLE_EQ(predict(LASP_SCHEDULE_ALL_SCAN, 5, 4), 7 * (10 + 0.5) + 3 * 100 + 6 * (7 + 0.25));
  EXPECT_DOUBLE_EQ(predict(LASP_SCHEDULE_DOUBLING, 5), 3 * (10 + 2.0 + 100) + 2 * 2 * (7 + 1.0));
  EXPECT_DOUBLE_EQ(predict(LASP_SCHEDULE_HEAD_SCATTER, 5), 2 * (10 + 4 * 2.0 / 5 + 100) + 3 * (7 + 1.0 / 5));
  for (const ScheduleEntry &each : kSchedules)
    if (each.value != LASP_SCHEDULE_HEAD_SCATTER) {
      EXPECT_DOUBLE_EQ(predict(each.value, 2), 10 + 2.0) << "one message, and nobody sends and receives";
    }
}

TEST(CostModel, CountsProductsOfDenseTransitions) {
  const Link link{.latency_us = 10, .bandwidth_gbs = 1, .fold_us = 1e6, .dense_us = 7, .dense_tflops = 1e-3};
  Payload payload(2000, 3000);
  payload.dense_rows = 8;
  const double state = 500 * 2 * 8 / 1e3, transition = 250 * 2 * 8 / 1e3;  // 1e-3 TFLOP/s: 1e3 in a microsecond
  const auto predict = [&](int32_t schedule) { return predict_exchange_us(schedule, 5, payload, 1, link); };
  EXPECT_DOUBLE_EQ(predict(LASP_SCHEDULE_RING), 4 * (10 + 2.0) + 3 * (7 + state));
  EXPECT_DOUBLE_EQ(predict(LASP_SCHEDULE_ALL_GATHER), 10 + 4 * 3.0 + 3 * (7 + state));
  EXPECT_DOUBLE_EQ(predict(LASP_SCHEDULE_DOUBLING), 3 * (10 + 3.0) + 2 * (3 * 7 + 2 * state + transition));
}

TEST(CostModel, PicksByLatencyAndBandwidth) {
  EXPECT_EQ(best_schedule(64, 1e3, 1, {100, 10}), LASP_SCHEDULE_ALL_GATHER) << "tiny payload: latency rules";
  const Link slow{1, 1};
  const double payload = 64e6;
  EXPECT_EQ(best_schedule(64, payload, best_pieces(64, payload, 256, slow), slow), LASP_SCHEDULE_ALL_SCAN)
      << "large payload: volume rules";
  EXPECT_EQ(best_schedule(2, payload, 1, slow), LASP_SCHEDULE_RING) << "two ranks: one hop";
  EXPECT_EQ(best_schedule(8, 2e6, 1, {11, 250}), LASP_SCHEDULE_HEAD_SCATTER) << "two rounds, an eighth to each";
  EXPECT_EQ(best_schedule(8, 2e6, 1, {11, 250}, {.head_scatter = false}), LASP_SCHEDULE_DOUBLING);
  const Link folds{.latency_us = 10, .bandwidth_gbs = 100, .fold_us = 50};
  EXPECT_EQ(best_schedule(3, 2e6, 1, folds, {.head_scatter = false}), LASP_SCHEDULE_ALL_GATHER) << "and not relay";
  EXPECT_EQ(best_schedule(17, 2e6, 1, {11, 250}), LASP_SCHEDULE_DOUBLING) << "many to fold, one after the other";
}

TEST(CostModel, BestPiecesIsAMinimum) {
  for (const int32_t nranks : {3, 8, 64, 1024})
    for (const auto &[payload, link] :
         {std::pair<double, Link>{1e4, {5, 2}}, {1e6, {5, 2}}, {1e8, {5, 2}}, {1e8, {5, 2, 3, 4, 5}}}) {
      const int32_t best = best_pieces(nranks, payload, 256, link);
      const double time = predict_exchange_us(LASP_SCHEDULE_ALL_SCAN, nranks, payload, best, link);
      for (const int32_t other : {best - 1, best + 1}) {
        if (other < 1 || other > 256) continue;
        EXPECT_LE(time, predict_exchange_us(LASP_SCHEDULE_ALL_SCAN, nranks, payload, other, link) * 1.001);
      }
    }
}

TEST(CostModel, PiecesAreNoMoreThanThereMayBe) {
  const Link link{1, 1};
  for (const int32_t most : {-1, 0, 1, 2, 7, 256})
    EXPECT_EQ(best_pieces(64, 1e12, most, link), std::max(most, 1)) << "a minimum far beyond";
  EXPECT_EQ(best_pieces(64, 1e-3, 256, link), 1) << "a minimum below one";
  EXPECT_EQ(best_pieces(2, 1e12, 256, link), 1) << "one hop has nothing to overlap with";
}

TEST(ThreadPool, EveryItemOnce) {
  for (const int32_t threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(items));
      int between = 0;
      pool.parallel_for(
          items,
          [&](int64_t item, int32_t thread) {
            EXPECT_LT(thread, threads);
            ++hits[static_cast<size_t>(item)];
          },
          [&] { ++between; });
      for (const auto &hit : hits) EXPECT_EQ(hit, 1);
      if (threads == 1) {
        EXPECT_EQ(between, items);
      }
    }
  }
}

// An exchange that composes maps between the items of a pass does that by a loop inside the loop.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need memory of their own for a thread
TEST(ThreadPool, ThreadsThatTheSystemDoesNotStartAreSaid) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  int64_t pages = 0;
  ASSERT_TRUE(std::ifstream("/proc/self/statm") >> pages);
  rlimit little = before;
  little.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  std::string said;
  lasp_status status = LASP_OK;
  try {
    const ThreadPool pool(1000);
  } catch (const Error &error) {
    status = error.status;
    said = error.sentence;
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(status, LASP_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(said.find("cpu_threads = 1000: the system starts no more than "), 0u) << said;
}
#endif

TEST(ThreadPool, ALoopBetweenItems) {
  ThreadPool pool(3);
  for (int attempt = 0; attempt < 50; ++attempt) {
    std::vector<std::atomic<int>> hits(200), inner(200);
    int loops = 0;
    pool.parallel_for(
        200, [&](int64_t item, int32_t) { ++hits[static_cast<size_t>(item)]; },
        [&] {
          pool.parallel_for(200, [&](int64_t item, int32_t) { ++inner[static_cast<size_t>(item)]; });
          ++loops;
        });
    for (const auto &hit : hits) ASSERT_EQ(hit, 1);
    for (const auto &hit : inner) ASSERT_EQ(hit, loops);
  }
}

TEST(ThreadPool, AFailureBetweenItemsComesThroughAndThePoolLivesOn) {
  ThreadPool pool(3);
  int calls = 0;
  const auto failing = [&] {
    if (++calls == 1) throw std::runtime_error("lost");
  };
  std::atomic<int> done{0};
  // The workers may take all items before the caller gets one, so repeat until it did.
  bool thrown = false;
  for (int attempt = 0; attempt < 1000 && !thrown; ++attempt) {
    calls = 0;
    try {
      pool.parallel_for(
          64, [&](int64_t, int32_t) { ++done; }, failing);
    } catch (const std::runtime_error &) {
      thrown = true;
    }
  }
  EXPECT_TRUE(thrown);
  done = 0;
  pool.parallel_for(64, [&](int64_t, int32_t) { ++done; });
  EXPECT_EQ(done, 64);
}

// Passes of several ranks overlap in any order: one thread while any of them runs, then what it was before.
TEST(SerialBlas, GivesTheProcessItsThreadsBack) {
  if (openblas_set_num_threads == nullptr || openblas_get_num_threads == nullptr) GTEST_SKIP() << "not OpenBLAS";
  const int before = openblas_get_num_threads();
  const cpu::Products by = cpu::products();
  openblas_set_num_threads(3);
  cpu::multiply_by(cpu::Products::kBlas);
  auto first = std::make_unique<cpu::SerialBlas>();
  EXPECT_EQ(openblas_get_num_threads(), 1);
  auto second = std::make_unique<cpu::SerialBlas>();
  first.reset();
  EXPECT_EQ(openblas_get_num_threads(), 1) << "the second is still at work";
  second.reset();
  EXPECT_EQ(openblas_get_num_threads(), 3);
  cpu::multiply_by(cpu::Products::kOwn);
  {
    const cpu::SerialBlas serial;
    EXPECT_EQ(openblas_get_num_threads(), 3) << "it is not called";
  }
  cpu::multiply_by(by);
  openblas_set_num_threads(before);
}

TEST(Carver, CountsWhatItPlaces) {
  alignas(64) static std::byte memory[4096];
  Carver count(nullptr), place(memory);
  const auto carve = [](Carver &c) {
    auto *a = c.take<float>(3);
    auto *b = c.take<double>(17);
    auto *e = c.take<char>(0);
    return std::tuple(a, b, e);
  };
  carve(count);
  const auto [a, b, e] = carve(place);
  EXPECT_EQ(count.used(), place.used());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % kAlignment, 0u);
  EXPECT_GE(reinterpret_cast<std::byte *>(b), reinterpret_cast<std::byte *>(a + 3));
  EXPECT_EQ(static_cast<void *>(e), memory + place.used());
}

}  // namespace
}  // namespace lasp
