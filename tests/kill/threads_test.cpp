// Ranks that are threads of one process and go wrong at seeded moments: one never calls again, one calls backward
// while the others call forward (or the other way round), one comes with other sizes. Every rank is told by a
// status within the time limit. LASP_KILL_SEEDS in the environment: how many seeds (12), a line is printed for
// each.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "guarded_rank.h"

namespace {

using namespace lasp_kill;

constexpr int64_t kLimitMs = 300;
constexpr double kSlackMs = 2500;  // for a busy machine, sanitizers included
constexpr int kCallsAfter = 8;     // that ranks which the wrong call did not concern get through, at most

int seeds() {
  const char *const set = std::getenv("LASP_KILL_SEEDS");
  return set != nullptr ? std::atoi(set) : 12;
}

struct Fault {
  int ranks, victim, at;  // at: how many passes go well
  Shape shape;

  explicit Fault(uint64_t seed) {
    Random random{seed * 7919};
    ranks = 2 + random.below(4);
    victim = random.below(ranks);
    at = random.below(7);
    shape.schedule = 1 + static_cast<int>(seed % 4);
    shape.dim = 8 << (2 * random.below(3));
    shape.broadcast = random.below(2) == 0;
    shape.bidirectional = random.below(3) == 0;
  }
};

class Group {
 public:
  explicit Group(int nranks) : outcomes(static_cast<size_t>(nranks)) {
    std::vector<lasp_comm *> comms(static_cast<size_t>(nranks));
    EXPECT_EQ(lasp_comm_create_threads(nranks, comms.data()), LASP_OK);
    for (lasp_comm *comm : comms) ranks.push_back(std::make_unique<GuardedRank>(comm, kLimitMs));
  }
  template <class Body>
  void run(Body body) {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks.size(); ++r)
      threads.emplace_back([&, r] { outcomes[r] = body(static_cast<int>(r), *ranks[r]); });
    for (std::thread &thread : threads) thread.join();
  }
  // What holds for a rank whatever happened; and the line of this seed.
  void conclude(const char *kind, uint64_t seed, const Fault &fault, int absent) {
    std::string line;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const Outcome &last = outcomes[r];
      GuardedRank &rank = *ranks[r];
      if (static_cast<int>(r) != absent) {
        EXPECT_LT(last.ms, static_cast<double>(kLimitMs) + kSlackMs) << "rank " << r;
        if (last.status >= 500) rank.check_broken();
        line += " " + std::to_string(last.status);
      }
      rank.check_memory();
      rank.destroy();
      EXPECT_EQ(rank.defects(), "") << "rank " << r;
    }
    std::printf("seed %llu: %s, rank %d of %d, %s, dim %d, after %d passes:%s\n",
                static_cast<unsigned long long>(seed), kind, fault.victim, fault.ranks,
                schedule_name(fault.shape.schedule), fault.shape.dim, fault.at, line.c_str());
  }

  std::vector<std::unique_ptr<GuardedRank>> ranks;
  std::vector<Outcome> outcomes;
};

// Passes begin..end-1, forward and backward in turn, until one fails.
Outcome passes(GuardedRank &rank, int begin, int end) {
  Outcome last;
  for (int i = begin; i < end && last.status == LASP_OK; ++i) last = rank.pass(i % 2 == 0);
  return last;
}

// A sentence that names a rank of the group as lost.
bool names_a_rank(const std::string &sentence, int nranks) {
  for (int r = 0; r < nranks; ++r)
    if (sentence.find("rank " + std::to_string(r) + " did not come") != std::string::npos) return true;
  return false;
}

TEST(Threads, OneThatNeverComesAgainIsNamedByAll) {
  for (int seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE(seed);
    const Fault fault(static_cast<uint64_t>(seed));
    Group group(fault.ranks);
    group.run([&](int r, GuardedRank &rank) {
      Outcome last = rank.plan(fault.shape);
      if (last.status != LASP_OK) return last;
      return passes(rank, 0, r == fault.victim ? fault.at : fault.at + kCallsAfter);
    });
    for (int r = 0; r < fault.ranks; ++r) {
      const Outcome &last = group.outcomes[static_cast<size_t>(r)];
      if (r == fault.victim) continue;
      EXPECT_EQ(last.status, LASP_ERROR_PEER_LOST) << "rank " << r << ": " << last.sentence;
      EXPECT_NE(last.sentence.find("rank " + std::to_string(fault.victim) + " did not come"), std::string::npos)
          << "rank " << r << ": " << last.sentence;
    }
    group.conclude("absent", static_cast<uint64_t>(seed), fault, fault.victim);
  }
}

