// Problems drawn at random for a GPU, against the oracle: longer than the table's and of every width, so that runs
// of tokens, parts of runs and clusters meet chunks, packing, strides and ranks as nobody thought of them. The seed
// and how many are LASP_DRAWN_SEED and LASP_DRAWN; problem I of a seed is the same everywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "differential/draw.h"
#include "support/group_params.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

// The bounds are for the mean square over many elements. That of n independent ones spreads about it by 1/sqrt(2n)
// of itself, and so does the norm it is measured by: with 16 independent ones, four such deviations of both are as
// much again. (A single head's d_decay under weak decay has one error: 8e-3 is four times its root mean square of
// 2e-3.)
constexpr double kSpread = 2;
constexpr int64_t kMostWork = 100'000'000;  // elements of state, times tokens: what the oracle's time follows

uint64_t number(const char *name, uint64_t otherwise) {
  const char *const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

int64_t tokens(Dice &dice) {
  switch (dice.between(0, 4)) {
    case 0: return dice.between(4, 300);
    case 1:
    case 2: return dice.between(300, 1500);
    default: return dice.between(1500, 8000);
  }
}

void shape(Dice &dice, Case &c) {
  constexpr int32_t kWide[] = {32, 64, 64, 128, 128, 128, 256}, kAny[] = {16, 24, 40, 72, 136, 200, 384, 512};
  c.batch = dice.one_in(3) ? dice.between(2, 3) : 1;
  c.tokens = tokens(dice);
  c.heads_q = c.heads_k = c.heads_v = static_cast<int32_t>(dice.between(1, 2));
  if (dice.one_in(2)) draw_heads(dice, c);
  c.head_dim_k = dice.one_in(6) ? dice.one_of(kAny) : dice.one_of(kWide);
  c.head_dim_v = dice.one_in(2) ? c.head_dim_k : dice.one_in(6) ? dice.one_of(kAny) : dice.one_of(kWide);
  c.decay = static_cast<int32_t>(dice.between(LASP_DECAY_NONE, LASP_DECAY_CHANNEL));
  c.mean_decay = std::pow(10.0, -4.0 + 4.3 * dice.uniform());
  if (c.decay == LASP_DECAY_NONE && dice.one_in(6)) c.mask = LASP_MASK_BIDIRECTIONAL;
  const int64_t per_token = c.batch * c.heads() * c.head_dim_k * c.head_dim_v;
  c.tokens = std::min(c.tokens, std::max<int64_t>(kMostWork / per_token, 8));
  if (dice.one_in(4) && c.mask == LASP_MASK_CAUSAL) draw_packing(dice, c);  // the other mask refuses it
}

void memory(Dice &dice, Case &c) {
  constexpr int32_t kDtypes[] = {LASP_FLOAT32, LASP_BFLOAT16, LASP_BFLOAT16, LASP_FLOAT16};
  constexpr int32_t kChunks[] = {0, 0, 0, 16, 32, 64, 128, 256};
  constexpr Layout kLayouts[] = {Layout::contiguous, Layout::contiguous, Layout::head_major,
                                 Layout::packed_qkv, Layout::padded,     Layout::mixed};
  c.dtype = dice.one_of(kDtypes);
  c.layout = dice.one_of(kLayouts);
  c.aligned = !dice.one_in(5);
  c.states = !dice.one_in(4);
  c.cache = dice.one_in(3) ? LASP_CACHE_INCOMING : LASP_CACHE_CHUNKS;
  c.chunk = dice.one_of(kChunks);
  c.pieces = static_cast<int32_t>(dice.between(0, 5));
  c.broadcast = dice.one_in(5) && c.cu_seqlens.empty();
}

Drawn draw_for_gpu(uint64_t seed, uint64_t index) {
  Dice dice(seed, index);
  Drawn d;
  d.problem.name = "drawn_" + std::to_string(index);
  d.data_seed = seed;
  shape(dice, d.problem);
  memory(dice, d.problem);
  d.nranks = dice.one_in(2) ? 1 : static_cast<int32_t>(dice.between(2, 5));
  draw_split(dice, d.problem, d.nranks);
  if (d.nranks == 1) d.transport = Transport::self;
  d.options.schedule = static_cast<int32_t>(dice.between(LASP_SCHEDULE_AUTO, LASP_SCHEDULE_HEAD_SCATTER));
  d.options.recompute = dice.one_in(4);
  d.options.repeats = dice.one_in(4) ? 2 : 1;
  d.options.optional_outputs = d.problem.broadcast || !dice.one_in(8);
  d.options.own_stream = dice.one_in(2);
  draw_delta_rule(seed, index, d.problem);
  if (serves(LASP_SCHEDULE_RELAY, d.problem) && dice.one_in(6)) d.options.schedule = LASP_SCHEDULE_RELAY;
  d.problem.most_beta = 1.0;  // beyond it errors grow with the state, whatever computes it
  return d;
}

class Problem : public testing::TestWithParam<uint64_t> {};

TEST_P(Problem, IsRight) {
  const Drawn d = draw_for_gpu(number("LASP_DRAWN_SEED", 1), GetParam());
  const std::string said = describe(d);
  SCOPED_TRACE(said);
  const CaseData data = make_data(d.problem, d.data_seed);
  const Outputs out = run_case(d.problem, data, d.transport, d.nranks, d.options);
  ASSERT_EQ(out.complaints, "");
  Expected expected = expected_of(d.problem, data);
  // Under weak decay the terms of a head's d_decay are nearly one and the same, and may happen to be small: then it
  // is right to a fraction of what such a sum of products is in the mean.
  expected.d_decay_size = expected.d_decay_norm;
  if (!d.options.optional_outputs)
    for (const TensorId id : {kFinalState, kDDecay, kDInitialState}) expected.tensors[id].clear();
  EXPECT_EQ(compare(d.problem, expected, out, kSpread), "");
}

INSTANTIATE_TEST_SUITE_P(Drawn, Problem, testing::Range<uint64_t>(0, number("LASP_DRAWN", 120)));

}  // namespace
}  // namespace lasp_test
