// Every kind of fault at every message or call of plan creation, forward and backward, over every schedule: each
// rank that lives gets a status in time, whose sentence names rank and call; nothing leaks, nothing is written that
// is not the call's to write, and the context says that it is of no more use. A message that is late changes no bit
// of a result; one that is damaged never becomes a number where messages are verified. In full with
// LASP_FAULT_FULL=1, which is tests/long/fault.sh.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "../endurance/counted_new.h"
#include "injected_group.h"
#include "support/kinds.h"

namespace {

using namespace lasp_fault;
using lasp_test::kDecays;

bool full() { return std::getenv("LASP_FAULT_FULL") != nullptr; }
bool quick() { return std::getenv("LASP_TEST_QUICK") != nullptr; }

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kLimitMs = 1000;
#else
const int64_t kLimitMs = full() ? 400 : 250;
#endif
constexpr double kSlackMs = 5000;  // for a busy machine; a hang would be endless
// Where the other ranks are told, they do not wait for a limit like this.
constexpr int64_t kLongMs = 60'000;
constexpr double kToldMs = 20'000;
constexpr Call kCalls[] = {Call::kPlan, Call::kForward, Call::kBackward};
// What a transport may answer, and what it may not.
constexpr lasp_status kStatuses[] = {
    LASP_ERROR_PEER_LOST, LASP_ERROR_ABORTED, LASP_ERROR_TRANSPORT, 12345, -1, LASP_ERROR_INVALID_ARGUMENT};

bool is_5xx(lasp_status status) { return status >= 500 && status < 600; }

bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

// Groups are mostly asleep: many at once.
void run_all(const std::vector<std::function<void()>> &jobs, size_t at_once) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(at_once, jobs.size()); ++i)
    threads.emplace_back([&] {
      for (size_t job = next++; job < jobs.size(); job = next++) jobs[job]();
    });
  for (std::thread &thread : threads) thread.join();
}

// The groups that faults are tried on; each with the undisturbed run that tells how many messages there are.
struct Subject {
  Setup setup;
  Report calm;
};

std::vector<Setup> setups(bool verify) {
  std::vector<Setup> all;
  Setup s;
  s.verify = verify;
  for (s.schedule = LASP_SCHEDULE_AUTO; s.schedule <= LASP_SCHEDULE_RELAY; ++s.schedule)
    for (s.nranks = full() ? 2 : 3; s.nranks <= (full() ? 5 : 3); ++s.nranks)
      for (const Inner inner : {Inner::kThreads, Inner::kMailboxes})
        for (const bool broadcast : {false, true}) {
          if (!full() && s.schedule == LASP_SCHEDULE_AUTO) continue;
          if (broadcast == ((s.nranks % 2 == 0) == verify)) continue;
          s.inner = inner;
          s.broadcast = broadcast;
          s.bidirectional = false;
          s.decay = kDecays[(s.nranks + s.schedule) % std::size(kDecays)];
          all.push_back(s);
          const bool segments = s.schedule == LASP_SCHEDULE_RING || s.schedule == LASP_SCHEDULE_ALL_SCAN;
          if (segments && (full() || inner == Inner::kThreads)) {
            s.segment = 16;
            all.push_back(s);
            s.segment = 0;
          }
          if (!full() || s.schedule == LASP_SCHEDULE_AUTO || s.schedule == LASP_SCHEDULE_RELAY) continue;
          s.bidirectional = true;
          s.decay = LASP_DECAY_NONE;
          all.push_back(s);
        }
  if (full()) return all;
  s.schedule = LASP_SCHEDULE_RING;
  s.inner = Inner::kThreads;
  s.nranks = 4;  // from which on two ranks in the middle wait for each other
  s.bidirectional = true;
  s.decay = LASP_DECAY_NONE;
  all.push_back(s);
  return all;
}

