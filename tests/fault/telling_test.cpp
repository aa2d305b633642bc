// What one rank's failure or refusal tells the others, and what their sentences say: at once, whom they lost, and
// why. Most waits here have a limit of half a minute, and every answer has come long before. A test ends with its
// first failure, so that it says so before anybody ends it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <stdexcept>

#include "../support/mailboxes.h"
#include "small_group.h"

namespace {

using namespace lasp_test;
using Clock = std::chrono::steady_clock;

constexpr int64_t kLongMs = 30'000;
constexpr auto kAtOnce = std::chrono::seconds(15);  // half of it: nobody sat it out

struct Refusal {
  const char *name;
  lasp_status status;
  const char *sentence;
  Result (*call)(Rank &);
};
Result forward(Rank &rank, void (*change)(lasp_forward_args &)) {
  lasp_forward_args a = rank.forward_args();
  change(a);
  return Rank::result(lasp_forward(rank.made_plan(), &a, nullptr));
}
Result backward(Rank &rank, void (*change)(lasp_backward_args &)) {
  lasp_backward_args a = rank.backward_args();
  change(a);
  return Rank::result(lasp_backward(rank.made_plan(), &a, nullptr));
}

const Refusal kForward[] = {
    {"a small buffer", LASP_ERROR_BUFFER_TOO_SMALL, "q holds 12 bytes",
     [](Rank &rank) { return forward(rank, [](auto &a) { a.q.bytes = 12; }); }},
    {"a misaligned one", LASP_ERROR_MISALIGNED, "workspace at",
     [](Rank &rank) {
       return forward(rank, [](auto &a) { a.workspace.data = static_cast<char *>(a.workspace.data) + 4; });
     }},
    {"no arguments", LASP_ERROR_INVALID_ARGUMENT, "args is null",
     [](Rank &rank) { return Rank::result(lasp_forward(rank.made_plan(), nullptr, nullptr)); }},
    {"a struct of no header's", LASP_ERROR_INVALID_STRUCT, "args.size = 12",
     [](Rank &rank) { return forward(rank, [](auto &a) { a.size = 12; }); }},
    {"a stream", LASP_ERROR_INVALID_ARGUMENT, "stream",
     [](Rank &rank) {
       const lasp_forward_args a = rank.forward_args();
       return Rank::result(lasp_forward(rank.made_plan(), &a, reinterpret_cast<lasp_stream>(&rank)));
     }},
    {"a flag of no value", LASP_ERROR_INVALID_ARGUMENT, "reuse_state_cache = 2",
     [](Rank &rank) { return forward(rank, [](auto &a) { a.reuse_state_cache = 2; }); }},
};
const Refusal kBackward[] = {
    {"a small buffer", LASP_ERROR_BUFFER_TOO_SMALL, "d_o holds 12 bytes",
     [](Rank &rank) { return backward(rank, [](auto &a) { a.d_o.bytes = 12; }); }},
    {"outputs in one place", LASP_ERROR_INVALID_ARGUMENT, "dq and dk share memory",
     [](Rank &rank) { return backward(rank, [](auto &a) { a.dk.data = a.dq.data; }); }},
    {"no arguments", LASP_ERROR_INVALID_ARGUMENT, "args is null",
     [](Rank &rank) { return Rank::result(lasp_backward(rank.made_plan(), nullptr, nullptr)); }},
};

// The broadcast of the final state makes every rank wait for every other one; in backward rank 0 waits for rank 1.
void expect_told(const Refusal &refusal, int32_t schedule, bool in_forward) {
  if (testing::Test::HasFailure()) return;
  SCOPED_TRACE(testing::Message() << refusal.name << ", schedule " << schedule << ", forward " << in_forward);
  const std::string call = in_forward ? "lasp_forward" : "lasp_backward";
  Group group(3, kLongMs);
  expect_all_ok(group.run([&](Rank &rank) { return rank.plan(schedule, true); }));
  if (!in_forward) expect_all_ok(group.run([](Rank &rank) { return rank.forward(); }));
  Rank *const refused = group.ranks[1].get();
  const auto start = Clock::now();
  const auto results = group.run([&](Rank &rank) {
    if (&rank == refused) return refusal.call(rank);
    return in_forward ? rank.forward() : rank.backward();
  });
  EXPECT_LT(Clock::now() - start, kAtOnce) << "somebody waited for the time limit";
  EXPECT_EQ(results[1].status, refusal.status);
  EXPECT_TRUE(contains(results[1].sentence, refusal.sentence)) << results[1].sentence;
  for (const size_t r : {0u, 2u}) {
    if (r == 2 && !in_forward && results[r].status == LASP_OK) continue;  // it needs nothing of rank 1's
    EXPECT_EQ(results[r].status, LASP_ERROR_PEER_LOST) << "rank " << r << ": " << results[r].sentence;
    EXPECT_TRUE(
        contains(results[r].sentence,
                 "rank 1 did not come, one of its own calls was refused or failed, as its own sentence says"))
        << results[r].sentence;
  }
  // On the rank that refused, the reason is remembered.
  const Result later = refused->forward();
  EXPECT_EQ(later.status, LASP_ERROR_ABORTED);
  EXPECT_TRUE(contains(later.sentence, call + " was refused on this rank")) << later.sentence;
  EXPECT_TRUE(contains(later.sentence, results[1].sentence)) << later.sentence;
  EXPECT_EQ(refused->async_error(), LASP_ERROR_ABORTED);
}

TEST(Refused, APassIsToldToTheOthersAtOnce) {
  for (const Refusal &refusal : kForward) expect_told(refusal, LASP_SCHEDULE_RING, true);
  for (const Refusal &refusal : kBackward) expect_told(refusal, LASP_SCHEDULE_RING, false);
  for (const int32_t schedule : kSchedulesAndRelay) {
    expect_told(kForward[0], schedule, true);
    expect_told(kBackward[0], schedule, false);
  }
}

TEST(Refused, WritesNothing) {
  Group group(2, kLongMs);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  lasp_forward_args a = group.ranks[0]->forward_args();
  std::memset(a.o.data, 0xa5, a.o.bytes);
  std::memset(a.state_cache.data, 0xa5, a.state_cache.bytes);
  const std::vector<char> canary(std::max(a.o.bytes, a.state_cache.bytes), static_cast<char>(0xa5));
  a.v.bytes -= 1;
  EXPECT_EQ(lasp_forward(group.ranks[0]->made_plan(), &a, nullptr), LASP_ERROR_BUFFER_TOO_SMALL);
  EXPECT_EQ(std::memcmp(a.o.data, canary.data(), a.o.bytes), 0);
  EXPECT_EQ(std::memcmp(a.state_cache.data, canary.data(), a.state_cache.bytes), 0);
}

// Nobody waits for these.
TEST(Refused, WhereNothingIsExchangedTheGroupLivesOn) {
  Group alone(1, kLongMs);
  expect_all_ok(alone.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  EXPECT_EQ(kForward[0].call(*alone.ranks[0]).status, LASP_ERROR_BUFFER_TOO_SMALL);
  expect_all_ok({alone.ranks[0]->forward(), alone.ranks[0]->backward()});

  Group group(2, kLongMs);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  expect_all_ok(group.run([](Rank &rank) { return rank.forward(); }));
  EXPECT_EQ(forward(*group.ranks[0],
                    [](auto &a) {
                      a.reuse_state_cache = 1;
                      a.q.bytes = 12;
                    })
                .status,
            LASP_ERROR_BUFFER_TOO_SMALL);
  EXPECT_EQ(lasp_plan_prepare(group.ranks[0]->made_plan(), reinterpret_cast<lasp_stream>(&group)),
            LASP_ERROR_INVALID_ARGUMENT);
  expect_all_ok(group.run([](Rank &rank) { return rank.backward(); }));
}

// A second thread that is refused says nothing of the call that is under way.
TEST(Refused, ASecondThreadDoesNotBreakTheGroup) {
  Caller caller;
  Group group(2, kLongMs, caller.options());
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  caller.asked = 0;
  Result early;
  std::thread waiting([&] { early = group.ranks[1]->forward(); });
  while (caller.asked == 0) std::this_thread::yield();
  EXPECT_EQ(kForward[2].call(*group.ranks[1]).status, LASP_ERROR_IN_USE);
  expect_all_ok({group.ranks[0]->forward()});
  waiting.join();
  expect_all_ok({early});
}

// ---- Failures inside a call ----

// Rank 0 of two, whose transport throws what no transport may, once it is told to: a stand-in for a defect of the
// library's own.
struct Defect {
  lasp_transport inner;
  void *user;
  bool armed = false;

  lasp_transport table() const {
    lasp_transport t = inner;
    t.send = [](void *u, const void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream s,
                void **request) {
      Defect &d = *static_cast<Defect *>(u);
      if (d.armed) throw std::logic_error("a defect for the test");
      return d.inner.send(d.user, data, bytes, peer, tag, s, request);
    };
    t.receive = [](void *u, void *data, uint64_t bytes, int32_t peer, int32_t tag, lasp_stream s, void **request) {
      Defect &d = *static_cast<Defect *>(u);
      return d.inner.receive(d.user, data, bytes, peer, tag, s, request);
    };
    t.test = [](void *u, void *request, int32_t *done) {
      Defect &d = *static_cast<Defect *>(u);
      return d.inner.test(d.user, request, done);
    };
    t.wait = [](void *u, void *request, int64_t limit_ms, int32_t *lost) {
      Defect &d = *static_cast<Defect *>(u);
      return d.inner.wait(d.user, request, limit_ms, lost);
    };
    t.cancel = [](void *u, void *request) {
      Defect &d = *static_cast<Defect *>(u);
      d.inner.cancel(d.user, request);
    };
    t.abort = [](void *u, int32_t lost) {
      Defect &d = *static_cast<Defect *>(u);
      d.inner.abort(d.user, lost);
    };
    return t;
  }
};

TEST(Failed, ADefectBreaksTheCommAndTheOthersAreTold) {
  for (const bool in_plan_creation : {true, false}) {
    if (HasFailure()) return;
    Mailboxes boxes(2);
    Defect defect{boxes.table(0), boxes.user(0)};
    const lasp_transport table = defect.table();
    lasp_comm *comms[2];
    ASSERT_EQ(lasp_comm_create_custom(&table, &defect, &comms[0]), LASP_OK);
    ASSERT_EQ(boxes.make_comm(1, &comms[1]), LASP_OK);
    Rank broken(comms[0], kLongMs), other(comms[1], kLongMs);
    const auto both = [&](const std::function<Result(Rank &)> &call) {
      std::vector<Result> results(2);
      std::thread thread([&] { results[1] = call(other); });
      results[0] = call(broken);
      thread.join();
      return results;
    };
    const auto plan = [](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING, true); };
    const auto start = Clock::now();
    std::vector<Result> results;
    if (in_plan_creation) {
      defect.armed = true;
      results = both(plan);
    } else {
      expect_all_ok(both(plan));
      defect.armed = true;
      results = both([](Rank &rank) { return rank.forward(); });
    }
    EXPECT_LT(Clock::now() - start, kAtOnce);
    EXPECT_EQ(results[0].status, LASP_ERROR_INTERNAL);
    EXPECT_EQ(results[0].sentence, "a defect for the test");
    EXPECT_EQ(broken.async_error(), LASP_ERROR_INTERNAL);
    const Result later = broken.plan(LASP_SCHEDULE_RING);
    EXPECT_EQ(later.status, LASP_ERROR_INTERNAL);
    EXPECT_TRUE(contains(later.sentence, results[0].sentence)) << later.sentence;
    EXPECT_EQ(results[1].status, LASP_ERROR_PEER_LOST);
    EXPECT_TRUE(contains(results[1].sentence, "rank 0 did not come")) << results[1].sentence;
  }
}

// ---- True sentences ----

TEST(Sentence, OfARankThatLeftSaysSo) {
  Group group(2, kLongMs);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  group.ranks[0].reset();
  const Result result = group.ranks[1]->forward();
  EXPECT_EQ(result.status, LASP_ERROR_PEER_LOST);
  EXPECT_EQ(result.sentence,
            "rank 0 did not come, its comm was destroyed: rank 1 (threads transport) was waiting for a state in "
            "lasp_forward, peer 0");
}

// Rank 1 gives up after its own limit; rank 2 is told of it long before its own.
TEST(Sentence, OfARankThatIsToldSaysNothingOfItsOwnLimit) {
  std::vector<lasp_comm *> comms(3);
  ASSERT_EQ(lasp_comm_create_threads(3, comms.data()), LASP_OK);
  Group group;
  for (size_t r = 0; r < 3; ++r) group.ranks.push_back(std::make_unique<Rank>(comms[r], r == 1 ? 300 : kLongMs));
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }));
  const auto results = group.run([](Rank &rank) { return rank.forward(); }, 0);
  EXPECT_TRUE(contains(results[1].sentence, "rank 0 did not come within the time limit of 300 ms"))
      << results[1].sentence;
  EXPECT_TRUE(contains(results[2].sentence, "rank 0 did not come, as the threads transport said after "))
      << results[2].sentence;
  EXPECT_FALSE(contains(results[2].sentence, "limit")) << results[2].sentence;
  const Result late = group.ranks[0]->forward();
  EXPECT_TRUE(
      contains(late.sentence, "rank 0 did not come within another rank's time limit, and this is that rank"))
      << late.sentence;
}

