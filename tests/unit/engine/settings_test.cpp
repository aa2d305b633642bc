// What the options of a context and the table of a transport say, and what becomes of it: the link that schedules
// are chosen by, CPU threads, the time limit, the log; and what a comm counts.
#include <gtest/gtest.h>
#include <lasp/lasp.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "engine/context.h"
#include "support/mailboxes.h"
#include "support/observed_transport.h"

namespace lasp {
namespace {

using lasp_test::Mailboxes;
using lasp_test::ObservedEnd;

constexpr int32_t kRanks = 3;

// What is stated of a link; 0: nothing.
struct Stated {
  double latency_us = 0, bandwidth_gbs = 0;
};
struct RankPlan {
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  std::string description, sentence;
  lasp_status status = LASP_OK;
};

lasp_problem small_problem() {
  lasp_problem p = LASP_PROBLEM_INIT;
  p.tokens = 5, p.batch = 2;
  p.heads_q = p.heads_k = p.heads_v = 32, p.head_dim_k = 8, p.head_dim_v = 16;
  return p;
}
constexpr uint64_t kPayload = 2 * 32 * 8 * 16 * sizeof(float);

std::string description_of(const lasp_plan *plan) {
  size_t needed = 0;
  EXPECT_EQ(lasp_plan_describe(plan, nullptr, 0, &needed), LASP_OK);
  std::string text(needed, '\0');
  EXPECT_EQ(lasp_plan_describe(plan, text.data(), needed, nullptr), LASP_OK);
  return text;
}

// Three ranks make a plan over mailboxes; each has a link of its own in its options and in its transport's table.
std::vector<RankPlan> plans_of(const std::vector<Stated> &options, const std::vector<Stated> &transport,
                               const lasp_problem &problem) {
  Mailboxes boxes(kRanks);
  std::vector<RankPlan> made(kRanks);
  std::vector<std::thread> ranks;
  for (int32_t r = 0; r < kRanks; ++r)
    ranks.emplace_back([&, i = static_cast<size_t>(r), r] {
      lasp_transport table = boxes.table(r);
      table.latency_us = transport[i].latency_us, table.bandwidth_gbs = transport[i].bandwidth_gbs;
      lasp_context_options o = LASP_CONTEXT_OPTIONS_INIT;
      o.latency_us = options[i].latency_us, o.bandwidth_gbs = options[i].bandwidth_gbs;
      o.cpu_threads = 1, o.time_limit_ms = 20'000;
      lasp_comm *comm = nullptr;
      lasp_context *context = nullptr;
      lasp_plan *plan = nullptr;
      EXPECT_EQ(lasp_comm_create_custom(&table, boxes.user(r), &comm), LASP_OK) << lasp_last_error();
      EXPECT_EQ(lasp_context_create(LASP_ABI, comm, &o, &context), LASP_OK) << lasp_last_error();
      made[i].status = lasp_plan_create(context, &problem, &plan);
      made[i].sentence = lasp_last_error();
      if (made[i].status == LASP_OK) {
        EXPECT_EQ(lasp_plan_get_info(plan, &made[i].info), LASP_OK);
        made[i].description = description_of(plan);
      }
      EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
      EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
      EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
    });
  for (std::thread &rank : ranks) rank.join();
  return made;
}
std::vector<RankPlan> plans_of(const Stated &options, const Stated &transport, const lasp_problem &problem) {
  return plans_of(std::vector<Stated>(kRanks, options), std::vector<Stated>(kRanks, transport), problem);
}

// The model's times by this link, for the pieces that the all-scan schedule would take.
void expect_predicted_by(const RankPlan &rank, double latency_us, double bandwidth_gbs, int32_t pieces = 0) {
  ASSERT_EQ(rank.status, LASP_OK) << rank.sentence;
  for (int32_t s = LASP_SCHEDULE_RING; s <= LASP_SCHEDULE_RELAY; ++s) {
    double predicted = -1;
    ASSERT_EQ(lasp_predict_exchange(s, kRanks, kPayload, pieces, latency_us, bandwidth_gbs, &predicted), LASP_OK);
    EXPECT_DOUBLE_EQ(rank.info.predicted_us[s], predicted) << "schedule " << s;
  }
  EXPECT_EQ(rank.info.predicted_us[0], rank.info.predicted_us[rank.info.schedule]);
  for (size_t s = LASP_SCHEDULE_RELAY + 1; s < std::size(rank.info.predicted_us); ++s)
    EXPECT_EQ(rank.info.predicted_us[s], -1) << "no schedule has number " << s;
}

// With a segment the others would change the order of sums.
TEST(Settings, SchedulesThatAreNotPossibleAreNotPredicted) {
  lasp_problem problem = small_problem();
  problem.segment = problem.chunk = 16, problem.tokens = 16;
  for (const RankPlan &rank : plans_of(Stated{5, 2}, Stated{0, 0}, problem)) {
    ASSERT_EQ(rank.status, LASP_OK) << rank.sentence;
    EXPECT_GT(rank.info.predicted_us[LASP_SCHEDULE_RING], 0);
    EXPECT_GT(rank.info.predicted_us[LASP_SCHEDULE_ALL_SCAN], 0);
    EXPECT_EQ(rank.info.predicted_us[LASP_SCHEDULE_ALL_GATHER], -1);
    EXPECT_EQ(rank.info.predicted_us[LASP_SCHEDULE_DOUBLING], -1);
    EXPECT_EQ(rank.info.predicted_us[LASP_SCHEDULE_HEAD_SCATTER], -1);
    EXPECT_EQ(rank.description.find("-1.0 us"), std::string::npos) << rank.description;
  }
}

TEST(Settings, TheLinkIsTheCallersElseTheTransportsElseAssumed) {
  const struct {
    Stated options, transport;
    double latency_us, bandwidth_gbs;
    const char *source;
  } rows[] = {
      {{0, 0}, {0, 0}, 10, 10, "assumed"},
      {{0, 0}, {3, 7}, 3, 7, "stated by the transport"},
      {{0, 0}, {3, 0}, 10, 10, "assumed"},
      {{5, 2}, {3, 7}, 5, 2, "given by the caller"},
      {{5, 0}, {3, 7}, 5, 7, "one of them given by the caller"},
      {{0, 2}, {0, 0}, 10, 2, "one of them given by the caller"},
  };
  for (const auto &row : rows) {
    const std::vector<RankPlan> plans = plans_of(row.options, row.transport, small_problem());
    for (size_t r = 0; r < plans.size(); ++r) {
      char said[200];
      std::snprintf(said, sizeof said, "latency %g us, bandwidth %g GB/s (%s)", row.latency_us, row.bandwidth_gbs,
                    r == 0 ? row.source : "as on rank 0");
      SCOPED_TRACE(said);
      expect_predicted_by(plans[r], row.latency_us, row.bandwidth_gbs);
      EXPECT_NE(plans[r].description.find(said), std::string::npos) << plans[r].description;
    }
  }
}

TEST(Settings, AllRanksChooseByTheLinkOfRank0) {
  const Stated slow_to_start{1000, 100}, narrow{0.1, 0.001};
  for (const bool swap : {false, true}) {
    const Stated first = swap ? narrow : slow_to_start, others = swap ? slow_to_start : narrow;
    const auto ranks = plans_of({first, others, others}, std::vector<Stated>(kRanks), small_problem());
    for (const RankPlan &rank : ranks) {
      expect_predicted_by(rank, first.latency_us, first.bandwidth_gbs);
      EXPECT_EQ(rank.info.schedule, swap ? LASP_SCHEDULE_ALL_SCAN : LASP_SCHEDULE_ALL_GATHER);
    }
  }
}

TEST(Settings, PiecesAreThoseAskedForAsFarAsThereAreRows) {
  lasp_problem p = small_problem();
  p.schedule = LASP_SCHEDULE_ALL_SCAN;
  for (const auto &[asked, made] : {std::pair{7, 7}, {512, 512}, {60'000, 512}}) {  // 2 rows of 32 heads and 8 keys
    p.pieces = asked;
    for (const RankPlan &rank : plans_of(Stated{5, 2}, {}, p)) {
      expect_predicted_by(rank, 5, 2, made);
      EXPECT_EQ(rank.info.pieces, made);
      EXPECT_NE(rank.description.find("in " + std::to_string(made) + " pieces"), std::string::npos);
    }
  }
  p.schedule = LASP_SCHEDULE_DOUBLING;
  for (const RankPlan &rank : plans_of(Stated{5, 2}, {}, p)) EXPECT_EQ(rank.info.pieces, 1);
}

TEST(Settings, TheDescriptionNamesTheScheduleThatWasChosen) {
  const char *const names[] = {"", "ring", "all-gather", "all-scan", "doubling", "head-scatter"};
  lasp_problem p = small_problem();
  for (p.schedule = LASP_SCHEDULE_AUTO; p.schedule <= LASP_SCHEDULE_HEAD_SCATTER; ++p.schedule)
    for (const RankPlan &rank : plans_of(Stated{1000, 100}, {}, p)) {
      const int32_t chosen = p.schedule == LASP_SCHEDULE_AUTO ? int32_t{LASP_SCHEDULE_ALL_GATHER} : p.schedule;
      EXPECT_EQ(rank.info.schedule, chosen);
      EXPECT_NE(rank.description.find("schedule: " + std::string(names[chosen])), std::string::npos)
          << rank.description;
    }
}

// A context over a transport of `nranks` that is never called.
std::unique_ptr<Context> context_of(Comm &comm, const lasp_context_options &options = LASP_CONTEXT_OPTIONS_INIT) {
  return std::make_unique<Context>(comm, options);
}
lasp_transport table_of(int32_t nranks, int32_t local_ranks) {
  lasp_transport t = LASP_TRANSPORT_INIT;
  t.nranks = nranks, t.local_ranks = local_ranks;
  return t;
}

TEST(Settings, RanksOfOneMachineShareItsCpus) {
  const int32_t cpus = usable_cpus();
  for (const int32_t local_ranks : {0, 1, 2, 3, 64}) {
    Comm comm(table_of(64, local_ranks), nullptr);
    EXPECT_EQ(context_of(comm)->cpu_threads(), std::max(1, cpus / std::max(local_ranks, 1))) << local_ranks;
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.cpu_threads = 3;
    EXPECT_EQ(context_of(comm, options)->cpu_threads(), 3) << local_ranks;
  }
  std::thread bound([] {  // to one CPU
    cpu_set_t mine, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &mine)) CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    Comm comm(table_of(1, 1), nullptr);
    EXPECT_EQ(context_of(comm)->cpu_threads(), 1);
  });
  bound.join();
}

struct Lines {
  std::vector<std::pair<int32_t, std::string>> messages;
  static void take(void *user, int32_t level, const char *message) {
    static_cast<Lines *>(user)->messages.emplace_back(level, message);
  }
};

TEST(Settings, OnlyMessagesOfTheLevelAndBelowAreLogged) {
  std::vector<size_t> counts;
  for (int32_t level = LASP_LOG_OFF; level <= LASP_LOG_DEBUG; ++level) {
    Lines lines;
    lasp_context_options options = LASP_CONTEXT_OPTIONS_INIT;
    options.log = Lines::take, options.log_user = &lines, options.log_level = level;
    Comm comm(table_of(2, 1), nullptr);
    const auto context = context_of(comm, options);
    counts.push_back(lines.messages.size());
    lines.messages.clear();
    std::vector<std::pair<int32_t, std::string>> wanted;
    for (int32_t of = LASP_LOG_WARNING; of <= LASP_LOG_DEBUG; ++of) {
      context->log().write(of, "of level %d", of);
      if (of <= level) wanted.emplace_back(of, "of level " + std::to_string(of));
    }
    EXPECT_EQ(lines.messages, wanted) << "level " << level;
  }
  EXPECT_EQ(counts[LASP_LOG_OFF], 0u);
  EXPECT_EQ(counts[LASP_LOG_WARNING], 0u) << "all is well";
  EXPECT_GE(counts[LASP_LOG_INFO], 1u) << "a context says what it is";
}

// The time that a rank was blocked in its transport: not more than its calls took, and at least what each wait did.
TEST(Settings, TimeSpentWaitingIsCounted) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kEach = std::chrono::milliseconds(20);
  Mailboxes boxes(2);
  ObservedEnd end(boxes.table(1), boxes.user(1));
  end.before_wait = [&] { std::this_thread::sleep_for(kEach); };
  std::thread other([&] {
    lasp_comm *comm = nullptr;
    EXPECT_EQ(boxes.make_comm(0, &comm), LASP_OK);
    lasp_context *context = nullptr;
    lasp_plan *plan = nullptr;
    const lasp_problem p = small_problem();
    EXPECT_EQ(lasp_context_create(LASP_ABI, comm, nullptr, &context), LASP_OK);
    EXPECT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
    EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
    EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
    EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
  });
  const lasp_transport table = end.table();
  lasp_comm *comm = nullptr;
  ASSERT_EQ(lasp_comm_create_custom(&table, &end, &comm), LASP_OK) << lasp_last_error();
  lasp_context *context = nullptr;
  lasp_plan *plan = nullptr;
  const lasp_problem p = small_problem();
  EXPECT_EQ(lasp_context_create(LASP_ABI, comm, nullptr, &context), LASP_OK);
  const auto begin = Clock::now();
  EXPECT_EQ(lasp_plan_create(context, &p, &plan), LASP_OK) << lasp_last_error();
  const std::chrono::duration<double> took = Clock::now() - begin;
  lasp_traffic traffic = LASP_TRAFFIC_INIT;
  EXPECT_EQ(lasp_comm_get_traffic(comm, &traffic), LASP_OK);
  ASSERT_GE(end.limits.size(), 2u);
  EXPECT_GE(traffic.wait_seconds,
            static_cast<double>(end.limits.size()) * std::chrono::duration<double>(kEach).count());
  EXPECT_LE(traffic.wait_seconds, took.count());
  EXPECT_EQ(lasp_plan_destroy(plan), LASP_OK);
  EXPECT_EQ(lasp_context_destroy(context), LASP_OK);
  EXPECT_EQ(lasp_comm_destroy(comm), LASP_OK);
  other.join();
}

}  // namespace
}  // namespace lasp