TEST(Threads, OneThatMakesAnotherCallIsNeverAHang) {
  for (int seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE(seed);
    const Fault fault(static_cast<uint64_t>(seed) + 100000);
    Group group(fault.ranks);
    group.run([&](int r, GuardedRank &rank) {
      Outcome last = rank.plan(fault.shape);
      if (last.status == LASP_OK) last = passes(rank, 0, fault.at);
      if (last.status == LASP_OK) last = rank.pass((fault.at % 2 == 0) != (r == fault.victim));
      if (last.status == LASP_OK) last = passes(rank, fault.at + 1, fault.at + kCallsAfter);
      return last;
    });
    for (int r = 0; r < fault.ranks; ++r) {
      const Outcome &last = group.outcomes[static_cast<size_t>(r)];
      EXPECT_GE(last.status, 500) << "rank " << r << " was told nothing";
      EXPECT_TRUE(names_a_rank(last.sentence, fault.ranks)) << "rank " << r << ": " << last.sentence;
    }
    group.conclude("another call", static_cast<uint64_t>(seed), fault, -1);
  }
}

// In plan creation: a disagreement that names the field, on every rank, and the contexts live on.
TEST(Threads, OneWithOtherSizesIsADisagreementThatNamesTheField) {
  for (int seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE(seed);
    const Fault fault(static_cast<uint64_t>(seed) + 200000);
    Shape other = fault.shape;
    const char *const field = seed % 2 ? "heads" : "head_dim";
    (seed % 2 ? other.heads : other.dim) *= 2;
    Group group(fault.ranks);
    group.run([&](int r, GuardedRank &rank) {
      Outcome last = rank.plan(fault.shape);
      if (last.status == LASP_OK) last = passes(rank, 0, fault.at);
      return last.status == LASP_OK ? rank.plan(r == fault.victim ? other : fault.shape) : last;
    });
    for (const Outcome &last : group.outcomes) {
      EXPECT_EQ(last.status, LASP_ERROR_DISAGREEMENT) << last.sentence;
      EXPECT_NE(last.sentence.find(field), std::string::npos) << last.sentence;
    }
    group.run([&](int, GuardedRank &rank) {
      const Outcome last = rank.plan(fault.shape);
      return last.status == LASP_OK ? passes(rank, 0, 2) : last;
    });
    for (const Outcome &last : group.outcomes) EXPECT_EQ(last.status, LASP_OK) << last.sentence;
    group.conclude("other sizes", static_cast<uint64_t>(seed), fault, -1);
  }
}

// One makes a plan while the others already forward, or forwards while the others make one.
TEST(Threads, OneThatPlansWhileTheOthersPassIsNeverAHang) {
  for (int seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE(seed);
    const Fault fault(static_cast<uint64_t>(seed) + 300000);
    Group group(fault.ranks);
    group.run([&](int r, GuardedRank &rank) {
      Outcome last = rank.plan(fault.shape);
      if (last.status == LASP_OK) last = passes(rank, 0, fault.at);
      if (last.status != LASP_OK) return last;
      const bool plans = (r == fault.victim) == (seed % 2 == 0);
      last = plans ? rank.plan(fault.shape) : rank.pass(true);
      return last.status == LASP_OK ? passes(rank, 0, kCallsAfter) : last;
    });
    for (int r = 0; r < fault.ranks; ++r) {
      const Outcome &last = group.outcomes[static_cast<size_t>(r)];
      EXPECT_GE(last.status, 500) << "rank " << r << " was told nothing";
      EXPECT_TRUE(names_a_rank(last.sentence, fault.ranks)) << "rank " << r << ": " << last.sentence;
    }
    group.conclude("plans", static_cast<uint64_t>(seed), fault, -1);
  }
}

}  // namespace
