// The step lists of every schedule, run for all ranks at once on symbolic maps: no transport, no memory. Checks
// that each rank ends up with exactly the composition of all earlier ranks' maps, that every receive has its send,
// that nothing waits in a circle, and that the bytes are those of docs/reference/schedules.md.
#include "exchange/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <optional>

#include "support/head_scatter.h"
#include "support/kinds.h"

namespace lasp {
namespace {

// A composition of consecutive positions [first, last]; per slice, so that pieces are followed too.
struct Range {
  int32_t first, last;
  bool operator==(const Range &) const = default;
};
using Map = std::vector<std::optional<Range>>;  // by slice

constexpr AffineMap kMap{Transition::kHead, 1, 3, 4, 8};
const int64_t kSlices = kMap.slices();

struct Rank {
  StepList list;
  std::vector<Map> slots;
  std::vector<bool> sending;  // slots that a send has read
  size_t next = 0;
};

class Simulation {
 public:
  Simulation(int32_t schedule, int32_t nranks, int32_t pieces) {
    for (int32_t p = 0; p < nranks; ++p) {
      Rank rank{make_steps(schedule, p, nranks, kMap, pieces), {}, {}, 0};
      rank.slots.assign(static_cast<size_t>(rank.list.slots), Map(kSlices));
      if (rank.list.own[0] >= 0)
        for (auto &row : rank.slots[static_cast<size_t>(rank.list.own[0])]) row = Range{p, p};
      ranks.push_back(rank);
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t p = 0; p < ranks.size(); ++p)
        while (advance(p)) moved = true;
    }
  }

  std::vector<Rank> ranks;
  std::map<std::pair<size_t, size_t>, std::deque<Map>> in_flight;
  int64_t rows_sent = 0;

