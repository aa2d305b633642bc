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
#include <numeric>
#include <optional>
#include <random>
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
  std::vector<int32_t> positions;
  StepList list;
  std::vector<Round> rounds;
  std::vector<size_t> receives;
  std::vector<Map> slots;
  size_t next = 0;      // round
  bool posted = false;  // its sends have gone
  int32_t time = 0;     // rounds in sequence, through other ranks
};

struct Message {
  Map map;
  int32_t time;
};

std::vector<int32_t> one_each(int32_t nranks) {
  std::vector<int32_t> owner(static_cast<size_t>(nranks));
  std::iota(owner.begin(), owner.end(), 0);
  return owner;
}

class Simulation {
 public:
  Simulation(int32_t schedule, int32_t nranks, int32_t pieces, size_t most = 16)
      : Simulation(schedule, one_each(nranks), pieces, most) {}
  // Of positions that these ranks own.
  Simulation(int32_t schedule, std::vector<int32_t> owner, int32_t pieces, size_t most = 16)
      : owner_(std::move(owner)), most_(most) {
    const auto positions = static_cast<int32_t>(owner_.size());
    for (int32_t r = 0; r <= *std::max_element(owner_.begin(), owner_.end()); ++r) {
      Rank rank;
      std::vector<StepList> lists;
      for (int32_t p = 0; p < positions; ++p) {
        if (owner_[static_cast<size_t>(p)] != r) continue;
        lists.push_back(make_steps(schedule, p, positions, kMap, pieces));
        rank.positions.push_back(p);
      }
      rank.list = join_lists(lists);
      rank.rounds = make_rounds(rank.list);
      rank.receives = order_of_receives(rank.list);
      rank.slots.assign(static_cast<size_t>(rank.list.slots), Map(kSlices));
      for (size_t run = 0; run < rank.positions.size(); ++run)
        if (const int32_t own = rank.list.own[run]; own >= 0)
          for (auto &row : rank.slots[static_cast<size_t>(own)])
            row = Range{rank.positions[run], rank.positions[run]};
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
    copy(rank, round);
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
      const auto peer = static_cast<size_t>(owner_[static_cast<size_t>(step.peer)]);
      EXPECT_NE(peer, p) << "a message to itself";
      in_flight[{p, peer}].push_back({part, rank.time + 1});
    }
  }

  bool arrived(size_t p, const Round &round) {
    std::map<int32_t, size_t> needed;
    for (size_t i = round.begin; i < round.end; ++i)
      if (const ExchangeStep &step = ranks[p].list.steps[i]; step.op == Op::kReceive)
        ++needed[owner_[static_cast<size_t>(step.peer)]];
    return std::all_of(needed.begin(), needed.end(), [&](const auto &need) {
      return in_flight[{static_cast<size_t>(need.first), p}].size() >= need.second;
    });
  }

  void receive(size_t p, const Round &round) {
    Rank &rank = ranks[p];
    for (const size_t i : rank.receives) {
      if (i < round.begin || i >= round.end) continue;
      const ExchangeStep &step = rank.list.steps[i];
      auto &queue = in_flight[{static_cast<size_t>(owner_[static_cast<size_t>(step.peer)]), p}];
      for (int64_t r = step.begin; r < step.end; ++r) {
        const auto row = static_cast<size_t>(r);
        EXPECT_EQ(queue.front().map[row], (Range{step.first, step.last}));
        rank.slots[static_cast<size_t>(step.slot)][row] = queue.front().map[row];
      }
      rank.time = std::max(rank.time, queue.front().time);
      queue.pop_front();
    }
  }

