// Where the maps of an exchange lie: the first ones in borrowed memory of any alignment, the others in the
// workspace, none over another, and the workspace counted without addresses is the workspace taken with them.
#include "exchange/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lasp {
namespace {

ExchangePlan plan_of(int32_t position, int32_t nranks) {
  ExchangePlan plan;
  plan.rank = position;
  plan.positions = nranks;
  plan.map = {Transition::kHead, 1, 3, 8, 16};
  plan.list = make_steps(LASP_SCHEDULE_ALL_GATHER, position, nranks, plan.map, 1);
  return plan;
}

TEST(Slots, LieApartInBorrowedMemoryFirst) {
  constexpr int32_t kRanks = 8;
  const uint64_t map = (3 * 8 * 16 + 3) * sizeof(float), stride = (map + 63) / 64 * 64;
  for (int32_t position = 0; position < kRanks; ++position) {
    const ExchangePlan plan = plan_of(position, kRanks);
    const auto slots = static_cast<uint64_t>(plan.list.slots);
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{63}, stride, stride + 63, stride + 64, 3 * stride + 64,
                                 slots * stride + 63, slots * stride + 64, 20 * stride}) {
      const uint64_t fit = std::min(slots, bytes < 64 ? 0 : (bytes - 64) / stride);
      Carver count(nullptr);
      const Slots counted(plan, count, {nullptr, bytes});
      EXPECT_EQ(count.used(), (slots - fit) * stride) << "position " << position << ", " << bytes << " bytes";
      for (const size_t off : {0, 4, 60}) {
        std::vector<std::byte> workspace(count.used() + 64), other(bytes + off + 64);
        Carver carver(workspace.data());
        const Slots placed(plan, carver, {other.data() + off, bytes});
        EXPECT_EQ(carver.used(), count.used());
        std::vector<std::byte *> begins;
        for (int32_t slot = 0; slot < plan.list.slots; ++slot) {
          auto *begin = reinterpret_cast<std::byte *>(placed.state(slot));
          const bool borrowed = static_cast<uint64_t>(slot) < fit;
          std::byte *memory = borrowed ? other.data() + off : workspace.data();
          EXPECT_GE(begin, memory);
          EXPECT_LE(begin + map, memory + (borrowed ? bytes : count.used()));
          if (borrowed) {
            EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % kAlignment, 0u);
          }
          begins.push_back(begin);
        }
        for (size_t a = 0; a < begins.size(); ++a)
          for (size_t b = 0; b < a; ++b)
            EXPECT_GE(static_cast<uint64_t>(std::abs(begins[a] - begins[b])), map) << a << " over " << b;
      }
    }
  }
}

TEST(Slots, TheLastPositionHasNoMapOfItsOwn) {
  std::vector<std::byte> memory(1 << 16);
  for (int32_t position = 0; position < 3; ++position) {
    const ExchangePlan plan = plan_of(position, 3);
    Carver carver(memory.data());
    const Slots slots(plan, carver);
    EXPECT_EQ(slots.local().state != nullptr, position < 2);
    EXPECT_EQ(slots.local().transition != nullptr, position < 2);
    EXPECT_EQ(slots.incoming() != nullptr, position > 0);
  }
}

}  // namespace
}  // namespace lasp