 private:
  bool advance(size_t p) {
    Rank &rank = ranks[p];
    if (rank.next == rank.list.steps.size()) return false;
    const ExchangeStep &step = rank.list.steps[rank.next];
    if (step.op == Op::kSend) {
      const auto peer = static_cast<size_t>(step.peer);
      Map part(kSlices);
      for (int64_t r = step.begin; r < step.end; ++r) part[r] = rank.slots[step.slot][r];
      in_flight[{p, peer}].push_back(part);
      rows_sent += step.end - step.begin;
    } else if (step.op == Op::kReceive) {
      auto &queue = in_flight[{static_cast<size_t>(step.peer), p}];
      if (queue.empty()) return false;
      for (int64_t r = step.begin; r < step.end; ++r) {
        EXPECT_TRUE(queue.front()[r].has_value()) << "the sender's piece does not cover row " << r;
        EXPECT_EQ(queue.front()[r], (Range{step.first, step.last})) << "coverage announced wrongly";
        rank.slots[step.slot][r] = queue.front()[r];
      }
      queue.pop_front();
    } else if (step.op == Op::kCopy) {
      for (int64_t r = step.begin; r < step.end; ++r) rank.slots[step.slot][r] = rank.slots[step.earlier][r];
    } else {
      for (int64_t r = step.begin; r < step.end; ++r) {
        const auto later = rank.slots[step.later][r], earlier = rank.slots[step.earlier][r];
        EXPECT_TRUE(later && earlier);
        if (!later || !earlier) return false;
        EXPECT_EQ(earlier->last + 1, later->first) << "maps composed out of order";
        rank.slots[step.slot][r] = Range{earlier->first, later->last};
      }
    }
    ++rank.next;
    return true;
  }
};

struct Shape {
  int32_t schedule, nranks, pieces;
};

class Schedules : public testing::TestWithParam<int32_t> {};

TEST_P(Schedules, EveryRankGetsTheCompositionOfAllEarlierOnes) {
  for (int32_t nranks = 1; nranks <= 33; ++nranks) {
    for (const int32_t pieces : {1, 2, 5, 12}) {
      SCOPED_TRACE(testing::Message() << "nranks " << nranks << " pieces " << pieces);
      Simulation simulation(GetParam(), nranks, pieces);
      simulation.run();
      for (int32_t p = 0; p < nranks; ++p) {
        const Rank &rank = simulation.ranks[static_cast<size_t>(p)];
        ASSERT_EQ(rank.next, rank.list.steps.size()) << "rank " << p << " waits for ever";
        if (p == 0) {
          EXPECT_EQ(rank.list.result[0], -1);
          continue;
        }
        ASSERT_GE(rank.list.result[0], 0);
        for (const auto &row : rank.slots[static_cast<size_t>(rank.list.result[0])])
          EXPECT_EQ(row, (Range{0, p - 1})) << "rank " << p;
      }
      for (const auto &[pair, queue] : simulation.in_flight) EXPECT_TRUE(queue.empty()) << "a send without receive";
    }
  }
}

TEST_P(Schedules, BytesEqualTheFormula) {
  for (const int32_t nranks : {1, 2, 3, 4, 7, 8, 16, 33}) {
    Simulation simulation(GetParam(), nranks, 4);
    simulation.run();
    int64_t messages = 0;  // whole states over all ranks
    switch (GetParam()) {
      case LASP_SCHEDULE_ALL_GATHER: messages = int64_t{nranks} * (nranks - 1) / 2; break;
      case LASP_SCHEDULE_DOUBLING:
        for (int32_t distance = 1; distance < nranks; distance *= 2) messages += nranks - distance;
        break;
      case LASP_SCHEDULE_HEAD_SCATTER:
        for (Rank &rank : simulation.ranks)
          for (const ExchangeStep &step : rank.list.steps)
            EXPECT_FALSE(step.alone) << "what all ranks know goes nowhere";
        lasp_test::head_scatter_messages(nranks, kMap.heads, true, [&](int32_t, int32_t, int64_t share, bool) {
          simulation.rows_sent -= share * kMap.head_slices();
        });
        break;
      default: messages = nranks - 1;
    }
    EXPECT_EQ(simulation.rows_sent, messages * kSlices) << "nranks " << nranks;
  }
}

TEST_P(Schedules, ASlotIsNotRewrittenAfterItWasSent) {
  // Sends read the slot's memory until they complete, so only rows that were not sent yet may change.
  for (int32_t nranks = 2; nranks <= 17; ++nranks)
    for (int32_t p = 0; p < nranks; ++p) {
      const StepList list = make_steps(GetParam(), p, nranks, kMap, 3);
      std::map<int32_t, std::vector<std::pair<int64_t, int64_t>>> sent;
      for (const ExchangeStep &step : list.steps) {
        if (step.op == Op::kSend) {
          sent[step.slot].push_back({step.begin, step.end});
          continue;
        }
        for (const auto &[begin, end] : sent[step.slot])
          EXPECT_FALSE(step.begin < end && begin < step.end) << "nranks " << nranks << " position " << p;
      }
    }
}

TEST_P(Schedules, OnlyWhatIsSentTakesASlot) {
  for (int32_t nranks = 1; nranks <= 33; ++nranks)
    for (int32_t p = 0; p < nranks; ++p) {
      const StepList list = make_steps(GetParam(), p, nranks, kMap, 3);
      const auto sends = std::count_if(list.steps.begin(), list.steps.end(),
                                       [](const ExchangeStep &step) { return step.op == Op::kSend; });
      const bool owner = GetParam() == LASP_SCHEDULE_HEAD_SCATTER && nranks > 2;  // sends states back
      EXPECT_EQ(list.own[0] >= 0 || owner, sends > 0) << "nranks " << nranks << " position " << p;
      EXPECT_EQ(list.own[0] < 0, p == nranks - 1);
      std::vector<bool> used(static_cast<size_t>(list.slots), false);
      for (const ExchangeStep &step : list.steps) {
        ASSERT_LT(step.slot, list.slots);
        used[static_cast<size_t>(step.slot)] = true;
      }
      EXPECT_EQ(std::count(used.begin(), used.end(), false), 0) << "nranks " << nranks << " position " << p;
    }
  // Memory is the largest rank's: of an all-gather's eight maps no rank needs more than seven.
  if (GetParam() != LASP_SCHEDULE_ALL_GATHER) return;
  for (int32_t p = 0; p < 8; ++p) EXPECT_LE(make_steps(GetParam(), p, 8, kMap, 1).slots, 7);
}

TEST_P(Schedules, NumberOfHopsInSequence) {
  // The longest chain of dependent messages: what latency is paid for.
  const int32_t nranks = 16, pieces = 3;
  Simulation simulation(GetParam(), nranks, pieces);
  std::vector<int64_t> time(static_cast<size_t>(nranks), 0);
  std::map<std::pair<size_t, size_t>, std::deque<int64_t>> arrival;
  std::vector<size_t> next(static_cast<size_t>(nranks), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t p = 0; p < simulation.ranks.size(); ++p) {
      const auto &steps = simulation.ranks[p].list.steps;
      while (next[p] < steps.size()) {
        const ExchangeStep &step = steps[next[p]];
        const auto peer = static_cast<size_t>(step.peer);
        if (step.op == Op::kSend) arrival[{p, peer}].push_back(time[p] + 1);
        if (step.op == Op::kReceive) {
          auto &queue = arrival[{peer, p}];
          if (queue.empty()) break;
          time[p] = std::max(time[p], queue.front());
          queue.pop_front();
        }
        ++next[p];
        moved = true;
      }
    }
  }
  const int64_t longest = *std::max_element(time.begin(), time.end());
  switch (GetParam()) {
    case LASP_SCHEDULE_ALL_GATHER: EXPECT_EQ(longest, 1); break;
    case LASP_SCHEDULE_DOUBLING: EXPECT_EQ(longest, std::bit_width(uint32_t{nranks - 1})); break;
    case LASP_SCHEDULE_HEAD_SCATTER: EXPECT_EQ(longest, 2); break;
    default: EXPECT_EQ(longest, nranks - 1);  // pieces overlap: the chain of each is one hop a rank
  }
}

INSTANTIATE_TEST_SUITE_P(All, Schedules, testing::ValuesIn(lasp_test::kSchedules));

}  // namespace
}  // namespace lasp