std::vector<Subject> subjects(std::initializer_list<bool> verify = {false, true}) {
  std::vector<Subject> all;
  for (const bool v : verify)
    for (const Setup &setup : setups(v)) {
      Setup calm = setup;
      calm.limit_ms = kLongMs;
      all.push_back({setup, run_group(calm, {}, false)});
      for (size_t r = 0; r < all.back().calm.ranks.size(); ++r) {
        const RankReport &rank = all.back().calm.ranks[r];
        EXPECT_EQ(rank.last().status, LASP_OK) << setup.name() << ", rank " << r << ": " << rank.last().sentence;
        EXPECT_EQ(rank.defects, "") << setup.name() << ", rank " << r;
      }
      if (testing::Test::HasFailure()) return {};  // nothing to try faults on
    }
  return all;
}

// How often each outcome was met; the line that the long run keeps.
struct Tally {
  std::atomic<int64_t> runs{0}, reached{0}, failures[3]{}, unharmed{0};
  std::atomic<int64_t> slowest_ms{0};
  void note(const RankReport &rank) {
    const lasp_status status = rank.last().status;
    if (is_5xx(status)) {
      ++failures[status - 500];
    } else {
      ++unharmed;
    }
    for (const Outcome &outcome : rank.outcomes) {
      const auto ms = static_cast<int64_t>(outcome.ms);
      for (int64_t seen = slowest_ms; ms > seen && !slowest_ms.compare_exchange_weak(seen, ms);) {
      }
    }
  }
  void print(const char *fault) const {
    std::printf(
        "%-22s %6lld runs, %6lld reached; ranks: %6lld PEER_LOST, %5lld ABORTED, %6lld TRANSPORT, %6lld OK; "
        "slowest call %lld ms\n",
        fault, static_cast<long long>(runs), static_cast<long long>(reached), static_cast<long long>(failures[0]),
        static_cast<long long>(failures[1]), static_cast<long long>(failures[2]), static_cast<long long>(unharmed),
        static_cast<long long>(slowest_ms));
    std::fflush(stdout);
  }
};

struct Attempt {
  const Subject *subject;
  Place place;
  int64_t limit_ms;
  std::string name() const {
    return subject->setup.name() + ": fault " + std::to_string(static_cast<int>(place.injection.fault)) + " at " +
           std::to_string(place.injection.at) + " of rank " + std::to_string(place.rank) + " in " +
           call_function(place.call) + ", status " + std::to_string(place.injection.status) + ", seed " +
           std::to_string(place.injection.seed);
  }
};

// True of every rank after whatever fault; "" or a complaint.
std::string general_complaint(int64_t limit_ms, int32_t r, const RankReport &rank) {
  const Outcome &last = rank.last();
  if (!rank.defects.empty()) return rank.defects;
  if (last.ms > (limit_ms == kLongMs ? kToldMs : static_cast<double>(limit_ms) + kSlackMs))
    return "took " + std::to_string(last.ms) + " ms";
  if (last.status == LASP_OK) return "";
  if (!is_5xx(last.status)) return "a status that is not the communicator's";
  if (!contains(last.sentence, "rank " + std::to_string(r))) return "the sentence does not name this rank";
  if (!contains(last.sentence, call_function(last.call))) return "the sentence does not name the call";
  if (rank.async_error != last.status) return "the async error is " + std::to_string(rank.async_error);
  if (rank.again.status != last.status) return "a later call returned " + std::to_string(rank.again.status);
  if (!contains(rank.again.sentence, last.status == LASP_ERROR_ABORTED ? "aborted" : last.sentence))
    return "a later call does not say why: " + rank.again.sentence;
  if (rank.again.ms > 1000) return "a later call waited again";
  return "";
}