  static void copy(Rank &rank, const Round &round) {
    for (size_t i = round.begin; i < round.end; ++i) {
      const ExchangeStep &step = rank.list.steps[i];
      for (int64_t r = step.begin; step.op == Op::kCopy && r < step.end; ++r) {
        const auto row = static_cast<size_t>(r);
        const auto from = rank.slots[static_cast<size_t>(step.earlier)][row];
        EXPECT_EQ(from, (Range{step.first, step.last}));
        rank.slots[static_cast<size_t>(step.slot)][row] = from;
      }
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

  std::vector<int32_t> owner_;
  size_t most_;
};

void expect_scanned(const Simulation &simulation) {
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    const Rank &rank = simulation.ranks[r];
    ASSERT_EQ(rank.next, rank.rounds.size()) << "rank " << r << " waits for ever";
    for (size_t run = 0; run < rank.positions.size(); ++run) {
      if (rank.positions[run] == 0) continue;
      for (const auto &row : rank.slots[static_cast<size_t>(rank.list.result[run])])
        EXPECT_EQ(row, (Range{0, rank.positions[run] - 1})) << "rank " << r << ", run " << run;
    }
  }
  for (const auto &[pair, queue] : simulation.in_flight) EXPECT_TRUE(queue.empty()) << "a send without receive";
}

class DeviceRounds : public testing::TestWithParam<int32_t> {};

TEST_P(DeviceRounds, EveryRankGetsTheCompositionOfAllEarlierOnes) {
  for (int32_t nranks = 1; nranks <= 17; ++nranks)
    for (const auto &[pieces, most] : {std::pair{1, 16}, {2, 3}, {5, 16}, {12, 1}}) {
      SCOPED_TRACE(testing::Message() << "nranks " << nranks << " pieces " << pieces << " most " << most);
      expect_scanned(Simulation(GetParam(), nranks, pieces, static_cast<size_t>(most)));
    }
}

std::vector<int32_t> zigzag(int32_t nranks) {
  std::vector<int32_t> owner;
  for (int32_t p = 0; p < 2 * nranks - 1; ++p) owner.push_back(std::min(p, 2 * nranks - 2 - p));
  return owner;
}

// Ranks that own several positions, in a zigzag and anyhow.
TEST_P(DeviceRounds, OfRanksWithSeveralRuns) {
  std::mt19937 random(11);
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const auto nranks = static_cast<int32_t>(2 + random() % 5);
    std::vector<int32_t> owner;
    if (i % 3 == 0) {
      owner = zigzag(nranks);
    } else {
      owner = one_each(nranks);
      for (int32_t n = static_cast<int32_t>(random() % 12); n > 0; --n)
        owner.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(nranks)));
      std::shuffle(owner.begin(), owner.end(), random);
    }
    SCOPED_TRACE(testing::PrintToString(owner));
    expect_scanned(Simulation(GetParam(), owner, i % 2 == 0 ? 3 : 1));
  }
}

// A CPU takes one step of a list after the other: what others may wait for comes before what this rank waits for.
TEST_P(DeviceRounds, BeginWithWhatOthersWaitFor) {
  for (int32_t nranks = 2; nranks <= 5; ++nranks)
    for (const Rank &rank : Simulation(GetParam(), zigzag(nranks), 3).ranks)
      for (const Round &round : rank.rounds) {
        bool waited = false;
        for (size_t i = round.begin; i < round.end; ++i) {
          const Op op = rank.list.steps[i].op;
          waited = waited || op == Op::kReceive;
          EXPECT_FALSE(waited && (op == Op::kSend || op == Op::kCopy)) << nranks << " ranks, step " << i;
        }
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
    case LASP_SCHEDULE_HEAD_SCATTER:
      EXPECT_EQ(longest, 2);
      EXPECT_EQ(rounds, 2u);
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
// 2 = 1 after 0, then 4 = 3 after 2: one chain, unless somebody else wants 2.
TEST(Chains, EndWhereSomebodyElseWantsWhatWasMade) {
  const auto chains = [](std::vector<ExchangeStep> steps, int32_t result = 4) {
    StepList list;
    list.steps = std::move(steps);
    list.result = {result};
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
