// LASP_SCHEDULE_RELAY beyond the tables: it is one rank's passes, one after the other.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/group_params.h"
#include "support/measure.h"

namespace lasp_test {
namespace {

// Tokens [begin, end) of a row-major tensor of all tokens.
std::vector<float> cut(const std::vector<float> &tensor, const Case &c, int64_t begin, int64_t end) {
  const auto width = static_cast<int64_t>(tensor.size()) / c.tokens;
  if (tensor.empty()) return {};
  return {tensor.begin() + begin * width, tensor.begin() + end * width};
}

CaseData cut(const CaseData &data, const Case &c, int64_t begin, int64_t end) {
  CaseData part = data;
  for (auto tensor : {&CaseData::q, &CaseData::k, &CaseData::v, &CaseData::beta, &CaseData::d_o})
    part.*tensor = cut(data.*tensor, c, begin, end);
  if (c.decay != LASP_DECAY_HEAD) part.g = cut(data.g, c, begin, end);
  return part;
}

std::vector<float> floats(const std::vector<double> &values) { return {values.begin(), values.end()}; }

// A group of one takes the ranks' tokens in turn, forward from the state that the turn before has left, backward
// from the gradient that the turn after it has left: the same bits of every tensor.
TEST(Relay, HasTheBitsOfOneRankAfterTheOther) {
  for (const int32_t decay : kDecays)
    for (const bool delta : {false, true})
      for (const int32_t cache : {LASP_CACHE_INCOMING, LASP_CACHE_CHUNKS}) {
        Case c;
        c.name = "relay_turns_" + std::to_string(decay) + (delta ? "_delta" : "");
        c.decay = decay, c.delta = delta, c.cache = cache, c.tokens = 300, c.head_dim_k = 32,
        c.split = Split::ragged;
        SCOPED_TRACE(c.name + " cache " + std::to_string(cache));
        const CaseData data = make_data(c);
        constexpr int32_t kRanks = 3;
        RunOptions options;
        options.schedule = LASP_SCHEDULE_RELAY;
        options.recompute = true;
        const Outputs relayed = run_case(c, data, Transport::threads, kRanks, options);
        ASSERT_EQ(relayed.complaints, "");
        const std::vector<int64_t> tokens = tokens_of_ranks(c, kRanks);
        std::vector<CaseData> turns;
        std::vector<Case> cases;
        int64_t begin = 0;
        for (const int64_t n : tokens) {
          turns.push_back(cut(data, c, begin, begin + n));
          cases.push_back(c);
          cases.back().tokens = n;
          begin += n;
        }
        const auto turn = [&](size_t r) { return run_case(cases[r], turns[r], Transport::self, 1, {}); };
        for (size_t r = 0; r + 1 < turns.size(); ++r)
          turns[r + 1].initial_state = floats(turn(r).tensors[kFinalState]);
        for (size_t r = turns.size() - 1; r > 0; --r)
          turns[r - 1].d_final_state = floats(turn(r).tensors[kDInitialState]);
        for (size_t r = 0; r < turns.size(); ++r) {
          const Outputs alone = turn(r);
          ASSERT_EQ(alone.complaints, "");
          for (const TensorId id : {kO, kDq, kDk, kDv, kDDecay, kDBeta})
            EXPECT_EQ(relayed.ranks[r].tensors[id], floats(alone.tensors[id]))
                << kTensorNames[id] << " of rank " << r;
        }
      }
}

// A state goes from each rank that has tokens to the next one that has, and back. The others send nothing.
TEST(Relay, SendsOneStateBetweenRanksThatHaveTokens) {
  for (const Split split : {Split::even, Split::sparse, Split::sparse_reversed})
    for (const int32_t nranks : {1, 2, 5}) {
      Case c;
      c.name = "relay_traffic", c.batch = 2, c.split = split;
      RunOptions options;
      options.schedule = LASP_SCHEDULE_RELAY;
      const Outputs out = run_case(c, make_data(c), Transport::threads, nranks, options);
      ASSERT_EQ(out.complaints, "");
      const std::vector<int64_t> tokens = tokens_of_ranks(c, nranks);
      const auto state = static_cast<uint64_t>(4 * c.batch * c.heads() * c.head_dim_k * c.head_dim_v);
      const auto some = [](int64_t n) { return n > 0; };
      for (int32_t r = 0; r < nranks; ++r) {
        const bool has = tokens[static_cast<size_t>(r)] > 0;
        const bool after = has && std::any_of(tokens.begin() + r + 1, tokens.end(), some);
        const bool before = has && std::any_of(tokens.begin(), tokens.begin() + r, some);
        const lasp_plan_info &info = out.ranks[static_cast<size_t>(r)].info;
        EXPECT_EQ(info.forward_bytes_sent, after ? state : 0) << "rank " << r;
        EXPECT_EQ(info.forward_messages_sent, after ? 1u : 0u) << "rank " << r;
        EXPECT_EQ(info.backward_bytes_sent, before ? state : 0) << "rank " << r;
        EXPECT_EQ(info.backward_messages_sent, before ? 1u : 0u) << "rank " << r;
      }
    }
}

}  // namespace
}  // namespace lasp_test
