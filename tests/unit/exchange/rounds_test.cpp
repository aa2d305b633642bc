// The rounds a device runs a schedule in, for all ranks at once on symbolic maps: as on a device, a round's
// messages go as one group, whose sends do not wait for its receives, and its compositions follow. Checks that
// every receive finds its send, that no rank waits for ever, that each ends with the composition of all earlier
// ranks' maps, and that the chain of rounds is as short as the schedule promises.
#include "exchange/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "support/kinds.h"

namespace lasp {
namespace {

struct Range {
  int32_t first, last;
  bool operator==(const Range &) const = default;
};
using Map = std::vector<std::optional<Range>>;  // by slice

constexpr AffineMap kMap{Transition::kHead, 1, 3, 4, 8};
const int64_t kSlices = kMap.slices();

struct Rank {
  StepList list;
  std::vector<Round> rounds;
  std::vector<Map> slots;
  size_t next = 0;      // round
  bool posted = false;  // its sends have gone
  int32_t time = 0;     // rounds in sequence, through other ranks
};

struct Message {
  Map map;
  int32_t time;
};

class Simulation {
 public:
  Simulation(int32_t schedule, int32_t nranks, int32_t pieces, size_t most = 16) : most_(most) {
    for (int32_t p = 0; p < nranks; ++p) {
      Rank rank;
      rank.list = make_steps(schedule, p, nranks, kMap, pieces);
      rank.rounds = make_rounds(rank.list);
      rank.slots.assign(static_cast<size_t>(rank.list.slots), Map(kSlices));
      if (rank.list.own >= 0)
        for (auto &row : rank.slots[static_cast<size_t>(rank.list.own)]) row = Range{p, p};
      ranks.push_back(std::move(rank));
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t p = 0; p < ranks.size(); ++p)
        while (advance(p)) moved = true;
    }
  }

  std::vector<Rank> ranks;
  std::map<std::pair<size_t, size_t>, std::deque<Message>> in_flight;

 private:
  bool advance(size_t p) {
    Rank &rank = ranks[p];
    if (rank.next == rank.rounds.size()) return false;
    const Round &round = rank.rounds[rank.next];
    bool moved = false;
    if (!rank.posted) {
      send(p, round);
      rank.posted = moved = true;
    }
    if (!arrived(p, round)) return moved;
    receive(p, round);
    for (const Chain &chain : make_chains(rank.list, round, most_)) compose(rank, chain);
    ++rank.next;
    rank.posted = false;
    return true;
  }

  void send(size_t p, const Round &round) {
    Rank &rank = ranks[p];
    for (size_t i = round.begin; i < round.end; ++i) {
      const ExchangeStep &step = rank.list.steps[i];
      if (step.op != Op::kSend) continue;
      Map part(kSlices);
      const Map &from = rank.slots[static_cast<size_t>(step.slot)];
      std::copy(from.begin() + step.begin, from.begin() + step.end, part.begin() + step.begin);
      in_flight[{p, static_cast<size_t>(step.peer)}].push_back({part, rank.time + 1});
    }
  }

  bool arrived(size_t p, const Round &round) {
    std::map<int32_t, size_t> needed;
    for (size_t i = round.begin; i < round.end; ++i)
      if (const ExchangeStep &step = ranks[p].list.steps[i]; step.op == Op::kReceive) ++needed[step.peer];
    return std::all_of(needed.begin(), needed.end(), [&](const auto &need) {
      return in_flight[{static_cast<size_t>(need.first), p}].size() >= need.second;
    });
  }

  void receive(size_t p, const Round &round) {
    Rank &rank = ranks[p];
    for (size_t i = round.begin; i < round.end; ++i) {
      const ExchangeStep &step = rank.list.steps[i];
      if (step.op != Op::kReceive) continue;
      auto &queue = in_flight[{static_cast<size_t>(step.peer), p}];
      for (int64_t r = step.begin; r < step.end; ++r) {
        const auto row = static_cast<size_t>(r);
        EXPECT_EQ(queue.front().map[row], (Range{step.first, step.last}));
        rank.slots[static_cast<size_t>(step.slot)][row] = queue.front().map[row];
      }
      rank.time = std::max(rank.time, queue.front().time);
      queue.pop_front();
    }
  }