// Whether the sentence says that one of the two at the ends of the fault did not come. Where ranks only know of
// their direct peers (mailboxes), or wait in a circle (a broadcast, two directions), the first to lose patience may
// blame one that itself waits.
bool names_lost(const Setup &setup, const std::string &sentence, const std::vector<int32_t> &suspects) {
  for (int32_t r = 0; r < setup.nranks; ++r) {
    const bool certain = setup.inner == Inner::kThreads && !setup.broadcast && !setup.bidirectional;
    const bool suspect = !certain || std::find(suspects.begin(), suspects.end(), r) != suspects.end();
    if (suspect && contains(sentence, "rank " + std::to_string(r) + " did not come")) return true;
  }
  return false;
}

void expect_all_know(const Attempt &attempt, const Report &report) {
  const std::vector<int32_t> suspects = {attempt.place.rank, report.peer};
  for (size_t r = 0; r < report.ranks.size(); ++r) {
    const Outcome &last = report.ranks[r].last();
    EXPECT_NE(last.status, LASP_OK) << attempt.name() << ": rank " << r << " has not heard of it";
    if (last.status == LASP_ERROR_PEER_LOST) {
      EXPECT_TRUE(names_lost(attempt.subject->setup, last.sentence, suspects))
          << attempt.name() << ": rank " << r << ": " << last.sentence;
    }
  }
}

void expect_unharmed(const Attempt &attempt, const Report &report) {
  for (size_t r = 0; r < report.ranks.size(); ++r) {
    const RankReport &rank = report.ranks[r], &calm = attempt.subject->calm.ranks[r];
    EXPECT_EQ(rank.last().status, LASP_OK) << attempt.name() << ": rank " << r << ": " << rank.last().sentence;
    for (int pass = 0; pass < 2; ++pass)
      EXPECT_EQ(rank.results[pass], calm.results[pass]) << attempt.name() << ": rank " << r << ", other bits";
  }
}

using Check = std::function<void(const Attempt &, const Report &)>;

// How many groups run at once: as their ranks mostly sleep until the limit, or have work to do. More of these, and
// on a machine with few CPUs a rank is late because it is not let run.
constexpr size_t kAsleep = 64, kAwake = 8;

void attempt_all(const char *name, const std::vector<Attempt> &attempts, size_t at_once, const Check &check) {
  Tally tally;
  std::atomic<bool> wrong{false};  // then the rest, which may sit out long limits too, is left
  const int64_t blocks = allocation::live_blocks();
  {
    std::vector<std::function<void()>> jobs;
    for (const Attempt &attempt : attempts)
      jobs.push_back([&] {
        if (wrong) return;
        Setup setup = attempt.subject->setup;
        setup.limit_ms = attempt.limit_ms;
        const Report report = run_group(setup, attempt.place, true);
        ++tally.runs;
        tally.reached += report.reached;
        for (size_t r = 0; r < report.ranks.size(); ++r) {
          tally.note(report.ranks[r]);
          const std::string complaint = general_complaint(setup.limit_ms, static_cast<int32_t>(r), report.ranks[r]);
          wrong = wrong || !complaint.empty();
          EXPECT_EQ(complaint, "") << attempt.name() << ": rank " << r << ": " << report.ranks[r].last().sentence;
        }
        check(attempt, report);
      });
    run_all(jobs, at_once);
  }
  if (!testing::Test::HasFailure()) {
    EXPECT_EQ(allocation::live_blocks(), blocks) << "blocks leaked";
  }
  EXPECT_GT(tally.reached, 0);
  tally.print(name);
}

// An end that fails tells the others.
int64_t limit(Fault fault) {
  const bool silent = fault == Fault::kDrop || fault == Fault::kCut || fault == Fault::kStop;
  return silent ? kLimitMs : kLongMs;
}

