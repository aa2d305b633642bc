// Random valid problems. Everything about problem number `index` follows from (seed, index), on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "differential/dice.h"
#include "support/group.h"

namespace lasp_test {

constexpr int32_t kMostRanks = 8;

struct Drawn {
  Case problem;
  RunOptions options;
  Transport transport = Transport::threads;
  int32_t nranks = 1;
  uint64_t data_seed = 0;
  int64_t prefill = 0;            // tokens of each row that a forward pass takes before lasp_step takes the rest
  std::array<int64_t, 3> runs{};  // how many tokens the calls of lasp_step take, in turn
};

Drawn draw(uint64_t seed, uint64_t index);

// Parts of a problem, for others that draw.
void draw_heads(Dice &dice, Case &c);
// One of three causal problems, by dice of its own, so that every other problem stays what it was.
void draw_delta_rule(uint64_t seed, uint64_t index, Case &c);
void draw_packing(Dice &dice, Case &c);
void draw_split(Dice &dice, Case &c, int32_t nranks);

// All that was drawn, in one line.
std::string describe(const Drawn &drawn);

}  // namespace lasp_test