// One rank goes backward while the others go forward, or makes something, or moves a halo. Of what is made only
// that much is known.
TEST(Sentence, OfCallsOutOfStepNamesBothCalls) {
  struct Wrong {
    const char *call, *as_seen;
    Result (*make)(Rank &);
  };
  const Wrong wrongs[] = {
      {"lasp_backward", "lasp_backward", [](Rank &rank) { return rank.backward(); }},
      {"lasp_plan_create", "lasp_plan_create or lasp_halo_create",
       [](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING); }},
      {"lasp_halo_create", "lasp_plan_create or lasp_halo_create", [](Rank &rank) { return rank.halo(4); }},
      {"lasp_halo_backward", "lasp_halo_backward", [](Rank &rank) { return rank.halo_backward(); }}};
  for (const Wrong &wrong : wrongs)
    for (const size_t odd : {0u, 1u}) {
      SCOPED_TRACE(testing::Message() << wrong.call << " on rank " << odd);
      Group group(2, 300);
      expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_ALL_GATHER, true); }));
      expect_all_ok(group.run([](Rank &rank) { return rank.halo(3); }));
      expect_all_ok(group.run([](Rank &rank) { return rank.forward(); }));
      // A rank that gives all and wants nothing would go through.
      if (std::strcmp(wrong.call, "lasp_halo_backward") == 0 && odd == 1) continue;
      const auto results = group.run(
          [&](Rank &rank) { return &rank == group.ranks[odd].get() ? wrong.make(rank) : rank.forward(); });
      for (size_t r = 0; r < 2; ++r) {
        EXPECT_EQ(results[r].status, LASP_ERROR_PEER_LOST);
        const std::string mine = r == odd ? wrong.call : "lasp_forward",
                          theirs = r == odd ? "lasp_forward" : wrong.as_seen;
        EXPECT_TRUE(contains(results[r].sentence, "; rank " + std::to_string(1 - r) + " is in " + theirs +
                                                      ", this rank in " + mine +
                                                      ": all ranks must make the same calls in the same order"))
            << results[r].sentence;
      }
    }
}

// Where the ranks make the same call, nothing is said of steps.
TEST(Sentence, OfCallsInStepSaysNothingOfThem) {
  Group group(3, 200);
  expect_all_ok(group.run([](Rank &rank) { return rank.plan(LASP_SCHEDULE_RING, true); }));
  for (const Result &result : group.run([](Rank &rank) { return rank.forward(); }, 1))
    EXPECT_FALSE(contains(result.sentence, "same order")) << result.sentence;
}

}  // namespace
