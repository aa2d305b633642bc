// verify_messages: ranks that do not agree about it, what it leaves as it was, and that it allocates nothing in a
// pass. What it costs is printed where LASP_FAULT_COST is set.
#include <gtest/gtest.h>
#include <lasp/lasp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../endurance/counted_new.h"
#include "../kill/guarded_rank.h"
#include "base/checksum.h"
#include "support/kinds.h"

namespace {

using lasp_kill::Clock;
using lasp_kill::Guarded;
using lasp_kill::ms_since;

struct Shape {
  int32_t schedule = LASP_SCHEDULE_RING;
  int64_t tokens = 20;
  int32_t heads = 2, dim = 8;
  bool broadcast = true;
};

// One rank over the threads transport itself.
class Rank {
 public:
  Rank(lasp_comm *comm, int32_t verify) : comm_(comm) {
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.time_limit_ms = 60'000;
    options.cpu_threads = 1;
    options.verify_messages = verify;
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &options, &context_), LASP_OK) << lasp_last_error();
  }
  ~Rank() {
    EXPECT_EQ(lasp_plan_destroy(plan_), LASP_OK);
    EXPECT_EQ(lasp_context_destroy(context_), LASP_OK);
    EXPECT_EQ(lasp_comm_destroy(comm_), LASP_OK);
  }
  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

  lasp_status plan(const Shape &shape) {
    lasp_problem p = LASP_PROBLEM_INIT;
    p.tokens = shape.tokens;
    p.heads_q = p.heads_k = p.heads_v = shape.heads;
    p.head_dim_k = p.head_dim_v = shape.dim;
    p.schedule = shape.schedule;
    p.pieces = shape.schedule == LASP_SCHEDULE_ALL_SCAN ? 4 : 0;
    p.broadcast_final_state = shape.broadcast;
    lasp_status status;
    {
      const allocation::InLibrary in_library;
      status = lasp_plan_create(context_, &p, &plan_);
    }
    if (status != LASP_OK) {
      sentence = lasp_last_error();
      return status;
    }
    EXPECT_EQ(lasp_plan_get_info(plan_, &info), LASP_OK);
    const auto floats = static_cast<size_t>(shape.tokens * shape.heads * shape.dim);
    for (Guarded *b : {&input_, &o_, &dq_, &dk_, &dv_}) b->resize(4 * floats);
    for (size_t i = 0; i < floats; ++i) {
      const float x = static_cast<float>(i * 37 % 101) / 100;
      std::memcpy(input_.data() + 4 * i, &x, sizeof x);
    }
    final_.resize(static_cast<size_t>(4) * static_cast<size_t>(shape.heads * shape.dim * shape.dim));
    cache_.resize(info.state_cache_bytes);
    work_.resize(std::max(info.workspace_forward_bytes, info.workspace_backward_bytes));
    return LASP_OK;
  }
  lasp_status forward() {
    lasp_forward_args a = LASP_FORWARD_ARGS_INIT;
    a.q = a.k = a.v = input_.in();
    a.o = o_.out();
    a.final_state = final_.out();
    a.state_cache = cache_.out();
    a.workspace = work_.out();
    const allocation::InLibrary in_library;
    return lasp_forward(plan_, &a, nullptr);
  }
  lasp_status backward() {
    lasp_backward_args a = LASP_BACKWARD_ARGS_INIT;
    a.q = a.k = a.v = a.d_o = input_.in();
    a.state_cache = cache_.in();
    a.dq = dq_.out();
    a.dk = dk_.out();
    a.dv = dv_.out();
    a.workspace = work_.out();
    const allocation::InLibrary in_library;
    return lasp_backward(plan_, &a, nullptr);
  }
  std::vector<std::string> results() const {
    std::vector<std::string> all;
    for (const Guarded *b : {&o_, &final_, &dq_, &dk_, &dv_}) {
      Guarded copy = *b;
      all.emplace_back(reinterpret_cast<const char *>(copy.data()), copy.in().bytes);
    }
    return all;
  }
  lasp_traffic traffic() const {
    lasp_traffic t = LASP_TRAFFIC_INIT;
    EXPECT_EQ(lasp_comm_get_traffic(comm_, &t), LASP_OK);
    return t;
  }
  std::string describe() const {
    std::string text(4096, 0);
    EXPECT_EQ(lasp_plan_describe(plan_, text.data(), text.size(), nullptr), LASP_OK);
    return text;
  }
  lasp_status async_error() const {
    lasp_status status = -1;
    EXPECT_EQ(lasp_context_get_async_error(context_, &status, nullptr, 0), LASP_OK);
    return status;
  }

  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  std::string sentence;

 private:
  lasp_comm *comm_;
  lasp_context *context_ = nullptr;
  lasp_plan *plan_ = nullptr;
  Guarded input_, o_, dq_, dk_, dv_, final_, cache_, work_;
};