// One attempt for each place: every rank, call, and n up to `count` of them in the undisturbed run.
std::vector<Attempt> everywhere(const Subject &subject, Fault fault,
                                const std::function<int64_t(const Counts &)> &count,
                                const std::vector<lasp_status> &statuses, int seeds = 1) {
  static uint64_t seed = 0;
  std::vector<Attempt> attempts;
  for (int32_t rank = 0; rank < subject.setup.nranks; ++rank)
    for (const Call call : kCalls)
      for (int64_t n = count(subject.calm.ranks[static_cast<size_t>(rank)].counts[static_cast<int>(call)]); n > 0;
           --n)
        for (int i = 0; i < seeds; ++i) {
          ++seed;
          if (quick() && seed % 11 != 0) continue;
          const lasp_status status = statuses[seed % statuses.size()];
          const uint64_t mixed = seed * 0x9e3779b97f4a7c15 >> 16;
          attempts.push_back({&subject, {call, rank, {fault, n, status, mixed}}, limit(fault)});
        }
  return attempts;
}

std::vector<Attempt> everywhere(const std::vector<Subject> &all, Fault fault,
                                const std::function<int64_t(const Counts &)> &count,
                                const std::vector<lasp_status> &statuses, int seeds = 1) {
  std::vector<Attempt> attempts;
  for (const Subject &subject : all)
    for (const Attempt &a : everywhere(subject, fault, count, statuses, seeds)) attempts.push_back(a);
  return attempts;
}

const std::vector<lasp_status> kAllStatuses(std::begin(kStatuses), std::end(kStatuses));

// The victim's own status is what its transport said; the others learn of it.
void expect_failed(const Attempt &attempt, const Report &report) {
  if (!report.reached) return expect_unharmed(attempt, report);
  const lasp_status said = attempt.place.injection.status;
  const bool plain = said == LASP_ERROR_PEER_LOST || said == LASP_ERROR_ABORTED;
  const RankReport &victim = report.ranks[static_cast<size_t>(attempt.place.rank)];
  EXPECT_EQ(victim.last().status, plain ? said : LASP_ERROR_TRANSPORT) << attempt.name() << victim.last().sentence;
  EXPECT_EQ(victim.last().call, attempt.place.call) << attempt.name() << ": noticed later";
  expect_all_know(attempt, report);
}

TEST(Injection, AMessageThatIsLost) {
  const auto all = subjects();
  const auto sends = [](const Counts &c) { return c.sends; };
  attempt_all("lost message", everywhere(all, Fault::kDrop, sends, {LASP_OK}), kAsleep, expect_all_know);
}

TEST(Injection, ALinkThatIsCut) {
  const auto all = subjects();
  const auto sends = [](const Counts &c) { return c.sends; };
  attempt_all("cut link", everywhere(all, Fault::kCut, sends, {LASP_OK}), kAsleep, expect_all_know);
}

TEST(Injection, ARankThatStops) {
  const auto all = subjects();
  const auto calls = [](const Counts &c) { return c.calls(); };
  attempt_all("stopped rank", everywhere(all, Fault::kStop, calls, {LASP_OK}), kAsleep, expect_all_know);
}

TEST(Injection, ASendThatFails) {
  const auto all = subjects();
  const auto sends = [](const Counts &c) { return c.sends; };
  attempt_all("failed send", everywhere(all, Fault::kFailSend, sends, kAllStatuses), kAwake, expect_failed);
}

TEST(Injection, AReceiveThatFails) {
  const auto all = subjects();
  const auto receives = [](const Counts &c) { return c.receives; };
  attempt_all("failed receive", everywhere(all, Fault::kFailReceive, receives, kAllStatuses), kAwake,
              expect_failed);
}

TEST(Injection, AWaitThatFails) {
  const auto all = subjects();
  const auto waits = [](const Counts &c) { return c.waits; };
  attempt_all("failed wait", everywhere(all, Fault::kFailWait, waits, kAllStatuses), kAwake, expect_failed);
}

