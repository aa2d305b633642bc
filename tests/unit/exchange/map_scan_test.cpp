// Every schedule's steps run on maps of every kind, for all ranks at once and without a transport: messages are the
// bytes that the plan says, slots hold NaN until something is written. What comes in is what applying the maps of
// all earlier ranks one after the other gives, bit for bit, since their numbers are exact in float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "core/schedules.h"
#include "exchange/exchange.h"
#include "support/kinds.h"
#include "unit/core/owned_map.h"

namespace lasp {
namespace {

constexpr float kLogDecay[] = {-0.69314718f, 0.0f};  // of 1/2 and 1

struct Rank {
  ExchangePlan plan;
  std::vector<float> memory;
  std::unique_ptr<Slots> slots;
  size_t next = 0;
};

class Group {
 public:
  Group(const AffineMap &map, int32_t nranks, Direction direction, int32_t schedule, int32_t pieces) : map_(map) {
    for (int32_t r = 0; r < nranks; ++r) {
      resets_.push_back(r % 5 == 1);
      tokens_.push_back(r % 3);
      maps_.emplace_back(map);
      draw_.whole(maps_.back());
      if (map.is_known())
        map.fill_known_transition(maps_.back().transition(), {resets_.back() != 0, tokens_.back()}, kLogDecay);
    }
    for (int32_t r = 0; r < nranks; ++r) ranks_.push_back(make_rank(r, nranks, direction, schedule, pieces));
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank &rank : ranks_)
        for (; rank.next < rank.plan.list.steps.size() && step(rank); ++rank.next) moved = true;
    }
  }

  void expect_all() {
    std::vector<float> state(static_cast<size_t>(map_.state_floats()), 0.0f);
    for (size_t position = 0; position < ranks_.size(); ++position) {
      const auto r = static_cast<size_t>(ranks_[0].plan.peer_rank(static_cast<int32_t>(position)));
      const Rank &rank = ranks_[r];
      EXPECT_EQ(rank.next, rank.plan.list.steps.size()) << "rank " << r << " waits for ever";
      const float *incoming = rank.slots->incoming();
      ASSERT_EQ(incoming != nullptr, position > 0);
      if (incoming != nullptr) {
        EXPECT_EQ(std::vector<float>(incoming, incoming + map_.state_floats()), state) << "rank " << r;
      }
      std::vector<float> next(state.size());
      map_.apply(next.data(), maps_[r].view(), state.data(), map_.all());
      state = next;
    }
  }

 private:
  Rank make_rank(int32_t r, int32_t nranks, Direction direction, int32_t schedule, int32_t pieces) {
    Rank rank;
    rank.plan.direction = direction;
    rank.plan.rank = r, rank.plan.positions = nranks;
    rank.plan.map = map_;
    rank.plan.resets = resets_, rank.plan.tokens = tokens_;
    rank.plan.list = make_steps(schedule, rank.plan.peer_rank(r), nranks, map_, pieces);
    rank.plan.slot_offsets = find_slot_offsets(rank.plan);
    Carver count(nullptr);
    (void)Slots(rank.plan, count);
    rank.memory.assign(count.used() / sizeof(float), NAN);
    return rank;
  }

  // The plan and the memory stay where they are from now on.
  void place(Rank &rank) {
    if (rank.slots != nullptr) return;
    Carver carver(rank.memory.data());
    rank.slots = std::make_unique<Slots>(rank.plan, carver);
    OwnedMap &own = maps_[static_cast<size_t>(rank.plan.rank)];
    if (rank.slots->local().state != nullptr)
      std::copy(own.floats.begin(), own.floats.end(), rank.slots->local().state);
  }

  bool step(Rank &rank) {
    place(rank);
    const ExchangeStep &step = rank.plan.list.steps[rank.next];
    if (step.op == Op::kCompose) {
      AffineMapView to = rank.slots->map(step.slot);
      if (!step.transition) to.transition = nullptr;
      map_.compose(to, rank.slots->map(step.later), rank.slots->map(step.earlier), {step.begin, step.end});
      return true;
    }
    if (step.op == Op::kCopy) {
      std::copy_n(rank.slots->source(step), rank.plan.message_bytes(step) / sizeof(float),
                  rank.slots->message(step));
      return true;
    }
    const int32_t peer = rank.plan.peer_rank(step.peer);
    const auto floats = static_cast<std::ptrdiff_t>(rank.plan.message_bytes(step) / sizeof(float));
    float *const place = rank.slots->message(step);
    if (step.op == Op::kSend) {
      under_way_[{rank.plan.rank, peer}].emplace_back(place, place + floats);
      return true;
    }
    auto &queue = under_way_[{peer, rank.plan.rank}];
    if (queue.empty()) return false;
    EXPECT_EQ(queue.front().size(), static_cast<size_t>(floats)) << "what is sent is what is expected";
    std::copy(queue.front().begin(), queue.front().end(), place);
    queue.pop_front();
    if (rank.plan.knows_transition(step))
      map_.fill_known_transition(rank.slots->map(step.slot).transition, known_transition(rank.plan, step),
                                 kLogDecay);
    return true;
  }

  AffineMap map_;
  DrawMaps draw_;
  std::vector<char> resets_;
  std::vector<int64_t> tokens_;
  std::vector<OwnedMap> maps_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int32_t, int32_t>, std::deque<std::vector<float>>> under_way_;
};

class MapScan : public testing::TestWithParam<std::tuple<Transition, int32_t>> {};

// Eight dense maps with entries up to 1 and four keys make whole numbers below 2^20. Otherwise whole numbers below
// 2^5 are halved eight times at most.
TEST_P(MapScan, IsWhatApplyingOneAfterTheOtherGives) {
  const auto [kind, schedule] = GetParam();
  const AffineMap map{kind, 2, 2, 4, 3};
  for (int32_t nranks = 2; nranks <= 8; ++nranks)
    for (const Direction direction : {Direction::kLeftToRight, Direction::kRightToLeft})
      for (const int32_t pieces : {1, 3, 4}) {
        if (schedule != LASP_SCHEDULE_ALL_SCAN && pieces > 1) continue;
        SCOPED_TRACE(testing::Message() << nranks << " ranks, direction " << static_cast<int>(direction) << ", "
                                        << pieces << " pieces");
        Group group(map, nranks, direction, schedule, pieces);
        group.run();
        group.expect_all();
      }
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<Transition, int32_t>> &info) {
  const auto [kind, schedule] = info.param;
  std::string name = std::string(name_of(kind)) + "_" + find_schedule(schedule)->short_name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, MapScan,
                         testing::Combine(testing::ValuesIn(kTransitions),
                                          testing::ValuesIn(lasp_test::kSchedules)),
                         name_of_case);

}  // namespace
}  // namespace lasp