  // What a chain leaves in slots in between nobody may read: nothing is there.
  static void compose(Rank &rank, const Chain &chain) {
    const ExchangeStep &first = rank.list.steps[chain.front()];
    for (int64_t r = first.begin; r < first.end; ++r) {
      const auto row = static_cast<size_t>(r);
      const auto at = [&](int32_t slot) -> auto & { return rank.slots[static_cast<size_t>(slot)][row]; };
      std::optional<Range> state = at(first.earlier);
      for (const size_t i : chain) {
        const ExchangeStep &step = rank.list.steps[i];
        const auto later = at(step.later);
        ASSERT_TRUE(later && state);
        ASSERT_EQ(state->last + 1, later->first) << "maps composed out of order";
        state = Range{state->first, later->last};
        at(step.slot).reset();
      }
      at(rank.list.steps[chain.back()].slot) = state;
    }
  }

  size_t most_;
};

class DeviceRounds : public testing::TestWithParam<int32_t> {};

TEST_P(DeviceRounds, EveryRankGetsTheCompositionOfAllEarlierOnes) {
  for (int32_t nranks = 1; nranks <= 17; ++nranks)
    for (const auto &[pieces, most] : {std::pair{1, 16}, {2, 3}, {5, 16}, {12, 1}}) {
      SCOPED_TRACE(testing::Message() << "nranks " << nranks << " pieces " << pieces << " most " << most);
      const Simulation simulation(GetParam(), nranks, pieces, static_cast<size_t>(most));
      for (int32_t p = 0; p < nranks; ++p) {
        const Rank &rank = simulation.ranks[static_cast<size_t>(p)];
        ASSERT_EQ(rank.next, rank.rounds.size()) << "rank " << p << " waits for ever";
        if (p == 0) continue;
        for (const auto &row : rank.slots[static_cast<size_t>(rank.list.result)])
          EXPECT_EQ(row, (Range{0, p - 1})) << "rank " << p;
      }
      for (const auto &[pair, queue] : simulation.in_flight) EXPECT_TRUE(queue.empty()) << "a send without receive";
    }
}

TEST_P(DeviceRounds, CoverTheListInOrder) {
  for (int32_t nranks = 1; nranks <= 9; ++nranks)
    for (int32_t p = 0; p < nranks; ++p) {
      const StepList list = make_steps(GetParam(), p, nranks, kMap, 5);
      size_t at = 0;
      for (const Round &round : make_rounds(list)) {
        EXPECT_EQ(round.begin, at);
        EXPECT_LT(round.begin, round.end);
        at = round.end;
      }
      EXPECT_EQ(at, list.steps.size());
    }
}

// All incoming maps of an all-gather are composed by one launch, as far as a launch takes so many; other schedules
// send what they compose, or its transition.
TEST_P(DeviceRounds, ChainsOfCompositions) {
  constexpr size_t kMost = 4;
  for (const int32_t p : {0, 1, 2, 5, 9, 12}) {
    const StepList list = make_steps(GetParam(), p, 13, kMap, 1);
    size_t chains = 0, steps = 0;
    for (const Round &round : make_rounds(list))
      for (const Chain &chain : make_chains(list, round, kMost)) {
        EXPECT_LE(chain.size(), kMost);
        ++chains, steps += chain.size();
      }
    EXPECT_EQ(steps,
              static_cast<size_t>(std::count_if(list.steps.begin(), list.steps.end(),
                                                [](const ExchangeStep &step) { return step.op == Op::kCompose; })));
    EXPECT_EQ(chains, GetParam() == LASP_SCHEDULE_ALL_GATHER ? (steps + kMost - 1) / kMost : steps) << "rank " << p;
  }
}

// A receive taken into an earlier round than it needs would hold up the sends after it: the chain would grow.
TEST_P(DeviceRounds, ChainOfMessages) {
  const int32_t nranks = 8, pieces = 3;
  const Simulation simulation(GetParam(), nranks, pieces);
  int32_t longest = 0;
  size_t rounds = 0;
  for (const Rank &rank : simulation.ranks) {
    longest = std::max(longest, rank.time);
    rounds = std::max(rounds, rank.rounds.size());
  }
  switch (GetParam()) {
    case LASP_SCHEDULE_ALL_GATHER:
      EXPECT_EQ(longest, 1);
      EXPECT_EQ(rounds, 1u);
      break;
    case LASP_SCHEDULE_DOUBLING:
      EXPECT_EQ(longest, std::bit_width(uint32_t{nranks - 1}));
      EXPECT_EQ(rounds, static_cast<size_t>(std::bit_width(uint32_t{nranks - 1})));
      break;
    case LASP_SCHEDULE_ALL_SCAN:
      EXPECT_EQ(rounds, static_cast<size_t>(pieces) + 1) << "a piece goes on while the next arrives";
      EXPECT_EQ(longest, nranks - 1) << "pieces overlap: the chain of each is one hop a rank";
      break;
    default: EXPECT_EQ(longest, nranks - 1); EXPECT_EQ(rounds, 2u);
  }
}

ExchangeStep message(Op op, int32_t slot, int64_t begin = 0, int64_t end = 8) {
  ExchangeStep step{};
  step.op = op, step.slot = slot, step.begin = begin, step.end = end;
  return step;
}
ExchangeStep composition(int32_t slot, int32_t later, int32_t earlier, int64_t begin = 0, int64_t end = 8) {
  ExchangeStep step = message(Op::kCompose, slot, begin, end);
  step.later = later, step.earlier = earlier;
  return step;
}
size_t rounds_of(const ExchangeStep &earlier, const ExchangeStep &step) {
  StepList list;
  list.steps = {earlier, step};
  return make_rounds(list).size();
}

// Two steps at a time, whether or not a schedule of today has them in this order.
TEST(Rounds, AreNewWhereTheOrderOfTwoStepsMatters) {
  const ExchangeStep send = message(Op::kSend, 1), receive = message(Op::kReceive, 1);
  EXPECT_EQ(rounds_of(receive, send), 2u) << "a send hands on what arrives";
  EXPECT_EQ(rounds_of(send, receive), 2u) << "a receive writes over what is sent";
  EXPECT_EQ(rounds_of(receive, receive), 2u) << "two messages into one place";
  EXPECT_EQ(rounds_of(send, send), 1u) << "one map to two ranks";
  EXPECT_EQ(rounds_of(receive, message(Op::kSend, 2)), 1u);
  EXPECT_EQ(rounds_of(receive, message(Op::kSend, 1, 8, 16)), 1u) << "other rows of the same map";
  EXPECT_EQ(rounds_of(receive, message(Op::kSend, 1, 7, 16)), 2u) << "one row in common";
  EXPECT_EQ(rounds_of(receive, composition(3, 2, 1)), 1u) << "compositions come after the round's messages";
  const ExchangeStep compose = composition(3, 2, 1);
  EXPECT_EQ(rounds_of(compose, message(Op::kSend, 3)), 2u) << "what was composed goes out";
  EXPECT_EQ(rounds_of(compose, message(Op::kSend, 2)), 1u);
  for (const int32_t slot : {1, 2, 3})
    EXPECT_EQ(rounds_of(compose, message(Op::kReceive, slot)), 2u) << "written over: slot " << slot;
  EXPECT_EQ(rounds_of(compose, message(Op::kReceive, 4)), 1u);
  EXPECT_EQ(rounds_of(compose, composition(5, 4, 3)), 1u) << "compositions keep their order";
}

// 2 = 1 after 0, then 4 = 3 after 2: one chain, unless somebody else wants 2.
TEST(Chains, EndWhereSomebodyElseWantsWhatWasMade) {
  const auto chains = [](std::vector<ExchangeStep> steps, int32_t result = 4) {
    StepList list;
    list.steps = std::move(steps);
    list.result = result;
    return make_chains(list, {0, list.steps.size()}, 16).size();
  };
  const ExchangeStep one = composition(2, 1, 0), two = composition(4, 3, 2);
  EXPECT_EQ(chains({one, two}), 1u);
  EXPECT_EQ(chains({one, two}, 2), 2u) << "the result is what the first makes";
  EXPECT_EQ(chains({one, two, message(Op::kSend, 2)}), 2u) << "it is sent";
  EXPECT_EQ(chains({one, two, message(Op::kReceive, 2)}), 2u) << "it is written over";
  EXPECT_EQ(chains({one, two, composition(6, 5, 2)}), 3u) << "it is composed once more";
  EXPECT_EQ(chains({one, two, composition(6, 2, 5)}), 3u) << "likewise, as the later map";
  EXPECT_EQ(chains({one, composition(4, 3, 2, 0, 4)}), 2u) << "other rows";
  EXPECT_EQ(chains({one, composition(4, 2, 3)}), 2u) << "as the later map";
  for (const size_t i : {0, 1}) {
    std::vector<ExchangeStep> steps = {one, two};
    steps[i].transition = true;
    EXPECT_EQ(chains(steps), 2u) << "a transition is made by each for itself: step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceRounds, testing::ValuesIn(lasp_test::kSchedules));

}  // namespace
}  // namespace lasp