class Group {
 public:
  explicit Group(const std::vector<int32_t> &verify) {
    std::vector<lasp_comm *> comms(verify.size());
    EXPECT_EQ(lasp_comm_create_threads(static_cast<int32_t>(verify.size()), comms.data()), LASP_OK);
    for (size_t r = 0; r < verify.size(); ++r) ranks.push_back(std::make_unique<Rank>(comms[r], verify[r]));
  }
  void run(const std::function<void(Rank &)> &body) {
    std::vector<std::thread> threads;
    for (const auto &rank : ranks) threads.emplace_back([&] { body(*rank); });
    for (std::thread &thread : threads) thread.join();
  }
  std::vector<std::unique_ptr<Rank>> ranks;
};

using lasp_test::kSchedules;
using lasp_test::kSchedulesAndRelay;

TEST(Verify, RanksThatDisagreeAreToldAtOnceAndLiveOn) {
  for (const std::vector<int32_t> &verify : {std::vector<int32_t>{1, 1, 0}, {0, 0, 1}, {1, 0}, {0, 1, 1, 1}}) {
    Group group(verify);
    size_t other = 1;
    while (verify[other] == verify[0]) ++other;
    const std::string sentence = "verify_messages: rank 0 has " + std::to_string(verify[0]) + ", rank " +
                                 std::to_string(other) + " has " + std::to_string(verify[other]);
    for (int i = 0; i < 2; ++i)
      group.run([&](Rank &rank) {
        const auto begin = Clock::now();
        EXPECT_EQ(rank.plan({}), LASP_ERROR_DISAGREEMENT);
        EXPECT_EQ(rank.sentence, sentence);
        EXPECT_LT(ms_since(begin), 30'000);
        EXPECT_EQ(rank.async_error(), LASP_OK);
      });
  }
}

// The same bits, the same counts, and no allocation once a first pass has filled the transport's pool of requests.
TEST(Verify, ChangesNoResultNoCountAndAllocatesNothingInAPass) {
  for (const int32_t schedule : kSchedulesAndRelay) {
    Group group({0, 0, 0, 0}), verified({1, 1, 1, 1});
    Shape shape;
    shape.schedule = schedule;
    for (Group *g : {&group, &verified})
      g->run([&](Rank &rank) {
        ASSERT_EQ(rank.plan(shape), LASP_OK) << rank.sentence;
        const lasp_traffic before = rank.traffic();
        ASSERT_EQ(rank.forward(), LASP_OK) << lasp_last_error();
        const lasp_traffic between = rank.traffic();
        ASSERT_EQ(rank.backward(), LASP_OK) << lasp_last_error();
        const lasp_traffic after = rank.traffic();
        EXPECT_EQ(between.bytes_sent - before.bytes_sent, rank.info.forward_bytes_sent);
        EXPECT_EQ(between.messages_sent - before.messages_sent, rank.info.forward_messages_sent);
        EXPECT_EQ(after.bytes_sent - between.bytes_sent, rank.info.backward_bytes_sent);
        EXPECT_EQ(after.messages_sent - between.messages_sent, rank.info.backward_messages_sent);
        allocation::fail_at(1, true);
        const lasp_status forward = rank.forward(), backward = rank.backward();
        EXPECT_EQ(allocation::failed(), 0) << "a pass allocates";
        allocation::fail_at(0);
        EXPECT_EQ(forward, LASP_OK);
        EXPECT_EQ(backward, LASP_OK);
      });
    for (size_t r = 0; r < group.ranks.size(); ++r) {
      const Rank &plain = *group.ranks[r], &checked = *verified.ranks[r];
      EXPECT_EQ(plain.results(), checked.results()) << "schedule " << schedule << ", rank " << r;
      EXPECT_EQ(plain.info.forward_bytes_sent, checked.info.forward_bytes_sent);
      EXPECT_EQ(plain.info.workspace_forward_bytes, checked.info.workspace_forward_bytes);
      EXPECT_EQ(plain.describe().find("checksum"), std::string::npos);
      EXPECT_NE(checked.describe().find("checksum"), std::string::npos) << checked.describe();
    }
  }
}

// Memory runs out at the n-th allocation of a plan that verifies, until it does not: the rank says so, the other
// hears of it, nothing leaks. (Plans that do not: tests/endurance.)
TEST(Verify, APlanWithoutMemoryIsAStatusOnBothRanks) {
  int64_t n = 0;  // not counted yet: what a process keeps from its first group on
  for (bool reached = true; reached; ++n) {
    ASSERT_LT(n, 1000);
    const int64_t blocks = allocation::live_blocks();
    {
      Group group({1, 1});
      group.run([&](Rank &rank) {
        const bool poor = &rank == group.ranks[1].get();
        allocation::fail_at(!poor ? 0 : n == 0 ? 1 : n);
        const lasp_status status = rank.plan({});
        if (poor) reached = allocation::failed() + allocation::failed_quietly() > 0;
        const bool failed = allocation::failed() > 0;
        allocation::fail_at(0);
        if (poor) {
          EXPECT_EQ(status == LASP_ERROR_OUT_OF_MEMORY || status == LASP_ERROR_TRANSPORT, failed) << rank.sentence;
        } else {
          EXPECT_TRUE(status == LASP_OK || status == LASP_ERROR_PEER_LOST) << rank.sentence;
        }
      });
    }
    if (n > 0) {
      EXPECT_EQ(allocation::live_blocks(), blocks) << "allocation " << n;
    }
  }
  EXPECT_GE(n, 10);
}

// The median of the time of forward and backward, which is nearly all exchange: one chunk of tokens a rank.
double pass_ms(int32_t schedule, int32_t verify, int32_t heads, int passes) {
  Group group({verify, verify});
  Shape shape;
  shape.schedule = schedule;
  shape.heads = heads;
  shape.dim = 128;
  shape.tokens = 16;
  shape.broadcast = false;
  std::vector<double> times;
  group.run([&](Rank &rank) {
    ASSERT_EQ(rank.plan(shape), LASP_OK) << rank.sentence;
    for (int i = 0; i < passes; ++i) {
      const auto begin = Clock::now();
      ASSERT_EQ(rank.forward(), LASP_OK);
      ASSERT_EQ(rank.backward(), LASP_OK);
      if (&rank == group.ranks[0].get()) times.push_back(ms_since(begin));
    }
  });
  std::sort(times.begin(), times.end());
  return times.empty() ? 0 : times[times.size() / 2];
}

TEST(Verify, Cost) {
  const bool earnest = std::getenv("LASP_FAULT_COST") != nullptr;
  const int passes = earnest ? 15 : 2, rounds = earnest ? 9 : 1;
  const std::vector<float> state(1 << 20, 1.0f);
  double hash_ms = 1e9;
  uint64_t sum = 0;
  for (int i = 0; i < 20; ++i) {
    const auto begin = Clock::now();
    sum += lasp::checksum(state.data(), 4 * state.size(), sum);
    hash_ms = std::min(hash_ms, ms_since(begin));
  }
  std::printf("checksum of 4 MiB: %.1f GB/s (%llx)\n", 4.194304 / hash_ms, static_cast<unsigned long long>(sum));
  // The smallest of several medians, in turns: the machine may have other work.
  for (const int32_t heads : earnest ? std::vector<int32_t>{64, 16, 1} : std::vector<int32_t>{1})
    for (const int32_t schedule : kSchedules) {
      double plain = 1e9, checked = 1e9;
      for (int i = 0; i < rounds; ++i) {
        plain = std::min(plain, pass_ms(schedule, 0, heads, passes));
        checked = std::min(checked, pass_ms(schedule, 1, heads, passes));
      }
      std::printf("%-10s %5d KiB of state: forward and backward %7.3f ms, verified %7.3f ms, ratio %.2f\n",
                  lasp_kill::schedule_name(schedule), heads * 64, plain, checked, checked / plain);
      EXPECT_GT(plain, 0);
    }
}

}  // namespace