// How often a pass tests is a matter of timing. By the seed the `wait` that follows fails too, or all was well.
TEST(Injection, ATestThatFails) {
  const auto all = subjects();
  std::vector<Attempt> attempts;
  for (const Subject &subject : all) {
    // A rank that waited at once could wait in a circle, but only with states in both directions.
    const bool more = full() || subject.setup.bidirectional;
    const auto tests = [&](const Counts &c) { return std::min<int64_t>(c.tests, more ? 12 : 4); };
    for (const Attempt &a : everywhere(subject, Fault::kFailTest, tests, kAllStatuses, more && !full() ? 6 : 1))
      attempts.push_back(a);
  }
  attempt_all("failed test", attempts, kAwake, [](const Attempt &attempt, const Report &report) {
    if (attempt.place.injection.seed % 2 == 0) return expect_failed(attempt, report);
    expect_unharmed(attempt, report);
  });
}

void expect_damage_found(const Attempt &attempt, const Report &report) {
  const Outcome &victim = report.ranks[static_cast<size_t>(attempt.place.rank)].last();
  EXPECT_EQ(victim.status, LASP_ERROR_TRANSPORT) << attempt.name() << ": not noticed";
  EXPECT_EQ(victim.call, attempt.place.call) << attempt.name() << ": noticed later";
  EXPECT_TRUE(contains(victim.sentence, "rank " + std::to_string(report.peer) + " sent arrived changed"))
      << attempt.name() << ": " << victim.sentence;
  expect_all_know(attempt, report);
}

TEST(Injection, ADamagedMessageIsFoundWhereMessagesAreVerified) {
  const auto all = subjects({true});
  const auto receives = [](const Counts &c) { return c.receives; };
  attempt_all("damaged, verified", everywhere(all, Fault::kCorrupt, receives, {LASP_OK}, full() ? 4 : 3), kAwake,
              expect_damage_found);
}

// Data and checksums alike, on one group of each schedule.
TEST(Injection, AnyBitOfAnyMessageIsFound) {
  auto all = subjects({true});
  std::erase_if(all, [](const Subject &s) {
    return s.setup.inner != Inner::kThreads || s.setup.nranks != 3 || !s.setup.broadcast || s.setup.bidirectional;
  });
  const uint64_t stride = full() ? 11 : quick() ? 2039 : 307;
  std::vector<Attempt> attempts;
  for (const Subject &subject : all)
    for (int32_t rank = 0; rank < subject.setup.nranks; ++rank)
      for (const Call call : kCalls) {
        const auto &received =
            subject.calm.ranks[static_cast<size_t>(rank)].counts[static_cast<int>(call)].received;
        for (size_t n = 0; n < received.size(); ++n)
          for (uint64_t bit = 0; bit < 8 * received[n]; bit += std::min(stride, 4 * received[n] - 1))
            attempts.push_back(
                {&subject, {call, rank, {Fault::kCorrupt, static_cast<int64_t>(n) + 1, LASP_OK, bit}}, kLongMs});
      }
  attempt_all("any bit, verified", attempts, kAwake, expect_damage_found);
}

TEST(Injection, ADamagedMessageThatIsNotVerifiedIsARecordOrNumbers) {
  const auto all = subjects({false});
  const auto receives = [](const Counts &c) { return c.receives; };
  attempt_all("damaged, unverified", everywhere(all, Fault::kCorrupt, receives, {LASP_OK}, full() ? 4 : 3), kAwake,
              [](const Attempt &attempt, const Report &report) {
                if (attempt.place.call == Call::kPlan) return expect_all_know(attempt, report);
                for (const RankReport &rank : report.ranks)
                  EXPECT_EQ(rank.last().status, LASP_OK) << attempt.name() << ": " << rank.last().sentence;
              });
}

TEST(Injection, LateMessagesChangeNoBit) {
  const auto all = subjects();
  std::vector<Attempt> attempts;
  const uint64_t seeds = full() ? 40 : quick() ? 2 : 25;
  for (const Subject &subject : all)
    for (uint64_t seed = 0; seed < seeds; ++seed)
      attempts.push_back({&subject, {Call::kPlan, kEverywhere, {Fault::kDelay, 1, LASP_OK, seed}}, kLongMs});
  attempt_all("late messages", attempts, kAsleep, expect_unharmed);
}

}  // namespace
